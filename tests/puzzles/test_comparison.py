"""How results differ from the right results, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tpunb.teach.puzzles.comparison import difference

RIGHT = np.linspace(-1.0, 2.0, 12).reshape(3, 4)


def with_one_wrong() -> Any:
    wrong = RIGHT.copy()
    wrong[1, 2] = 7
    return wrong


@pytest.mark.parametrize(
    ("got", "said"),
    [
        (RIGHT + 1e-5, ""),
        ([RIGHT], ""),
        (RIGHT.T, "The result has the shape (4, 3), and not (3, 4)."),
        ([RIGHT, RIGHT], "It returns 2 arrays, and not 1."),
        ([], "It returns 0 arrays, and not 1."),
        (np.inf * (RIGHT + 3), "numbers that are not finite"),
        (8 * RIGHT, "8 times the right one. A sum over 8 cores is not divided"),
        (RIGHT / 8, "It is divided by 8 once too often"),
        (3 * RIGHT, "The result is 3 times the right one."),
        (
            with_one_wrong(),
            "wrong in 1 of 12 numbers, for example 7 instead of 0.6364 at [1, 2]. Ah",
        ),
        (0 * RIGHT, "wrong in 12 of 12 numbers"),
        (RIGHT + 1, "wrong in 12 of 12 numbers"),
    ],
)
def test_a_difference_is_explained(got: Any, said: str) -> None:
    text = difference(got, RIGHT, cores=8, hint="Ah.")
    assert said in text
    assert bool(said) == bool(text)


def test_a_scalar_is_a_multiple_only_if_that_means_something() -> None:
    assert "3 instead of 2" in difference(3.0, 2.0, cores=8)
    assert "8 times the right one" in difference(16.0, 2.0, cores=8)


def test_each_result_is_named() -> None:
    assert difference([1.0, 5.0], [1.0, 2.0]).startswith("Result 2 is wrong")
