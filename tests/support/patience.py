"""Waiting in tests, and counting what code costs.

No result depends on the speed or the load of the machine: a test waits for an event, and counts
calls instead of measuring time. The time limit here only ends waits that would never end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 600
"""Seconds after which a wait fails."""


def wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.01)


def at_last(attempt: Callable[[float], T], succeeds: Callable[[T], bool], limit: float = 1) -> T:
    """Repeat an attempt with longer time limits until it succeeds, and return its result.

    For attempts in which one server answers and another never does. The time that the answer takes
    depends on the machine, and the silent server always takes the whole limit.

    Args:
        attempt: Takes a time limit in seconds.
        succeeds: Whether a result is good enough.
        limit: The first time limit.
    """
    while True:
        result = attempt(limit)
        if succeeds(result) or limit * 4 > PATIENCE:
            return result
        limit *= 4


def calls(function: Callable[[], Any]) -> int:
    """Return how many functions a call runs: its cost, on any machine."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
