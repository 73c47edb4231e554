"""Single batches, divided among the replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..errors import CellError
from ..virtual.stoppable import Job, StoppableCalls
from .batch_source import BatchSource

__all__ = ["Batch", "BatchReader"]


@dataclass(frozen=True)
class Batch:
    """A batch that has been read.

    Attributes:
        value: Its structure of per-replica values.
        sizes: The examples of each replica; empty where they cannot be counted.
    """

    value: Any
    sizes: tuple[int, ...]


class BatchReader:
    """Reads batches one by one.

    Args:
        strategy: Whose replicas share them.
        source: Where they come from.
        calls: Let interrupts end the waiting for a batch.

    Attributes:
        examples: Examples in the last batch; None where they cannot be counted.
    """

    def __init__(self, strategy: Any, source: BatchSource, calls: StoppableCalls) -> None:
        self.examples: int | None = None
        self._strategy, self._source, self._calls = strategy, source, calls
        self._coming: Job | None = None
        self._last: Any = None
        self._first = True
        self._structure: Any = None
        self._peeked: Batch | None = None
        self._given: Batch | None = None

    def peek(self) -> Batch | None:
        """The next batch, which `next` returns again."""
        self._peeked = self._peeked or self.next()
        return self._peeked

    def give_back(self) -> None:
        """Makes `next` return the last batch again: no step has used it."""
        self._peeked = self._given

    def next(self) -> Batch | None:
        """The next batch; None at the end of the data.

        Raises:
            CellError: It cannot be divided, or is unlike the batches before.
        """
        if self._peeked is not None:
            peeked, self._peeked = self._peeked, None
            return peeked
        try:
            value = self._read()
        except (StopIteration, tf.errors.OutOfRangeError):
            return None
        if not self._source.distributed:
            self._refuse_other_structure(value)
            value = self._divided(value)
        self._last = value
        self._source.took(1)
        batch = self._given = Batch(value, _sizes(value))
        self._refuse_uneven(batch)
        self.examples = sum(batch.sizes) or None
        self._first = False
        return batch

    def _read(self) -> Any:
        """The iterator's next value, read on another thread.

        An interrupt ends only the waiting: raised inside a generator, it would end that too.
        """
        iterator = self._source.iterator
        if self._coming is None:
            self._coming = self._calls.start(lambda: next(iterator))
        try:
            value = self._calls.result_of(self._coming)
        except Exception:
            self._coming = None
            raise
        self._coming = None
        return value

    def described(self, names: Sequence[str] = ()) -> str:
        """The last batch's dtypes and shapes.

        Args:
            names: What a cell calls it; one that has a tuple is told how to name the parts.
        """
        kinds = []
        for leaf in tf.nest.flatten(self._last):
            parts = getattr(leaf, "values", None)
            each = parts if isinstance(parts, tuple) else (leaf,)
            shapes = {
                f"{part.dtype.name}{list(part.shape)}" for part in each if hasattr(part, "shape")
            }
            kinds.append(" or ".join(sorted(shapes)))
        text = ", ".join(filter(None, kinds))
        if len(names) != 1 or not isinstance(self._last, tuple | list):
            return text
        parts = ",".join("xyz"[: len(self._last)])
        return f"({text}), a tuple: `--as {parts}` names its parts"

    def _refuse_uneven(self, batch: Batch) -> None:
        """Refuses a first batch that does not divide evenly; only the last may be smaller."""
        alone = self._source.left == 0
        if self._first and not alone and len(set(batch.sizes)) > 1:
            count = len(batch.sizes)
            raise CellError(
                f"A batch of {sum(batch.sizes)} cannot be divided among {count} replicas.",
                fix="Choose a global batch that is a multiple of the number of replicas, such as "
                f"{max(1, round(sum(batch.sizes) / count)) * count}.",
            )

    def _refuse_other_structure(self, value: Any) -> None:
        structure = tf.nest.map_structure(lambda leaf: None, value)
        if self._first:
            self._structure = structure
        if structure != self._structure:
            raise CellError(
                f"The batch is {_outline(value)}, unlike the batches before.",
                fix="Give every batch the structure of the first.",
            )

    def _divided(self, value: Any) -> Any:
        """A global batch as per-replica values: equal parts along the first axis."""
        count = self._strategy.num_replicas_in_sync
        return tf.nest.map_structure(lambda leaf: self._parts(leaf, count), value)

    def _parts(self, leaf: Any, count: int) -> Any:
        tensor = tf.convert_to_tensor(leaf)
        if tensor.shape.rank == 0 or tensor.shape[0] % count:
            single = "text" if tensor.dtype == tf.string else "number"
            size = (
                f"a single {single}" if tensor.shape.rank == 0 else f"a batch of {tensor.shape[0]}"
            )
            raise CellError(
                f"{size[0].upper()}{size[1:]} cannot be divided among {count} replicas.",
                fix="Yield global batches whose size is a multiple of the number of replicas: "
                "`tf.data.Dataset.from_tensor_slices(...).batch(...)` makes them.",
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
