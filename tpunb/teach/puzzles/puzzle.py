"""A puzzle: what an answer computes, what its program may cost, and the best known program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tpunb.teach.puzzles.comparison import difference
from tpunb.teach.puzzles.figures import Figure

Numbers = np.ndarray[Any, Any]


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
    form: Any
    score: Figure
    best: float
    limits: tuple[Limit, ...] = ()
    hint: str = ""
    tolerance: float = 1e-3

    @property
    def timed(self) -> bool:
        """True if the compiler has to estimate the time."""
        return self.score.timed or any(limit.figure.timed for limit in self.limits)

    @property
    def typical(self) -> list[Numbers]:
        """Arguments of the right types, whose numbers do not count and take no memory."""
        return [
            np.broadcast_to(np.zeros((), each.dtype), each.shape)
            for each in self.arguments.values()
        ]

    def difference(self, got: Any, right: Any, cores: int = 1, slack: float = 1.0) -> str:
        """Return how results differ from the right results; empty if by rounding only."""
        return difference(got, right, cores=cores, tolerance=slack * self.tolerance, hint=self.hint)

    def random_arguments(self, seed: int | None = None) -> list[Numbers]:
        """Return random arguments: with a seed the same, otherwise others in each call."""
        chance = np.random.default_rng(seed)
        return [each.random(chance) for each in self.arguments.values()]
