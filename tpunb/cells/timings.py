"""What runs take: of a cell, and of many steps, which may wait for their batches."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoopTimings", "Timings", "Waits"]


@dataclass(frozen=True)
class Timings:
    """How long a run took.

    Attributes:
        trace: Seconds until TensorFlow had traced the cell; None if it had before.
        step: Seconds for the rest; after a trace this includes compiling.
    """

    trace: float | None
    step: float

    @classmethod
    def of(cls, started: float, ended: float, traced_at: float | None) -> Timings:
        """From the times of the beginning, the end and, if there was one, the end of the trace."""
        if traced_at is None:
            return cls(None, ended - started)
        return cls(traced_at - started, ended - traced_at)


@dataclass
class LoopTimings:
    """What a run of many steps has taken, in seconds.

    Attributes:
        trace: Tracing, of the single step and of the loop; None if nothing was traced.
        first_step: The first step, with tracing and compiling.
        steady_step: A step at its best, with its share of the host's part.
        input_wait: The share of the time that steps wait for batches, 0 to 1; None without data.
        steps_per_loop: How many steps are made in one call.
        steps: How many were made.
        seconds: The whole run.
    """

    trace: float | None = None
    first_step: float | None = None
    steady_step: float | None = None
    input_wait: float | None = None
    steps_per_loop: int = 1
    steps: int = 0
    seconds: float = 0.0


@dataclass
class Waits:
    """How long steps have waited for their batches, and of how long that was measured."""

    waited: float = 0.0
    measured: float = 0.0

    def add(self, waited: float, measured: float) -> None:
        """Adds measured steps: their waiting, and their whole time, in seconds."""
        self.waited += waited
        self.measured += measured

    @property
    def share(self) -> float | None:
        """The share of the time that is waiting, 0 to 1; None where nothing was measured."""
        return min(1.0, self.waited / self.measured) if self.measured > 0 else None
