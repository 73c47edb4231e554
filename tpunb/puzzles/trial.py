"""The trial of an answer: its results for random arguments, beside the right results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tpunb.puzzles.comparison import are_equal, ignored
from tpunb.puzzles.framework import Numbers
from tpunb.puzzles.puzzle import Puzzle


def wrong(puzzle: Puzzle, run: Callable[..., list[Numbers]], cores: int = 1) -> str:
    """Return what is wrong with the results of an answer for random arguments; or `""`.

    Args:
        puzzle: The puzzle.
        run: Returns the results for arrays of NumPy.
        cores: The number of cores that compute together.
    """
    arguments = puzzle.random_arguments()
    got = run(*arguments.values())
    right = puzzle.spec(*map(wide, arguments.values()))
    problem = puzzle.difference(got, right, cores)
    if not problem or not all(np.isfinite(array).all() for array in got):
        return problem
    others = puzzle.random_arguments()
    changed = {name: {**arguments, name: others[name]}.values() for name in arguments}
    unused = [name for name, arrays in changed.items() if are_equal(got, run(*arrays))]
    return " ".join(filter(None, (problem, ignored(unused))))


def wide(array: Numbers) -> Numbers:
    """Return an array as the right results are computed: integers, or float64."""
    return array if array.dtype.kind in "iu" else array.astype("float64")
