"""Single batches of a feed, divided among the replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..errors import CellError
from .feed import Feed

__all__ = ["Batch", "Batches"]


@dataclass(frozen=True)
class Batch:
    """A batch that has been read.

    Attributes:
        value: Its structure of per-replica values.
        sizes: The examples of each replica; empty where they cannot be counted.
    """

    value: Any
    sizes: tuple[int, ...]


class Batches:
    """Reads batches one by one.

    Args:
        strategy: Whose replicas share them.
        feed: Where they come from.

    Attributes:
        examples: Examples in the last batch; None where they cannot be counted.
    """

    def __init__(self, strategy: Any, feed: Feed) -> None:
        self.examples: int | None = None
        self._strategy, self._feed = strategy, feed
        self._last: Any = None
        self._first = True
        self._structure: Any = None
        self._peeked: Batch | None = None

    def peek(self) -> Batch | None:
        """The next batch, which `next` will give once more."""
        self._peeked = self._peeked or self.next()
        return self._peeked

    def next(self) -> Batch | None:
        """The next batch; None at the end of the data.

        Raises:
            CellError: It cannot be divided, or is unlike the batches before.
        """
        if self._peeked is not None:
            peeked, self._peeked = self._peeked, None
            return peeked
        try:
            value = next(self._feed.iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            return None
        if not self._feed.distributed:
            self._refuse_other_structure(value)
            value = self._divided(value)
        self._last = value
        self._feed.took(1)
        batch = Batch(value, _sizes(value))
        self._refuse_uneven(batch)
        self.examples = sum(batch.sizes) or None
        self._first = False
        return batch

    def described(self) -> str:
        """The last batch's dtypes and shapes."""
        kinds = []
        for leaf in tf.nest.flatten(self._last):
            parts = getattr(leaf, "values", None)
            each = parts if isinstance(parts, tuple) else (leaf,)
            shapes = {
                f"{part.dtype.name}{list(part.shape)}" for part in each if hasattr(part, "shape")
            }
            kinds.append(" or ".join(sorted(shapes)))
        return ", ".join(filter(None, kinds))

    def _refuse_uneven(self, batch: Batch) -> None:
        """The first batch tells how large batches are; only the last may be smaller."""
        alone = self._feed.left == 0
        if self._first and not alone and len(set(batch.sizes)) > 1:
            count = len(batch.sizes)
            raise CellError(
                f"A batch of {sum(batch.sizes)} cannot be divided among {count} replicas.",
                mend="Choose a global batch that is a multiple of the number of replicas, such as "
                f"{max(1, round(sum(batch.sizes) / count)) * count}.",
            )

    def _refuse_other_structure(self, value: Any) -> None:
        structure = tf.nest.map_structure(lambda leaf: None, value)
        if self._first:
            self._structure = structure
        if structure != self._structure:
            raise CellError(
                f"The batch is {_outline(value)}, unlike the batches before.",
                mend="Every batch has the structure of the first.",
            )

    def _divided(self, value: Any) -> Any:
        """A global batch as per-replica values: equal parts along the first axis."""
        count = self._strategy.num_replicas_in_sync
        return tf.nest.map_structure(lambda leaf: self._parts(leaf, count), value)

    def _parts(self, leaf: Any, count: int) -> Any:
        tensor = tf.convert_to_tensor(leaf)
        if tensor.shape.rank == 0 or tensor.shape[0] % count:
            size = "a single number" if tensor.shape.rank == 0 else f"a batch of {tensor.shape[0]}"
            raise CellError(
                f"{size[0].upper()}{size[1:]} cannot be divided among {count} replicas.",
                mend="Yield global batches whose size is a multiple of the number of replicas.",
            )
        if count == 1:
            return tensor
        parts = tf.split(tensor, count)
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )


def _sizes(value: Any) -> tuple[int, ...]:
    """The examples of each replica, by the first tensor of a batch."""
    leaf = next(iter(tf.nest.flatten(value)), None)
    parts = getattr(leaf, "values", None)
    parts = parts if isinstance(parts, tuple) else (leaf,)
    shapes = [getattr(part, "shape", None) for part in parts]
    if any(shape is None or not shape.rank for shape in shapes):
        return ()
    return tuple(int(shape[0]) for shape in shapes if shape is not None)


def _outline(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
