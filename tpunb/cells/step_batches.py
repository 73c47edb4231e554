"""The interface of batches that a run of steps uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tpunb.cells.batch import Batch


class BatchSource(Protocol):
    """The batches of a run.

    Attributes:
        left: The number of batches left; None if unknown, infinity if the data has no end.
        examples: The number of examples in the last batch; None if they cannot be counted.
    """

    left: float | None
    examples: int | None

    def peek(self) -> Batch | None:
        """Return the next batch, and let `next` return it again."""

    def next(self) -> Batch | None:
        """Return the next batch, or None at the end of the data."""

    def described(self, names: Sequence[str] = ()) -> str:
        """Describe the last batch's dtypes and shapes."""
