"""A batch of a run, and the names that a step gives to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpunb.errors import CellError

BATCH_PER_REPLICA = 32
"""Examples in a replica's batch if the data is plain arrays, which have no batches of their own."""


@dataclass(frozen=True)
class Batch:
    """A batch that has been read.

    Attributes:
        value: The batch's structure of per-replica values.
        sizes: The number of examples of each replica; empty if they cannot be counted.
    """

    value: Any
    sizes: tuple[int, ...]


def bound_to(names: Sequence[str], batch: Any) -> dict[str, Any]:
    """Return the names that a step gives to its batch, or to the batch's parts."""
    if len(names) == 1:
        return {names[0]: batch}
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not isinstance(parts, list | tuple) or len(parts) != len(names):
        count = len(parts) if isinstance(parts, list | tuple) else 1
        raise CellError(
            f"A batch has {count} part{'' if count == 1 else 's'}, and --as names {len(names)}.",
            fix=f"Give --as {count} name{'' if count == 1 else 's'}, or one for the whole batch.",
        )
    return dict(zip(names, parts, strict=True))


def indivisible(size: int, replicas: int) -> CellError:
    """Return the error for a batch that cannot be divided among the replicas."""
    return CellError(
        f"A batch of {size} cannot be divided among {replicas} replicas.",
        fix="Choose a global batch that is a multiple of the number of replicas, such as "
        f"{max(1, round(size / replicas)) * replicas}.",
    )
