"""Whole numbers in users' input."""

from __future__ import annotations

import numbers


def is_whole(number: object) -> bool:
    """Whether something is an integer, Python's or NumPy's, and no bool."""
    return isinstance(number, numbers.Integral) and not isinstance(number, bool)
