"""How long tests wait for what has to happen, and how what takes too long is told.

No verdict depends on how fast the machine is or what else it does: a test waits for an
event, and what it says of costs it counts. The limit here ends what would never end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 600
"""Seconds after which what has not happened never will."""


def wait_until(condition: Callable[[], object]) -> None:
    """Returns as soon as something holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never holds"
        time.sleep(0.01)


def at_last(attempt: Callable[[float], T], succeeds: Callable[[T], bool], limit: float = 1) -> T:
    """What an attempt gives with the first time limit that lets it succeed, or the longest.

    For attempts in which somebody answers and somebody never does: how long the one takes
    depends on the machine, and the other always takes all the time that there is.

    Args:
        attempt: Takes a time limit in seconds.
        succeeds: Whether it was enough.
        limit: The first one.
    """
    while True:
        found = attempt(limit)
        if succeeds(found) or limit * 4 > PATIENCE:
            return found
        limit *= 4


def calls(function: Callable[[], Any]) -> int:
    """How many functions are called while one runs: what it costs, on any machine."""
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
