"""What replicas in worker processes print: it arrives as lines of the workers' output.

TensorFlow cannot call this process's Python from there. The values are written to the
worker's standard output instead, each as its bytes, and are made to text here: it looks
as it does where the replicas are in this process. Of a large tensor only the elements are
written that are shown.
"""

from __future__ import annotations

import base64
import dataclasses
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.virtual._tensorflow import AttrValue
from tpunb.virtual.graph.function_def import OUTSIDE

__all__ = ["Elsewhere", "Extent", "Lines"]

Lines = Callable[[], Iterable[str]]
"""Gives the lines that the workers have written since it was last called."""

_MARK = "tpunb-print"


@dataclasses.dataclass(frozen=True)
class Extent:
    """How much of an array is shown, as NumPy counts it.

    Attributes:
        threshold: Up to how many elements all are.
        edge: Of more, how many at each end of each axis.
    """

    threshold: int
    edge: int

    @classmethod
    def of_numpy(cls) -> Extent:
        """That of `str(array)`."""
        options = np.get_printoptions()
        return cls(int(options["threshold"]), int(options["edgeitems"]))

    @classmethod
    def of_tensorflow(cls, summarize: int) -> Extent:
        """That of `tf.print`."""
        return cls(sys.maxsize if summarize < 0 else 2 * summarize, abs(summarize))

    def text(self, value: Any, size: int | None = None) -> str:
        """The text of a value.

        Args:
            value: An array, or a number or text.
            size: The number of its elements before those in the middle were left out.
        """
        if not isinstance(value, np.ndarray) or not value.ndim:
            return str(value)
        cut = (value.size if size is None else size) > self.threshold
        return np.array2string(value, threshold=0 if cut else sys.maxsize, edgeitems=self.edge)

    def ends(self, tensor: tf.Tensor) -> tf.Tensor:
        """A tensor without the elements that are not shown, but one for each gap."""
        if tensor.shape.rank is None or self.threshold == sys.maxsize:
            return tensor
        most = 2 * self.edge + 1
        large = tf.size(tensor, tf.int64) > self.threshold
        for axis in range(tensor.shape.rank):
            count = tf.shape(tensor, tf.int64)[axis]
            kept = tf.where(large, tf.minimum(count, most), count)
            place = tf.range(kept)
            tensor = tf.gather(
                tensor, tf.where(place <= self.edge, place, place + count - kept), axis=axis
            )
        return tensor


class Elsewhere:
    """The print statements of cells whose replicas are in worker processes.

    Args:
        lines: The workers' output.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._shows: list[Callable[..., None]] = []

    def write(
        self, replica: tf.Tensor, tensors: Sequence[tf.Tensor], extent: Extent, show: Any
    ) -> None:
        """Adds what writes values to the graph that is being built.

        Args:
            replica: The replica's number.
            tensors: The values.
            extent: How much of them is shown.
            show: Called with the replica, the values and their sizes once they have arrived.
        """
        self._shows.append(show)
        graph = tf.compat.v1.get_default_graph()
        with graph._attr_scope({OUTSIDE: AttrValue(s=b"print")}):
            parts = [f"{_MARK} {len(self._shows) - 1}", tf.strings.as_string(replica)]
            for tensor in tensors:
                parts.append(tf.strings.as_string(tf.size(tensor, tf.int64)))
                parts.append(tf.io.encode_base64(tf.io.serialize_tensor(extent.ends(tensor))))
            tf.raw_ops.PrintV2(input=tf.strings.join(parts, " "), output_stream="stdout", end="\n")

    def receive(self) -> None:
        """Shows what has arrived."""
        for line in self._lines():
            mark, *fields = line.split(" ")
            if mark == _MARK:
                site, replica, *values = fields
                sizes = [int(size) for size in values[::2]]
                self._shows[int(site)](int(replica), *map(_array, values[1::2]), sizes=sizes)


def _array(text: str) -> Any:
    """A value from its bytes; no array where it has no axes."""
    encoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    found = tf.make_ndarray(tf.make_tensor_proto(0).FromString(encoded))
    return found[()]
