"""What a run takes its batches from: a place in data, and how much is left of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ..errors import CellError, TpuWarning
from ..virtual.fit_notes import watch_shares
from .nests import leaves

__all__ = ["BATCH_PER_REPLICA", "BatchSource", "open_batches"]

BATCH_PER_REPLICA = 32
"""Examples of a replica's batch where plain arrays are fed, which have no batches."""

_INFINITE, _UNKNOWN = -1, -2


@dataclass
class BatchSource:
    """A place in data.

    Attributes:
        source: What it was opened from; held, so that the same data is known again.
        iterator: A `DistributedIterator`, or a Python iterator over global batches.
        distributed: Whether it is the former, which a loop of several steps can read.
        left: How many batches are left; None if unknown, infinity without an end.
        examples: Examples in the last global batch, where they can be counted.
    """

    source: Any
    iterator: Any
    distributed: bool
    left: float | None
    examples: int | None = None

    def took(self, count: int) -> None:
        """Notes that batches have been read."""
        if self.left is not None:
            self.left -= count


def open_batches(strategy: Any, source: Any, *, repeat: bool = False) -> BatchSource:
    """Opens data for reading from its start, or an iterator from its current position.

    Args:
        strategy: Whose replicas share the batches.
        source: A `tf.data.Dataset` of global batches, a `DistributedDataset`, an
            iterator over either, a function of an input context that makes a
            dataset of one replica's batches, an array or tensor or a tuple or dict
            of them, or any iterable of global batches.
        repeat: Whether arrays repeat.

    Raises:
        CellError: It is none of these, or cannot be divided among the replicas.
    """
    if isinstance(source, (tf.distribute.DistributedIterator, tf.distribute.DistributedDataset)):
        return _distributed(source)
    if isinstance(source, tf.data.Dataset):
        return _of_dataset(strategy, source, source)
    if _is_arrays(source):
        return _of_dataset(strategy, _batched(strategy, source, repeat=repeat), source)
    if isinstance(source, Iterator):
        return BatchSource(source, source, distributed=False, left=None)
    if callable(source):
        return _of_function(strategy, source)
    if isinstance(source, Iterable) and not isinstance(source, (str, bytes)):
        return BatchSource(source, iter(source), distributed=False, left=None)
    raise CellError(
        f"A {type(source).__name__} holds no batches.",
        fix="Give a tf.data.Dataset, an iterator, a dataset function, or arrays.",
    )


def _distributed(source: Any) -> BatchSource:
    """From a distributed dataset or an iterator over one."""
    if isinstance(source, tf.distribute.DistributedDataset):
        return BatchSource(source, iter(source), distributed=True, left=_left(source.cardinality))
    # How far an iterator has come is not known, only whether it ever ends.
    endless = getattr(source, "_cardinality", _UNKNOWN) == _INFINITE
    return BatchSource(source, source, distributed=True, left=float("inf") if endless else None)


def _of_dataset(strategy: Any, dataset: Any, source: Any) -> BatchSource:
    _refuse_indivisible(strategy, dataset)
    distributed = strategy.experimental_distribute_dataset(dataset)
    watch_shares(strategy.num_replicas_in_sync, dataset, distributed, _warn)
    left = _left(int(dataset.cardinality()))
    return BatchSource(source, iter(distributed), distributed=True, left=left)


def _warn(text: str) -> None:
    warnings.warn_explicit(text, TpuWarning, "%%tpu_run", 1)


def _of_function(strategy: Any, function: Any) -> BatchSource:
    try:
        distributed = strategy.distribute_datasets_from_function(function)
    except TypeError as error:
        raise CellError(
            f"The dataset function cannot be called with an input context: {error}",
            fix="Take one argument, a tf.distribute.InputContext, and return a Dataset.",
        ) from error
    left = _left(int(getattr(distributed, "cardinality", _UNKNOWN)))
    if left not in (None, float("inf")):
        # Each host's dataset is counted in batches of one replica.
        per_host = strategy.num_replicas_in_sync // strategy.extended.num_hosts
        left = left // per_host if left % per_host == 0 else None
    return BatchSource(function, iter(distributed), distributed=True, left=left)


def _left(cardinality: int) -> float | None:
    if int(cardinality) == _UNKNOWN:
        return None
    return float("inf") if int(cardinality) == _INFINITE else int(cardinality)


def _is_arrays(source: Any) -> bool:
    """Whether there are arrays and tensors only, at least one; a list is one of batches."""
    found = list(leaves(source))
    return (
        not isinstance(source, list)
        and bool(found)
        and all(isinstance(leaf, (np.ndarray, tf.Tensor)) for leaf in found)
    )


def _batched(strategy: Any, arrays: Any, *, repeat: bool) -> Any:
    """A dataset of global batches of arrays, in their order."""
    sizes = {leaf.shape[0] if leaf.shape else None for leaf in leaves(arrays)}
    if len(sizes) != 1 or None in sizes:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves(arrays))
        raise CellError(
            f"Arrays that are fed together have one example for each index; these are {shapes}.",
            fix="Give arrays of one length along their first axis.",
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
    # Nothing of what is fed once is left out: the last batch may be smaller.
    dataset = dataset.batch(batch, drop_remainder=repeat)
    return dataset.repeat() if repeat else dataset


def _refuse_indivisible(strategy: Any, dataset: Any) -> None:
    """Refuses what is no dataset of batches, or of batches that do not divide."""
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
            raise CellError(
                f"Batches of {shape[0]} cannot be divided among {replicas} replicas.",
                fix="Choose a global batch that is a multiple of the number of replicas, "
                f"such as {max(1, round(shape[0] / replicas)) * replicas}.",
            )
