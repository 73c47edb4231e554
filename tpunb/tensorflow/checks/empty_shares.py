"""The warning `empty-share`: batches so small that some replicas get no examples."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.units import counted
from tpunb.tensorflow.checks.dataset_sizes import batch_sizes
from tpunb.tensorflow.virtual.input.datasets import BatchSizes, cut_of

EMPTY = "empty-share"
"""The kind of the warning."""


def watch_shares(
    replicas: int,
    dataset: Any,
    distributed: Any,
    say: Callable[[str], None],
    sizes: BatchSizes | None = None,
) -> None:
    """Report once that a replica has no examples: now if that is known, or when the batch comes.

    Args:
        replicas: The number of replicas that share each batch.
        dataset: The data.
        distributed: The same data as the strategy has distributed it.
        say: Receives the sentence.
        sizes: The sizes of the batches, if they are known.
    """
    if replicas < 2:
        return
    cut = None
    if isinstance(distributed, tf.distribute.DistributedDataset):
        clones: Sequence[Any] = getattr(distributed, "_cloned_datasets", ())
        cut = cut_of(clones[0], replicas) if len(clones) == 1 else None
    own = list(cut.sizes) if cut is not None else []
    sizes = sizes or batch_sizes(dataset)
    if text := _shortage(sizes, replicas, own):
        say(text)
    elif cut is not None and sizes.examples is None:
        reported: list[str] = []

        def report(examples: int) -> None:
            if not reported:
                reported.append(_sentence(examples, replicas, own, BatchSizes(), "A batch"))
                say(reported[0])

        distributed.when_empty = report


def empty_share(dataset: Any, replicas: int) -> str:
    """Return a sentence if global batches leave replicas without examples; empty otherwise."""
    return _shortage(batch_sizes(dataset), replicas, ()) if replicas > 1 else ""


def _shortage(sizes: BatchSizes, replicas: int, own: Sequence[int]) -> str:
    for size, subject in ((sizes.full, "Each batch"), (sizes.last, "The last batch")):
        if size and 0 in _shares(size, replicas, own):
            return _sentence(size, replicas, own, sizes, subject)
    return ""


def _sentence(size: int, replicas: int, own: Sequence[int], sizes: BatchSizes, subject: str) -> str:
    none = _shares(size, replicas, own).count(0)
    fits = _fitting(sizes, replicas, own)
    fixes = [f"a batch size that fits, such as {fits}"] if fits else []
    if sizes.examples and sizes.examples < replicas:
        fixes = [f"at least {replicas} examples"]
    elif subject != "Each batch" or not fixes:
        fixes.append("`dataset.batch(..., drop_remainder=True)`")
    return (
        f"{subject} has {counted(size, 'example')} for {replicas} replicas: {none} of them "
        f"{'get' if none > 1 else 'gets'} none. What such a replica averages over its examples, as "
        "BatchNormalization does, may be NaN, and the model lost with it. "
        f"Use {', or '.join(fixes)}."
    )


def _shares(size: int, replicas: int, own: Sequence[int]) -> list[int]:
    """Return each replica's number of examples, given a full batch's parts if these are fixed."""
    most = list(own) if any(own) else [-(-size // replicas)] * replicas
    starts = itertools.accumulate(most, initial=0)
    return [max(0, min(rows, size - start)) for rows, start in zip(most, starts, strict=False)]


def _fitting(sizes: BatchSizes, replicas: int, own: Sequence[int]) -> int | None:
    """Return the batch size closest to the present size that gives every replica examples."""
    full = sizes.full
    if full is None:
        return None
    candidates = range(replicas, max(2 * full, replicas) + 1, replicas)
    for size in sorted(candidates, key=lambda candidate: abs(candidate - full)):
        rest = (sizes.examples or 0) % size
        again = [size // replicas] * replicas if any(own) else []
        if not rest or 0 not in _shares(rest, replicas, again):
            return size
    return None
