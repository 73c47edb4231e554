"""Calls that know no time limit of their own, with one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["bounded"]

_Value = TypeVar("_Value")


def bounded(call: Callable[[], _Value], deadline: float) -> _Value:
    """Calls something that may take too long, in a thread that is left behind if it does.

    Args:
        call: What to call.
        deadline: By `time.monotonic`.

    Raises:
        TimeoutError: It took too long.
        Exception: What the call raises.
    """
    values: list[_Value] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            values.append(call())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="tpunb", daemon=True)
    thread.start()
    thread.join(max(0.05, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    if not values:
        raise TimeoutError("it does not answer in time")
    return values[0]
