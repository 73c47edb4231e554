"""What runs take: of a cell, and of many steps, which may wait for their batches."""

from __future__ import annotations

import math
from dataclasses import dataclass


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


TARGET = 0.25
"""Seconds that a loop should take: long for the host, short for a person who has pressed stop."""

_TRIAL = 0.05  # seconds of the first loops, while few steps are measured
_SLOW = 0.05  # seconds of a step from which on the host's part is nothing
_MEASURED = 2  # single steps, without the one that is traced
_DIGITS = (1, 1.5, 2, 3, 4, 5, 7)  # loops of at least two thirds of the time that they may take


class StepsPerLoop:
    """Chooses the steps of each call by what the calls before have taken.

    Args:
        fixed: Steps of a call that the user has chosen; None to choose by measuring.
        loopable: Whether several steps can be made in one call at all.

    Attributes:
        steps_per_loop: The choice of the last call; 1 before there were loops.
        step: Seconds of a step at its best, host's part included; None before the second.
    """

    def __init__(self, fixed: int | None, *, loopable: bool) -> None:
        self.steps_per_loop = 1
        self.step: float | None = None
        self._fixed, self._loopable = fixed, loopable
        self._singles = self._measured = 0
        self._trace: float | None = None
        self._loop_step: float | None = None
        self._traced_loop = False

    def choose(self, left: float) -> int:
        """The steps of the next call; the last step of a run is always made alone.

        Args:
            left: How many steps remain.
        """
        room = left - 1
        if not self._loopable or room < 2 or self._singles == 0:
            return 1
        wanted = self._fixed or self._by_measuring(room)
        if wanted > 1:
            self.steps_per_loop = wanted
        return int(min(wanted, room))

    def _by_measuring(self, room: float) -> int:
        if self._measured < _MEASURED or self.step is None or self.step >= _SLOW:
            return 1
        if self._loop_step is not None:
            return _round(TARGET / self._loop_step)
        # A second trace has to pay: it saves perhaps a third of each step.
        if not self._traced_loop and room * self.step / 3 < (self._trace or 0.0):
            return 1
        return max(2, _round(_TRIAL / self.step))

    def took(self, count: int, seconds: float, *, trace: float | None) -> None:
        """Notes what a call has taken.

        Args:
            count: Its steps.
            seconds: Of all of it.
            trace: Seconds that tracing took of these; None if nothing was traced.
        """
        if count == 1:
            self._singles += 1
            if trace is None:
                self._measured += 1
                self.step = min(self.step or math.inf, seconds)
            else:
                self._trace = (self._trace or 0.0) + trace
            return
        self._traced_loop = True
        if trace is None:
            each = seconds / count
            self._loop_step = min(self._loop_step or math.inf, each)
            self.step = min(self.step or math.inf, each)


def _round(number: float) -> int:
    """A round number: the nearest below."""
    if number < 2:
        return 1
    power = 10 ** math.floor(math.log10(number))
    return int(power * max(digit for digit in _DIGITS if digit * power <= number))
