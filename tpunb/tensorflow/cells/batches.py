"""Batches of a run: opened from any kind of data, read one by one, and divided."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.cells.batch import BATCH_PER_REPLICA, Batch, indivisible
from tpunb.cells.reading.nests import leaves, parts_of
from tpunb.errors import CellError, TpuWarning
from tpunb.tensorflow.checks.empty_shares import watch_shares
from tpunb.tensorflow.virtual.runtime.stoppable import Job, StoppableCalls


class Batches:
    """Data that is read batch by batch; an interrupt ends only the wait for a batch.

    Args:
        strategy: The strategy whose replicas share the batches.
        source: A `tf.data.Dataset` of global batches, a `DistributedDataset`, an
            iterator over either, a function of an input context that makes a
            dataset of one replica's batches, an array or tensor or a tuple or dict
            of them, or any iterable of global batches. An iterator continues from its position.
        calls: Runs the reading calls, so that interrupts end them.
        repeat: Whether arrays repeat.

    Attributes:
        iterator: A `DistributedIterator`, or a Python iterator over global batches.
        distributed: Whether `iterator` is a `DistributedIterator`, which a loop of several
            steps can read.
        left: The number of batches left; None if unknown, infinity if the data has no end.
        examples: The number of examples in the last batch; None if they cannot be counted.

    Raises:
        CellError: The source is none of these, or cannot be divided among the replicas.
    """

    def __init__(
        self, strategy: Any, source: Any, calls: StoppableCalls, *, repeat: bool = False
    ) -> None:
        self.iterator, self.left = _opened(strategy, source, repeat=repeat)
        self.distributed = isinstance(self.iterator, tf.distribute.DistributedIterator)
        self.examples: int | None = None
        self._strategy, self._calls = strategy, calls
        self._coming: Job | None = None
        self._last: Any = None
        self._first = True
        self._structure: Any = None
        self._peeked: Batch | None = None
        self._given: Batch | None = None

    def peek(self) -> Batch | None:
        """Return the next batch, and let `next` return it again."""
        self._peeked = self._peeked or self.next()
        return self._peeked

    def give_back(self) -> None:
        """Make `next` return the last batch again, because no step has used it."""
        self._peeked = self._given

    def took(self, count: int) -> None:
        """Note that batches have been read."""
        if self.left is not None:
            self.left -= count

    def next(self) -> Batch | None:
        """Return the next batch, or None at the end of the data."""
        if self._peeked is not None:
            peeked, self._peeked = self._peeked, None
            return peeked
        # Read on another thread, because an interrupt inside a generator would end the generator
        # too.
        if self._coming is None:
            self._coming = self._calls.start(lambda: next(self.iterator))
        try:
            value = self._calls.result_of(self._coming)
        except (StopIteration, tf.errors.OutOfRangeError):
            self._coming = None
            return None
        except Exception:
            self._coming = None
            raise
        self._coming = None
        if not self.distributed:
            structure = tf.nest.map_structure(lambda leaf: None, value)
            if self._first:
                self._structure = structure
            if structure != self._structure:
                raise CellError(
                    f"The batch is {_outline(value)}, unlike the batches before.",
                    fix="Give every batch the structure of the first.",
                )
            value = tf.nest.map_structure(self._divided, value)
        self._last = value
        self.took(1)
        batch = self._given = Batch(value, _sizes(value))
        # Only the last batch may divide unevenly.
        if self._first and self.left != 0 and len(set(batch.sizes)) > 1:
            raise indivisible(sum(batch.sizes), len(batch.sizes))
        self.examples = sum(batch.sizes) or None
        self._first = False
        return batch

    def described(self, names: Sequence[str] = ()) -> str:
        """Describe the last batch's dtypes and shapes, and how `--as` names a tuple's parts."""
        kinds = []
        for leaf in tf.nest.flatten(self._last):
            parts = [part for part in parts_of(leaf) if hasattr(part, "shape")]
            shapes = {f"{part.dtype.name}{list(part.shape)}" for part in parts}
            kinds.append(" or ".join(sorted(shapes)))
        text = ", ".join(filter(None, kinds))
        if len(names) != 1 or not isinstance(self._last, tuple | list):
            return text
        letters = ",".join("xyz"[: len(self._last)])
        return f"({text}), a tuple: `--as {letters}` names its parts"

    def _divided(self, leaf: Any) -> Any:
        """Divide a tensor of a global batch into equal per-replica parts along the first axis."""
        count = self._strategy.num_replicas_in_sync
        try:
            tensor = tf.convert_to_tensor(leaf)
        except (TypeError, ValueError):
            raise CellError(
                f"A batch holds a value of type {type(leaf).__name__}, which does not become a "
                "tensor.",
                fix="Yield tensors, arrays, or tuples and dicts of these.",
            ) from None
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


def _opened(strategy: Any, source: Any, *, repeat: bool) -> tuple[Any, float | None]:
    """Return an iterator over data, and the number of batches it has left."""
    if isinstance(source, tf.distribute.DistributedDataset):
        return iter(source), _left(source.cardinality)
    if isinstance(source, tf.distribute.DistributedIterator):
        # The position of an iterator is not known, only whether the iterator ever ends.
        left = _left(getattr(source, "_cardinality", tf.data.UNKNOWN_CARDINALITY))
        return source, left if left == float("inf") else None
    if isinstance(source, tf.data.Dataset):
        return _of_dataset(strategy, source)
    parts = list(leaves(source))
    # Arrays and tensors only; a list is a list of batches.
    are_arrays = parts and all(isinstance(leaf, (np.ndarray, tf.Tensor)) for leaf in parts)
    if are_arrays and not isinstance(source, list):
        return _of_dataset(strategy, _batched(strategy, source, repeat=repeat))
    if any(isinstance(leaf, tf.data.Dataset) for leaf in parts):
        raise CellError(
            "Several datasets cannot be read side by side.",
            fix="Combine them into one: `tf.data.Dataset.zip((a, b))`.",
        )
    if hasattr(source, "to_numpy"):
        raise CellError(
            f"A {type(source).__name__} holds no batches.", fix="Give arrays: `x = df.to_numpy()`."
        )
    if isinstance(source, Iterator):
        return source, None
    if callable(source) and not hasattr(type(source), "trainable_variables"):
        return _of_function(strategy, source)
    if isinstance(source, Iterable) and not isinstance(source, (str, bytes)):
        return iter(source), None
    raise CellError(
        f"A {type(source).__name__} holds no batches.",
        fix="Give a tf.data.Dataset, an iterator, a dataset function, or arrays.",
    )


def _of_dataset(strategy: Any, dataset: Any) -> tuple[Any, float | None]:
    replicas = strategy.num_replicas_in_sync
    for spec in tf.nest.flatten(dataset.element_spec):
        shape = getattr(spec, "shape", None)
        if shape is None or shape.rank is None:
            continue
        if shape.rank == 0:
            raise CellError(
                "The dataset's elements are single examples, not batches.",
                fix=f"Batch it: `.batch({BATCH_PER_REPLICA * replicas}, drop_remainder=True)`.",
            )
        if shape[0] is not None and shape[0] % replicas:
            raise indivisible(shape[0], replicas)
    distributed = strategy.experimental_distribute_dataset(dataset)

    def warn(text: str) -> None:
        warnings.warn_explicit(text, TpuWarning, "%%tpu_run", 1)

    watch_shares(replicas, dataset, distributed, warn)
    return iter(distributed), _left(dataset.cardinality())


def _of_function(strategy: Any, function: Any) -> tuple[Any, float | None]:
    try:
        distributed = strategy.distribute_datasets_from_function(function)
    except TypeError as error:
        raise CellError(
            f"The dataset function cannot be called with an input context: {error}",
            fix="Take one argument, a tf.distribute.InputContext, and return a Dataset.",
        ) from error
    left = _left(getattr(distributed, "cardinality", tf.data.UNKNOWN_CARDINALITY))
    if left not in (None, float("inf")):
        # Each host's dataset counts batches of one replica.
        per_host = strategy.num_replicas_in_sync // strategy.extended.num_hosts
        left = left // per_host if left % per_host == 0 else None
    return iter(distributed), left


def _left(cardinality: Any) -> float | None:
    count = int(cardinality)
    if count == tf.data.UNKNOWN_CARDINALITY:
        return None
    return float("inf") if count == tf.data.INFINITE_CARDINALITY else count


def _batched(strategy: Any, arrays: Any, *, repeat: bool) -> Any:
    """Return a dataset of global batches of arrays, in their order."""
    sizes = {leaf.shape[0] if leaf.shape else None for leaf in leaves(arrays)}
    if len(sizes) != 1 or None in sizes:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves(arrays))
        raise CellError(
            f"Arrays that are fed together need one length along their first axis: {shapes}.",
            fix="Give as many labels as examples.",
        )
    replicas = strategy.num_replicas_in_sync
    (size,) = sizes
    if size < replicas:
        raise CellError(
            f"{size} examples are too few for {replicas} replicas.",
            fix="Give at least one to each replica, or connect to fewer cores.",
        )
    batch = min(BATCH_PER_REPLICA * replicas, size // replicas * replicas)
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    # Data that is read once is read completely, so the last batch may be smaller.
    dataset = dataset.batch(batch, drop_remainder=repeat)
    return dataset.repeat() if repeat else dataset


def _sizes(value: Any) -> tuple[int, ...]:
    """Return the number of examples of each replica, counted by the batch's first tensor."""
    first = next(iter(tf.nest.flatten(value)), None)
    shapes = [getattr(part, "shape", None) for part in parts_of(first)]
    if any(shape is None or not shape.rank for shape in shapes):
        return ()
    return tuple(int(shape[0]) for shape in shapes if shape is not None)


def _outline(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
