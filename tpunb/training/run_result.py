"""Results and times of a run of a cell or a function on every replica."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tpunb.training.history import History


@dataclasses.dataclass
class Timings:
    """The times of a run, in seconds.

    Attributes:
        trace: The time to trace the step, and the loop of steps; None if nothing was traced.
        first_step: The first step, with tracing and compiling.
        steady_step: The fastest later step, with its share of the host's part.
        input_wait: The share of the time that steps wait for batches, 0 to 1; None without data.
        steps_per_loop: The number of steps in one call.
        steps: The number of steps made.
        seconds: The whole run.
    """

    trace: float | None = None
    first_step: float | None = None
    steady_step: float | None = None
    input_wait: float | None = None
    steps_per_loop: int = 1
    steps: int = 0
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of a run, of one step or of many.

    Attributes:
        value: The value of the last step: the value of a cell's last expression, or what a
            function returns. Per-replica values if it consists of tensors, else the Python value.
        assigned: The names that the cell assigns, with their values after the last step.
        withheld: Names that the cell assigns but keeps: names that are assigned only in loops or
            branches over tensors, tapes, iterators, and functions that need any of these.
        history: The plotted values.
        steps: The number of steps made.
        stopped: Whether an interrupt ended the run early.
        trace_reason: Why TensorFlow traced the step in this run; None if it was traced before.
        timings: The times of the run.
    """

    value: Any
    assigned: Mapping[str, Any]
    withheld: tuple[str, ...]
    history: History
    steps: int
    stopped: bool
    trace_reason: str | None
    timings: Timings

    @property
    def traced(self) -> bool:
        """True if TensorFlow traced the step in this run."""
        return self.trace_reason is not None
