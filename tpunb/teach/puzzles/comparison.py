"""The comparison of an answer's results with the right results, and what a difference means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpunb._util.units import counted, grouped

_CLOSE = 1e-3
"""The largest relative spread of quotients that counts as one factor."""


def are_equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether results are the same arrays."""
    return all(map(np.array_equal, some, others))


def difference(
    got: Any, right: Any, *, cores: int = 1, tolerance: float = 1e-3, hint: str = ""
) -> str:
    """Return how results differ from the right results; empty if the difference is rounding.

    Args:
        got: The results of an answer.
        right: The right results.
        cores: The number of cores, which explains some factors.
        tolerance: The largest difference that is rounding, as a fraction of the largest number.
        hint: What helps against wrong numbers.
    """
    mine, theirs = (
        [np.asarray(array, "float64") for array in (nest if isinstance(nest, list) else [nest])]
        for nest in (got, right)
    )
    if len(mine) != len(theirs):
        return f"It returns {counted(len(mine), 'array')}, and not {len(theirs)}."
    names = ["The result"] if len(mine) == 1 else [f"Result {i + 1}" for i in range(len(mine))]
    pairs = zip(names, mine, theirs, strict=True)
    problems = (_one(*pair, cores, tolerance, hint) for pair in pairs)
    return next(filter(None, problems), "")


def _one(
    name: str,
    got: np.ndarray[Any, Any],
    right: np.ndarray[Any, Any],
    cores: int,
    tolerance: float,
    hint: str,
) -> str:
    if got.shape != right.shape:
        return f"{name} has the shape {got.shape}, and not {right.shape}."
    if not np.isfinite(got).all():
        return f"{name} has numbers that are not finite. {hint}".rstrip()
    scale = float(np.abs(right).max(initial=0)) or 1.0
    wrong = np.abs(got - right) > tolerance * scale
    if not wrong.any():
        return ""
    factor = _factor(got, right, scale)
    meaning = _meaning(factor, cores)
    if factor and (meaning or right.size > 1):
        return f"{name} is {factor:.4g} times the right one. {meaning}".rstrip()
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    return (
        f"{name} is wrong in {grouped(int(wrong.sum()))} of {counted(wrong.size, 'number')}, "
        f"for example {_number(got[place])} instead of {_number(right[place])}"
        f"{f' at {list(place)}' if place else ''}. {hint}"
    ).rstrip()


def _number(value: Any) -> str:
    return f"{float(value):.4g}"


def _factor(got: np.ndarray[Any, Any], right: np.ndarray[Any, Any], scale: float) -> float:
    """Return the number that all right results were multiplied by; 0 if there is none."""
    clear = np.abs(right) > scale / 10
    if clear.sum() < 2 and right.size > 1:
        return 0.0
    quotients = got[clear] / right[clear]
    middle = float(np.median(quotients))
    if not middle or float(np.ptp(quotients)) > _CLOSE * abs(middle):
        return 0.0
    rest = np.abs(got - middle * right) > _CLOSE * scale * max(1.0, abs(middle))
    return 0.0 if rest.any() else middle


def _meaning(factor: float, cores: int) -> str:
    if cores > 1 and math.isclose(factor, cores, rel_tol=_CLOSE):
        return f"A sum over {cores} cores is not divided, or {cores} equal values are added up."
    if cores > 1 and math.isclose(factor, 1 / cores, rel_tol=_CLOSE):
        return f"It is divided by {cores} once too often, or only one core's part counts."
    return ""


def ignored(names: Sequence[str]) -> str:
    """Return the sentence that results do not depend on some arguments; empty without names."""
    listed = " and ".join(f"`{name}`" for name in names)
    return f"It does not depend on {listed}." if names else ""
