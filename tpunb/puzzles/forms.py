"""The form of an answer that is one function for one core."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from tpunb.puzzles.framework import AnswerError, Framework
from tpunb.puzzles.puzzle import Attempt, Puzzle
from tpunb.puzzles.trial import wrong


@dataclasses.dataclass(frozen=True)
class OnOneCore:
    """A function for one core.

    Attributes:
        framework: The framework.
    """

    framework: Framework
    tpu: ClassVar[str] = "v5e-1"

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Run the function on one device, and return its program with the arguments' types."""
        (fn,) = functions(answer, 1)
        arrays = puzzle.arguments.values()
        args = tuple(self.framework.type_of(each.shape, each.dtype) for each in arrays)
        run = self.framework.traced(fn, args)
        problem = wrong(puzzle, lambda *arrays: self.framework.numbers(run(*arrays)))
        return Attempt(problem, run, args, compiling=self.framework.compiling)


def functions(answer: Sequence[Any], number: int) -> tuple[Callable[..., Any], ...]:
    """Return the functions of an answer.

    Raises:
        AnswerError: It has another number of functions, or something else.
    """
    if len(answer) != number or not all(map(callable, answer)):
        what = "a function" if number == 1 else f"{number} functions"
        raise AnswerError(f"Give `check` {what} after the puzzle's name, without calling it.")
    return tuple(answer)
