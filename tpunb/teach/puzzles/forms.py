"""The forms of answers. Each is sent as plain data to the judge, which has no code of the answer's.

A program is traced once. A function on the host only arranges numbers, so a table of places says
what it does.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tpunb._util.units import counted
from tpunb.compiler.ask.compile_settings import CompileOptions
from tpunb.compiler.program import TpuProgram
from tpunb.teach.puzzles.comparison import are_equal
from tpunb.teach.puzzles.framework import AnswerError, Framework, Numbers, Traced
from tpunb.teach.puzzles.puzzle import Puzzle
from tpunb.teach.puzzles.trial import wide, wrong

Data = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """An answer that was run.

    Attributes:
        problem: Why the answer is wrong, and what may help; empty if it is right.
        compiled: Compiles its program.
    """

    problem: str
    compiled: Callable[[CompileOptions], TpuProgram]


class Form(Protocol):
    """The form of an answer."""

    @property
    def framework(self) -> Framework:
        """The framework, and the cores."""

    def data(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Data:
        """Return an answer as plain data.

        Raises:
            Exception: The error of the answer.
        """

    def attempt(self, puzzle: Puzzle, data: Data) -> Attempt:
        """Run an answer on random arguments, and compare its results with the puzzle's.

        Raises:
            AnswerError: The data are no answer to the puzzle.
        """


@dataclasses.dataclass(frozen=True)
class OneFunction:
    """A function, or in JAX a function without arguments that returns a `jax.jit`."""

    framework: Framework

    def data(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Data:
        """Trace the function."""
        (fn,) = functions(answer, 1)
        if getattr(self.framework, "jitted", False):
            fn = fn if hasattr(fn, "lower") else fn()
            if not hasattr(fn, "lower"):
                raise AnswerError("Return what jax.jit returns, without calling it.")
        return {"program": self.framework.traced(fn, puzzle.typical)}

    def attempt(self, puzzle: Puzzle, data: Data) -> Attempt:
        """Run the program."""
        run = self.framework.runner(data["program"], puzzle.typical)
        problem = wrong(puzzle, run, puzzle.spec, self.framework.cores)
        return attempt_at(self.framework, data["program"], puzzle.typical, problem)


@dataclasses.dataclass(frozen=True)
class Packed:
    """`pack(x)`, which stores the first argument another way, and `step(packed, …)`.

    A step of packed numbers is right if it gives the packed results of the spec. The pair needs no
    way back, and the numbers of the argument have to be among the packed numbers.
    """

    framework: Framework

    def data(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Data:
        """Find out where `pack` puts each number, and trace the step."""
        pack, step = functions(answer, 2)
        first, *rest = puzzle.typical
        packed = pack(first.copy())
        return {
            "pack": arrangement(pack, first.shape),
            "program": self.framework.traced(step, [packed, *rest]),
        }

    def attempt(self, puzzle: Puzzle, data: Data) -> Attempt:
        """Run the step on packed numbers."""
        pack = functools.partial(arranged, data["pack"])
        first, *rest = puzzle.typical
        kept = np.concatenate([np.ravel(each["places"]) for each in data["pack"]] or [np.zeros(0)])
        if len(np.unique(kept[kept >= 0])) < first.size:
            raise AnswerError(
                "`pack` loses numbers. Pack all of them, as float32, in any order and number of "
                "arrays."
            )
        leaves = [*pack(first), *rest]
        run = self.framework.runner(data["program"], leaves)

        def packed_right(first: Numbers, *rest: Numbers) -> list[Numbers]:
            right = puzzle.spec(first, *rest)
            return [wide(each) for each in pack(np.asarray(right, "float32"))]

        problem = wrong(puzzle, lambda x, *rest: run(*pack(x), *rest), packed_right)
        return attempt_at(self.framework, data["program"], leaves, problem)


@dataclasses.dataclass(frozen=True)
class AnySize:
    """`prepare(rows)` on the host, and `step(w, prepared)`, for each number of rows.

    `step` is compiled once for each shape that `prepare` returns. `prepare` cannot do the work,
    because it does not get the other argument.
    """

    framework: Framework

    def data(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Data:
        """Find out what `prepare` does for each number of rows, and trace the step."""
        prepare, step = functions(answer, 2)
        rows, weights = puzzle.typical
        sizes = range(1, len(rows) + 1)
        found = [arrangement(prepare, (size, *rows.shape[1:])) for size in sizes]
        shapes = {str([(np.shape(a["places"]), a["dtype"]) for a in each]) for each in found}
        if len(shapes) > 1:
            raise AnswerError(_other_shapes(len(shapes)))
        return {
            "prepare": found,
            "program": self.framework.traced(step, [weights, prepare(rows.copy())]),
        }

    def attempt(self, puzzle: Puzzle, data: Data) -> Attempt:
        """Run the step for all numbers of rows."""
        rows, weights = puzzle.typical
        leaves = [weights, *arranged(data["prepare"][-1], rows)]
        run = self.framework.runner(data["program"], leaves)
        for size in range(len(rows), 0, -1):
            prepare = functools.partial(arranged, data["prepare"][size - 1])

            def step(rows: Numbers, weights: Numbers, prepare: Any = prepare, n: int = size) -> Any:
                return run(weights, *prepare(rows[:n]))

            def right(rows: Numbers, weights: Numbers, n: int = size) -> Any:
                return puzzle.spec(rows[:n], weights)

            if problem := wrong(puzzle, step, right):
                problem = f"With {counted(size, 'row')}: {problem}"
                break
        return attempt_at(self.framework, data["program"], leaves, problem)


def attempt_at(
    framework: Framework, program: Traced, leaves: Sequence[Numbers], problem: str = ""
) -> Attempt:
    """Return the attempt of a program."""
    return Attempt(problem, functools.partial(framework.compiled, program, leaves))


def functions(answer: Sequence[Any], number: int) -> tuple[Callable[..., Any], ...]:
    """Return the functions of an answer.

    Raises:
        AnswerError: It has another number of functions, or something else.
    """
    if len(answer) != number or not all(map(callable, answer)):
        what = "a function" if number == 1 else f"{number} functions"
        raise AnswerError(f"Give `check` {what} after the puzzle's name, without calling it.")
    return tuple(answer)


_DIGIT = 64
"""The base of the digits of a place. All types of numbers hold them exactly, also bfloat16."""


def arrangement(fn: Callable[..., Any], shape: tuple[int, ...]) -> list[Data]:
    """Return what a function that only arranges numbers does with an array of a shape.

    The function runs on numbers that are the digits of their places. A number that is the same for
    each digit, and for its negative, is a constant.

    Args:
        fn: The function. It returns arrays of NumPy, or a nest of them.
        shape: The shape of its argument.

    Returns:
        For each array: by number, the place in the argument, or -1; the constants; the type.

    Raises:
        AnswerError: It does something else.
    """
    size = int(np.prod(shape))
    powers = [_DIGIT**power for power in range(math.ceil(math.log(size, _DIGIT)) or 1)]
    places = np.arange(size, dtype="int32").reshape(shape)
    there = [_run(fn, places // power % _DIGIT + 1) for power in powers]
    back = _run(fn, -(places % _DIGIT) - 1)
    found = []
    for number, once in enumerate(there[0]):
        fixed = once == back[number]
        digits = [
            power * (each[number].astype("int64") - 1)
            for power, each in zip(powers, there, strict=True)
        ]
        place = np.where(fixed, -1, sum(digits)).clip(-1, size - 1).astype("int32")
        constants = np.where(fixed, once, 0).astype("float32") if fixed.any() else np.float32(0)
        found.append({"places": place, "constants": constants, "dtype": once.dtype.name})
    example = np.random.default_rng().normal(size=shape).astype("float32")
    if not are_equal(_run(fn, example), arranged(found, example)):
        raise AnswerError(
            f"`{getattr(fn, '__name__', 'the function')}` has to put the numbers of its argument "
            "into arrays, unchanged, and may add constants. It may not compute with them."
        )
    return found


def arranged(arrangement: Sequence[Data], array: Numbers) -> list[Numbers]:
    """Return the arrays into which an arrangement puts the numbers of an array."""
    numbers = np.append(np.ravel(array), np.zeros((), array.dtype))  # the place -1 is the zero
    return [
        (numbers[np.asarray(each["places"])] + each["constants"]).astype(each["dtype"])
        for each in arrangement
    ]


def _run(fn: Callable[..., Any], array: Numbers) -> list[Numbers]:
    return [np.asarray(leaf) for leaf in _leaves(fn(array.astype("float32")))]


def _leaves(nest: Any) -> Iterator[Any]:
    """Yield the arrays in a nest, in the order of JAX and TensorFlow."""
    if isinstance(nest, Mapping):
        nest = [nest[key] for key in sorted(nest)]
    if isinstance(nest, list | tuple):
        for each in nest:
            yield from _leaves(each)
    else:
        yield nest


def _other_shapes(programs: int) -> str:
    return (
        f"{counted(programs, 'program')}, because `prepare` returns other shapes for other numbers "
        "of rows. Each shape is compiled for itself, so return the same shapes, and say in another "
        "array which rows count."
    )
