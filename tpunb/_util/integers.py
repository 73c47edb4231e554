"""Whole numbers in users' input."""

from __future__ import annotations

import numbers


def is_whole(number: object) -> bool:
    """Return whether a value is an integer of Python or NumPy, but not a bool."""
    return isinstance(number, numbers.Integral) and not isinstance(number, bool)
