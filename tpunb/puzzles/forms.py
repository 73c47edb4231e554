"""The form of an answer that is one function for one core."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from tpunb.puzzles.framework import Framework
from tpunb.puzzles.puzzle import Attempt, Puzzle
from tpunb.puzzles.refusals import AnswerError
from tpunb.puzzles.trial import wrong


@dataclasses.dataclass(frozen=True)
class OnOneCore:
    """A function for one core.

    Attributes:
        framework: The framework.
        needs: Primitives that its program has to have, such as `"pallas_call"`.
    """

    framework: Framework
    needs: tuple[str, ...] = ()

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Run the function on one device, and return its program with the arguments' types."""
        (fn,) = functions(answer, 1)
        args = types_of_arguments(self.framework, puzzle)
        run = self.framework.traced(fn, args, self.needs)
        problem = wrong(puzzle, lambda *arrays: self.framework.numbers(run(*arrays)))
        compiling = functools.partial(self.framework.compiling, self.needs)
        return Attempt(problem, run, args, compiling=compiling)


def functions(answer: Sequence[Any], number: int) -> tuple[Callable[..., Any], ...]:
    """Return the functions of an answer.

    Raises:
        AnswerError: It has another number of functions, or something else.
    """
    if len(answer) != number or not all(map(callable, answer)):
        what = "a function" if number == 1 else f"{number} functions"
        raise AnswerError(f"Give `check` {what} after the puzzle's name, without calling it.")
    return tuple(answer)


def types_of_arguments(framework: Framework, puzzle: Puzzle) -> tuple[Any, ...]:
    """Return the types of a puzzle's arguments, in their order."""
    return tuple(framework.type_of(each.shape, each.dtype) for each in puzzle.arguments.values())
