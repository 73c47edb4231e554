"""Whole numbers in users' input."""

from __future__ import annotations

import numbers


def is_whole(number: object) -> bool:
    """Returns whether something is an integer, Python's or NumPy's, but not a bool."""
    return isinstance(number, numbers.Integral) and not isinstance(number, bool)
