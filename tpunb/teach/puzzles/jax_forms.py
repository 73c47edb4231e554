"""The form of answers that only JAX has: shardings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tpunb.teach.puzzles.forms import Attempt, Data, attempt_at, functions
from tpunb.teach.puzzles.framework import AnswerError, Framework
from tpunb.teach.puzzles.jax_programs import JaxOnMesh, jax_module
from tpunb.teach.puzzles.puzzle import Puzzle


class Shardings:
    """A function that returns a dict with a `PartitionSpec` for each argument of the puzzle's spec.

    The spec is a function of JAX. It is not run, because shardings do not change its results.
    """

    framework: ClassVar[Framework] = JaxOnMesh()

    def data(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Data:
        """Return the axes of the mesh for each axis of each argument."""
        (choose,) = functions(answer, 1)
        specs, names = choose(), list(puzzle.arguments)
        if not isinstance(specs, Mapping) or set(specs) != set(names):
            raise AnswerError(f"Return a dict with the keys {', '.join(map(repr, names))}.")
        kind = jax_module().sharding.PartitionSpec
        if other := [name for name in names if not isinstance(specs[name], kind)]:
            raise AnswerError(f"The value of {other[0]!r} has to be a PartitionSpec, such as P().")
        return {"specs": [list(specs[name]) for name in names]}

    def attempt(self, puzzle: Puzzle, data: Data) -> Attempt:
        """Trace the puzzle's spec with arguments that are cut as the answer says."""
        parts: list[Any] = [
            tuple(tuple(axes) if isinstance(axes, list) else axes for axes in spec)
            for spec in data["specs"]
        ]
        framework = JaxOnMesh(parts=tuple(parts))
        program = framework.traced(puzzle.spec, puzzle.typical)
        return attempt_at(framework, program, puzzle.typical)
