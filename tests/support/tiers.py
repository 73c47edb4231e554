"""Which tests `make test` leaves to `make test-thorough`, because they take long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

THOROUGH = pytest.mark.thorough
"""What takes seconds and finds little that quicker tests do not: further sizes, releases, front ends."""


def thorough(values: Iterable[Any]) -> list[Any]:
    """Mark parameters whose cases only `make test-thorough` runs.

    Args:
        values: A parameter each; or tuples, if the test takes several.
    """
    cases = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*case, marks=THOROUGH) for case in cases]
