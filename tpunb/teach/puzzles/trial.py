"""The trial of an answer: its results for random arguments, beside the right results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tpunb.teach.puzzles.comparison import are_equal, ignored
from tpunb.teach.puzzles.framework import Numbers
from tpunb.teach.puzzles.puzzle import Puzzle

_TRIALS = ((20261, 1.0), (None, 4.0))
"""For each trial the seed, and by how much its tolerance is wider.

The first trial decides about rounding, and so always decides the same. The second has numbers that
nobody knows before, and finds constants and other answers that are right for known numbers only.
"""


def wrong(
    puzzle: Puzzle,
    run: Callable[..., list[Numbers]],
    right: Callable[..., Any],
    cores: int = 1,
) -> str:
    """Return what is wrong with the results of an answer for random arguments; or `""`.

    Args:
        puzzle: The puzzle.
        run: Returns the results for arrays of NumPy.
        right: Returns the right results for these arrays.
        cores: The number of cores that compute together.
    """
    for seed, slack in _TRIALS:
        arguments = puzzle.random_arguments(seed)
        got = run(*arguments)
        problem = puzzle.difference(got, right(*map(wide, arguments)), cores, slack)
        if problem:
            finite = all(np.isfinite(array).all() for array in got)
            return f"{problem} {_unused(puzzle, run, arguments) if finite else ''}".rstrip()
    return ""


def _unused(puzzle: Puzzle, run: Callable[..., list[Numbers]], arguments: list[Numbers]) -> str:
    """Return the sentence that results do not depend on some arguments; or `""`."""
    got, others, unused = run(*arguments), puzzle.random_arguments(), []
    for place, name in enumerate(puzzle.arguments):
        changed = [*arguments[:place], others[place], *arguments[place + 1 :]]
        if are_equal(got, run(*changed)):
            unused.append(name)
    return ignored(unused)


def wide(array: Numbers) -> Numbers:
    """Return an array as the right results are computed: integers, or float64."""
    return array if array.dtype.kind in "iu" else array.astype("float64")
