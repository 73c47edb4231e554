"""Output that the replicas print, collected and shown replica by replica.

A tensor has no value while a cell is traced, so Python's `print` would show its name once. On a
virtual TPU `print` and `tf.print` write the values of every replica instead. The host writes them.
A real TPU needs soft placement or outside compilation for this.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb._util.plain_text import plain
from tpunb._util.units import counted
from tpunb.tensorflow.virtual.graph.function_def import CALLS, CONTROL_FLOW, OUTSIDE
from tpunb.tensorflow.virtual.graph.tensorflow_graphs import (
    is_stateful,
    run_after,
    set_attr,
)
from tpunb.tensorflow.virtual.private_names import AttrValue
from tpunb.tensorflow.virtual.replicate.trial import current_trial
from tpunb.tensorflow.virtual.strategy import VirtualTPU
from tpunb.tensorflow.virtual.strict.examination import is_observed

_MOST_LINES, _FEWEST_LINES = 500, 5  # of all replicas together; at least of each replica
_MOST_LETTERS = 1_000_000
_SUMMARIZED = 3  # elements at each end, the default of `tf.print`
_SYMBOLIC = re.compile(r'\bTensor\("[^"]*", shape=')
_ON_A_TPU = "On a TPU, printing needs tf.config.set_soft_device_placement(True), and is slow."
_F_STRING = (
    "A tensor has no value yet where an f-string is made: print('loss', loss) shows the values."
)
_unconverted = tf.autograph.experimental.do_not_convert


class Printer:
    """Collector of the text that a virtual TPU's replicas print, shown grouped by replica.

    Args:
        strategy: The strategy. Only a virtual TPU's output is collected.
    """

    def __init__(self, strategy: Any) -> None:
        self._collects = isinstance(strategy, VirtualTPU)
        self._lock = threading.Lock()
        self._texts: dict[int, list[str]] = {}
        self._letters = 0
        self._prints = self._has_note = self._has_said = False

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Collect the output of a replica function that is traced inside, when it runs."""
        if is_observed() or current_trial.get() is not None or not self._collects:
            yield
            return
        python, tensorflow = builtins.print, tf.print
        builtins.print = _unconverted(self._python(python))
        tf.print = _unconverted(self._tensorflow(tensorflow))
        self._prints = False
        try:
            yield
        finally:
            builtins.print, tf.print = python, tensorflow
        if self._prints:
            _in_order(tf.compat.v1.get_default_graph())

    def show(self) -> None:
        """Write the collected text to the standard output, and forget it."""
        with self._lock:
            texts, self._texts, self._letters = self._texts, {}, 0
        most = max(_FEWEST_LINES, _MOST_LINES // max(1, len(texts)))
        lines = []
        for replica in sorted(texts):
            own = "".join(texts[replica]).removesuffix("\n").split("\n")
            if len(own) > most:
                own[most:] = [f"… and {counted(len(own) - most, 'more line')}"]
            lines += [f"[replica {replica}] {plain(line)}" for line in own]
        if lines and self._has_note and not self._has_said:
            self._has_said = True
            lines.append(_ON_A_TPU)
        if lines:
            sys.stdout.write("".join(f"{line}\n" for line in lines))

    def _python(self, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that replaces `print`."""

        def show(*values: Any, **options: Any) -> None:
            mine = options.get("file") in (None, sys.stdout, sys.stderr) and _in_a_replica()
            if mine and any(map(_has_no_value, tf.nest.flatten(values))):
                sep, end = options.get("sep"), options.get("end")
                sep, end = " " if sep is None else sep, "\n" if end is None else end
                self._add(values, sep, end, Extent.of_numpy())
            elif mine and any(isinstance(v, str) and _SYMBOLIC.search(v) for v in values):
                sys.stdout.write(f"{_F_STRING}\n")
            else:
                otherwise(*values, **options)

        return show

    def _tensorflow(self, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that replaces `tf.print`."""

        def show(*values: Any, **options: Any) -> Any:
            stream = options.get("output_stream", sys.stderr)
            if stream not in (sys.stdout, sys.stderr) or not _in_a_replica():
                return otherwise(*values, **options)
            extent = Extent.of_tensorflow(options.get("summarize") or _SUMMARIZED)
            return self._add(values, options.get("sep", " "), options.get("end", "\n"), extent)

        return show

    def _add(self, values: Any, sep: str, end: str, extent: Extent) -> Any:
        """Add the operation to the graph that is being built."""
        flat = tf.nest.flatten(values)
        places = [place for place, value in enumerate(flat) if _has_no_value(value)]

        def collect(replica: Any, *arrays: Any) -> None:
            filled = list(flat_values)
            for place, array in zip(places, arrays, strict=True):
                if isinstance(array, bytes):
                    array = array.decode("utf-8", "replace")
                filled[place] = _Shown(extent.text(array))
            shown = tf.nest.pack_sequence_as(values_shape, filled)
            text = sep.join(map(str, shown)) + end
            with self._lock:
                room = _MOST_LETTERS - self._letters
                self._letters += len(text)
                self._texts.setdefault(int(replica), []).append(text[: max(0, room)])

        # Leave out the tensors, so that the graph does not live as long as the operation's
        # function.
        flat_values = [None if place in places else value for place, value in enumerate(flat)]
        values_shape = tf.nest.map_structure(lambda _: 0, values)
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        tensors = [tf.convert_to_tensor(flat[place]) for place in places]
        self._prints = True
        self._has_note |= not tf.config.get_soft_device_placement()
        operation = tf.numpy_function(collect, [replica, *tensors], [], name="print")
        set_attr(operation, OUTSIDE, AttrValue(s=b"print"))
        return operation


class _Shown(str):
    """Text that is shown without quotes, also inside lists."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _in_order(graph: Any) -> None:
    """Make the printing operations of a replica function run in their order.

    TensorFlow orders them only in ordinary graphs, and in the graphs of loops and branches.
    """
    before = None
    for operation in graph.get_operations():
        # The called functions may print too, as far as the graph shows.
        prints = OUTSIDE in operation.node_def.attr or operation.type in CONTROL_FLOW | CALLS
        if prints and is_stateful(operation):
            if before is not None:
                run_after(operation, before)
            before = operation


def _has_no_value(leaf: Any) -> bool:
    """Return whether a leaf is a tensor or a variable that gets its value when the cell runs."""
    return tf.is_symbolic_tensor(leaf) or isinstance(leaf, tf.Variable)


def _in_a_replica() -> bool:
    return tf.distribute.in_cross_replica_context() is False and not tf.executing_eagerly()


@dataclasses.dataclass(frozen=True)
class Extent:
    """The part of an array that is shown, by the rules of NumPy.

    Attributes:
        threshold: The largest number of elements of an array that is shown completely.
        edge: The number of elements at each end of each axis that a larger array shows.
    """

    threshold: int
    edge: int

    @classmethod
    def of_numpy(cls) -> Extent:
        """Return the limit of `str(array)`."""
        options = np.get_printoptions()
        return cls(int(options["threshold"]), int(options["edgeitems"]))

    @classmethod
    def of_tensorflow(cls, summarize: int) -> Extent:
        """Return the limit of `tf.print`."""
        return cls(sys.maxsize if summarize < 0 else 2 * summarize, abs(summarize))

    def text(self, value: Any) -> str:
        """Return the text of an array, number or text."""
        if not isinstance(value, np.ndarray) or not value.ndim:
            return str(value)
        return np.array2string(value, threshold=self.threshold, edgeitems=self.edge)
