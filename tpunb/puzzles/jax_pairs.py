"""The forms of answers in JAX that have two functions: one prepares data, the other computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from tpunb._util.units import counted
from tpunb.puzzles.comparison import difference
from tpunb.puzzles.jax_forms import functions
from tpunb.puzzles.jax_programs import jax_module, refuse_host_work, traced
from tpunb.puzzles.puzzle import Attempt, Puzzle
from tpunb.puzzles.refusals import AnswerError


@dataclasses.dataclass(frozen=True)
class Packed:
    """`pack(x)`, which stores the first argument another way, and `step(packed, …)`.

    A step of packed numbers is right if it gives the packed results of the spec. The pair needs no
    way back, and the numbers of the argument have to be among the packed numbers.
    """

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Run both functions, and return the step with abstract arguments."""
        pack, step = functions(answer, 2)
        jax = jax_module()
        first, *rest = puzzle.random_arguments().values()
        packed = jax.tree_util.tree_map(jax.numpy.asarray, pack(first))
        _refuse_losses(first, _numbers(packed))
        args = tuple(_types((packed, *map(jax.numpy.asarray, rest))))
        program, run = traced(step, args)
        refuse_host_work(program)
        right = pack(np.asarray(puzzle.spec(first, *rest), "float32"))
        got = run(packed, *rest)
        problem = difference(
            _numbers(got), _numbers(right), tolerance=puzzle.tolerance, hint=puzzle.hint
        )
        return Attempt(problem, run, args)


@dataclasses.dataclass(frozen=True)
class AnySize:
    """`prepare(rows)` on the host, and `step(w, prepared)`, for each number of rows.

    `step` is compiled once for each shape that `prepare` returns. `prepare` cannot do the work,
    because it does not get the other argument.

    Attributes:
        programs: The most programs that all sizes may need together.
    """

    programs: int = 1

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Run both functions for all numbers of rows up to the argument's."""
        prepare, step = functions(answer, 2)
        jax = jax_module()
        rows, weights = puzzle.random_arguments().values()
        runs: dict[Any, Any] = {}
        args: tuple[Any, ...] = ()
        for size in _sizes(len(rows)):
            prepared = prepare(rows[:size])
            args = tuple(_types((jax.numpy.asarray(weights), prepared)))
            key = str(jax.tree_util.tree_flatten(args))
            if key not in runs:
                program, runs[key] = traced(step, args)
                refuse_host_work(program)
            if len(runs) > self.programs + _PATIENCE:
                break
            got, right = runs[key](weights, prepared), puzzle.spec(rows[:size], weights)
            if problem := difference(_numbers(got), right, tolerance=puzzle.tolerance):
                return Attempt(f"With {counted(size, 'row')}: {problem} {puzzle.hint}".rstrip())
        if len(runs) > self.programs:
            return Attempt(
                f"{counted(len(runs), 'program')} so far, because `prepare` returns other shapes "
                "for other numbers of rows. Each shape is compiled for itself, so return the same "
                "shapes, and say in another array which rows count."
            )
        return Attempt(fn=runs[key], args=args)


_PATIENCE = 3
"""The programs beyond the limit after which no further sizes are tried."""


def _sizes(most: int) -> list[int]:
    """Return the numbers of rows to try: all, in an order that begins with the extremes."""
    return [most, 1, *np.random.default_rng().permutation(np.arange(2, most)).tolist()]


def _refuse_losses(original: np.ndarray[Any, Any], packed: Iterable[Any]) -> None:
    """Refuse packed numbers that lack some of the original ones.

    Raises:
        AnswerError: Some are missing.
    """
    kept = np.concatenate([np.ravel(array) for array in packed] or [np.zeros(0)])
    lost = ~np.isin(original, kept.astype(original.dtype))
    if kept.size < original.size or lost.any():
        raise AnswerError(
            "`pack` loses numbers. Pack all of them, as float32, in any order and number of arrays."
        )


def _types(nest: Any) -> Any:
    """Return the types of nested arrays."""
    jax = jax_module()

    def kind(value: Any) -> Any:
        array = jax.numpy.asarray(value)
        return jax.ShapeDtypeStruct(array.shape, array.dtype)

    return jax.tree_util.tree_map(kind, nest)


def _numbers(nest: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(leaf, "float64") for leaf in jax_module().tree_util.tree_leaves(nest)]
