"""The position of a run of many steps, and what keeps it in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tpunb._util.interrupts import StopButton


@dataclass
class RunState:
    """The position of a run.

    Attributes:
        done: The number of steps made.
        ended: Whether the data has ended.
        values: The values of the cell's names, and of its last expression, after the last step.
        batch: The last step's batch; None without data, or if it is not known.
    """

    done: int
    ended: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    batch: Any = None


class RunCheckpoints(Protocol):
    """The checkpoints of one run in a folder."""

    @property
    def last(self) -> int | None:
        """The step of the last checkpoint; None before the first checkpoint."""

    def resume(
        self, batches: Any, names: Sequence[str], total: int | None, button: StopButton
    ) -> tuple[RunState, str] | None:
        """Restore the last checkpoint; return the position and a sentence about it, if any."""

    def room(self, done: int) -> float:
        """Return the number of steps until the next checkpoint."""

    def is_due(self, done: int) -> bool:
        """Return whether to save now."""

    def save(self, state: RunState) -> None:
        """Save a checkpoint. If that fails, warn once: training goes on."""
