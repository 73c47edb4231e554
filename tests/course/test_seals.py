"""Seals: equal values have equal seals, and other values have others."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tpunb.course import seal


@pytest.mark.parametrize(
    "same", [0.125, 1 / 8, Fraction(1, 8), Decimal("0.125"), np.float32(0.125)]
)
def test_numbers_of_different_types_have_one_seal(same: Any) -> None:
    assert seal(same, "ratio") == seal(0.125, "ratio")


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (64, np.int64(64)),
        (64, 64.0),
        ({"b": 1, "a": 2}, {"a": 2.0, "b": 1}),
        ({"a", "b"}, {"b", "a"}),
        (("sorted", False), ["sorted", np.bool_(False)]),
        (0.0, -0.0),
    ],
)
def test_equal_values_have_one_seal(value: Any, same: Any) -> None:
    assert seal(value, "x") == seal(same, "x")


@pytest.mark.parametrize("other", [2, "1", True, [1], {1}, None.__class__.__name__])
def test_other_values_have_other_seals(other: Any) -> None:
    assert seal(other, "x") != seal(1, "x")


def test_the_salt_changes_the_seal() -> None:
    assert seal(1, "x") != seal(1, "y")


@pytest.mark.parametrize("value", [None, np.ones(2), object()])
def test_other_objects_have_no_seal(value: Any) -> None:
    with pytest.raises(TypeError):
        seal(value, "x")
