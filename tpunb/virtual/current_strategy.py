"""The strategy of the open connection: the default for checks."""

from __future__ import annotations

import weakref
from typing import Any

_current: list[weakref.ref[Any]] = []


def remember(strategy: Any) -> None:
    """Make a strategy the current strategy for as long as it lives."""
    _current[:] = [weakref.ref(strategy)]


def forget(strategy: Any) -> None:
    """Forget the current strategy if it is this strategy."""
    if get() is strategy:
        _current.clear()


def get() -> Any:
    """Return the strategy that was remembered last, or None."""
    return _current[0]() if _current else None
