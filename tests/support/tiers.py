"""Marks for the tests that take long: `make test` leaves them to `make test-thorough`."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest

THOROUGH = pytest.mark.thorough
"""The mark of slow tests that find little: further sizes and releases, and no branches of their own."""


def thorough(values: Iterable[Any]) -> list[Any]:
    """Mark parameters whose cases only `make test-thorough` runs.

    Args:
        values: The parameters, or tuples of them if the test takes several.
    """
    cases = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*case, marks=THOROUGH) for case in cases]


def thorough_except(quick: Container[Any], values: Iterable[Any]) -> list[Any]:
    """Return the parameters in their order, and mark those that are not quick, as `thorough` does.

    Args:
        quick: The parameters whose cases `make test` runs.
        values: All parameters, or tuples of them if the test takes several.
    """
    return [value if value in quick else thorough([value])[0] for value in values]
