"""The strategy of the open connection, with which a check is made if no other is named."""

from __future__ import annotations

import weakref
from typing import Any

_held: list[weakref.ref[Any]] = []


def remember(strategy: Any) -> None:
    """Makes a strategy the current one, for as long as it lives."""
    _held[:] = [weakref.ref(strategy)]


def forget(strategy: Any) -> None:
    """Leaves no current strategy if it is this one."""
    if get() is strategy:
        _held.clear()


def get() -> Any:
    """The strategy that was remembered last, or None."""
    return _held[0]() if _held else None
