"""The number of steps in one call, chosen by measuring."""

from __future__ import annotations

import math

_TARGET = 0.25
"""Seconds that a loop should take: long for the host, short for a user who presses stop."""

_TRIAL = 0.05  # seconds of the first loops, while few steps are measured
_SLOW = 0.05  # seconds of a step for which the host's part no longer counts
_MEASURED = 2  # single steps, without the traced step
_DIGITS = (1, 1.5, 2, 3, 4, 5, 7)  # rounded down so, a loop takes at least two thirds of its time


_FEWEST_WITH_LOOP = 4


class StepsPerLoop:
    """A choice of the steps in each call, by the measured times of earlier calls.

    Args:
        fixed: The number of steps in a call that the user has chosen; None to choose by measuring.
        loopable: Whether one call can make several steps at all.

    Attributes:
        steps_per_loop: The choice of the last call; 1 before there were loops.
        step: Seconds of the fastest step, host's part included; None before the second step.
    """

    def __init__(self, fixed: int | None, *, loopable: bool) -> None:
        self.steps_per_loop = 1
        self.step: float | None = None
        self._fixed, self._loopable = fixed, loopable
        self._singles = self._measured = 0
        self._trace: float | None = None
        self._loop_step: float | None = None
        self._traced_loop = False

    def may_loop(self, left: float) -> bool:
        """Return whether a run with so many steps left may make several steps in one call."""
        # The first and the last step are made alone.
        return self._loopable and self._fixed != 1 and left >= _FEWEST_WITH_LOOP

    def choose(self, left: float) -> int:
        """Return the number of steps of the next call; a run's last step is always made alone."""
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
            return _rounded_down(_TARGET / self._loop_step)
        # A second trace must save more than it costs: it saves about a third of each step.
        if not self._traced_loop and room * self.step / 3 < (self._trace or 0.0):
            return 1
        return max(2, _rounded_down(_TRIAL / self.step))

    def took(self, count: int, seconds: float, *, trace: float | None) -> None:
        """Note the seconds of a call, and the part of them that tracing took."""
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
            step_seconds = seconds / count
            self._loop_step = min(self._loop_step or math.inf, step_seconds)
            self.step = min(self.step or math.inf, step_seconds)


def _rounded_down(number: float) -> int:
    """Return the nearest round number below."""
    if number < 2:
        return 1
    power = 10 ** math.floor(math.log10(number))
    return int(power * max(digit for digit in _DIGITS if digit * power <= number))
