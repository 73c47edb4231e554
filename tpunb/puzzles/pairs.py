"""The forms of answers that have two functions: one prepares data, the other computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from tpunb._util.units import counted
from tpunb.puzzles.forms import functions
from tpunb.puzzles.framework import AnswerError, Framework, Numbers
from tpunb.puzzles.puzzle import Attempt, Puzzle
from tpunb.puzzles.trial import wide

_PATIENCE = 4
"""The number of programs after which no further sizes are tried."""


@dataclasses.dataclass(frozen=True)
class Packed:
    """`pack(x)`, which stores the first argument another way, and `step(packed, …)`.

    A step of packed numbers is right if it gives the packed results of the spec. The pair needs no
    way back, and the numbers of the argument have to be among the packed numbers.

    Attributes:
        framework: The framework.
    """

    framework: Framework
    tpu: ClassVar[str] = "v5e-1"

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Run both functions, and return the step with the types of its arguments."""
        pack, step = functions(answer, 2)
        first, *rest = puzzle.random_arguments().values()
        packed = pack(first)
        _refuse_losses(first, self.framework.numbers(packed))
        args = (self.framework.types(packed), *map(self.framework.types, rest))
        run = self.framework.traced(step, args)
        right = pack(np.asarray(puzzle.spec(wide(first), *map(wide, rest)), first.dtype))
        numbers = self.framework.numbers
        problem = puzzle.difference(numbers(run(packed, *rest)), numbers(right))
        return Attempt(problem, run, args)


@dataclasses.dataclass(frozen=True)
class AnySize:
    """`prepare(rows)` on the host, and `step(w, prepared)`, for each number of rows.

    `step` is compiled once for each shape that `prepare` returns. `prepare` cannot do the work,
    because it does not get the other argument.

    Attributes:
        framework: The framework.
    """

    framework: Framework
    tpu: ClassVar[str] = "v5e-1"

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Run both functions for all numbers of rows up to the argument's."""
        prepare, step = functions(answer, 2)
        rows, weights = puzzle.random_arguments().values()
        runs: dict[str, Any] = {}
        for size in _sizes(len(rows)):
            prepared = prepare(rows[:size])
            args = (self.framework.types(weights), self.framework.types(prepared))
            if (key := str(args)) not in runs:
                runs[key] = self.framework.traced(step, args)
            if len(runs) > _PATIENCE:
                break
            got = self.framework.numbers(runs[key](weights, prepared))
            right = puzzle.spec(wide(rows[:size]), wide(weights))
            if problem := puzzle.difference(got, right):
                return Attempt(f"With {counted(size, 'row')}: {problem}")
        if len(runs) > 1:
            return Attempt(_other_shapes(len(runs)))
        return Attempt("", runs[key], args)


def _other_shapes(programs: int) -> str:
    return (
        f"{counted(programs, 'program')} so far, because `prepare` returns other shapes for other "
        "numbers of rows. Each shape is compiled for itself, so return the same shapes, and say in "
        "another array which rows count."
    )


def _sizes(most: int) -> list[int]:
    """Return the numbers of rows to try: all, in an order that begins with the extremes."""
    return [most, 1, *np.random.default_rng().permutation(np.arange(2, most)).tolist()]


def _refuse_losses(original: Numbers, packed: Iterable[Numbers]) -> None:
    """Refuse packed numbers that lack some of the original ones.

    Raises:
        AnswerError: Some are missing.
    """
    kept = np.concatenate([np.ravel(array) for array in packed] or [np.zeros(0)])
    if kept.size < original.size or not np.isin(original, kept.astype(original.dtype)).all():
        raise AnswerError(
            "`pack` loses numbers. Pack all of them, as float32, in any order and number of arrays."
        )
