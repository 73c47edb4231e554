"""A puzzle: what an answer computes, what its program may cost, and the best known program."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from tpunb.puzzles.comparison import difference
from tpunb.puzzles.figures import Figure


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """An argument of an answer.

    Attributes:
        shape: Its sizes on all cores together.
        dtype: Its type. Integers lie between 0 and `below`.
        below: The bound of integers.
        scale: The standard deviation of other numbers.
        drifts: Whether each eighth of the rows, and so each core's part, has a mean of its own.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    below: int = 0
    scale: float = 1.0
    drifts: bool = False

    def random(self, chance: np.random.Generator) -> np.ndarray[Any, Any]:
        """Return an array with random numbers, in a type of NumPy."""
        if self.below:
            return chance.integers(0, self.below, self.shape).astype(self.dtype)
        values = chance.normal(scale=self.scale, size=self.shape)
        if self.drifts:
            means = chance.normal(size=_PARTS).repeat(self.shape[0] // _PARTS)
            values += means.reshape(-1, *(1 for _ in self.shape[1:]))
        return values.astype("float32")


_PARTS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """A limit on a figure of the compiled program.

    Attributes:
        figure: The figure.
        most: Its largest value.
        hint: What helps an answer that exceeds it, without giving the solution away.
    """

    figure: Figure
    most: float
    hint: str


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """An answer that was run.

    Attributes:
        problem: Why the answer is wrong, and what may help; empty if it is right.
        fn: The function to compile; None if the answer is wrong.
        args: Its arguments, as the compiler takes them.
        strategy: The strategy of a TensorFlow function.
        compiling: Returns the context in which to compile it.
    """

    problem: str = ""
    fn: Any = None
    args: tuple[Any, ...] = ()
    strategy: Any = None
    compiling: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


class Form(Protocol):
    """The form of an answer: one function, shardings, or two functions.

    Attributes:
        tpu: The TPU type that the compiler compiles for.
    """

    tpu: ClassVar[str]

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Run an answer on random arguments, and compare its results with the puzzle's.

        Raises:
            Exception: The error of the answer.
        """


@dataclasses.dataclass(frozen=True)
class Puzzle:
    """A puzzle.

    Attributes:
        name: Its name in `tpunb.puzzles.check`.
        spec: Computes the right results with NumPy.
        arguments: The arguments by name, in the order in which an answer takes them.
        form: The form of the answer.
        score: The figure that the score compares.
        best: Its value in the best known solution.
        limits: The limits of the program.
        hint: What helps an answer with wrong results.
        tolerance: The largest difference to the right results that is rounding, as a fraction of
            the largest number.
    """

    name: str
    spec: Callable[..., Any]
    arguments: Mapping[str, Array]
    form: Form
    score: Figure
    best: float
    limits: tuple[Limit, ...] = ()
    hint: str = ""
    tolerance: float = 1e-3

    @property
    def timed(self) -> bool:
        """True if the compiler has to estimate the time."""
        return self.score.timed or any(limit.figure.timed for limit in self.limits)

    def difference(self, got: Any, right: Any, cores: int = 1) -> str:
        """Return how results differ from the right results; empty if by rounding only."""
        return difference(got, right, cores=cores, tolerance=self.tolerance, hint=self.hint)

    def random_arguments(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return other random arguments in each call."""
        chance = np.random.default_rng()
        return {name: each.random(chance) for name, each in self.arguments.items()}
