"""Marks for the tests that take long: `make test` leaves them to `make test-thorough`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

THOROUGH = pytest.mark.thorough
"""The mark of slow tests that find little: further sizes, releases and front ends."""


def thorough(values: Iterable[Any]) -> list[Any]:
    """Mark parameters whose cases only `make test-thorough` runs.

    Args:
        values: The parameters, or tuples of them if the test takes several.
    """
    cases = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*case, marks=THOROUGH) for case in cases]
