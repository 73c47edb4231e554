"""The strategy of the open connection, with which a check is made if no other is named."""

from __future__ import annotations

import weakref
from typing import Any

_held: list[weakref.ref[Any]] = []


def remember(strategy: Any) -> None:
    """Keeps a strategy in mind, for as long as it lives."""
    _held[:] = [weakref.ref(strategy)]


def forget(strategy: Any) -> None:
    """Puts a strategy out of mind if it is the one."""
    if latest() is strategy:
        _held.clear()


def latest() -> Any:
    """The strategy that was remembered last, or None."""
    return _held[0]() if _held else None
