"""The forms of answers in JAX. What is run on the virtual TPU is what is compiled."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tpunb.puzzles.comparison import difference, flat, ignored
from tpunb.puzzles.jax_programs import jax_module, refuse_host_work, traced, without_lines
from tpunb.puzzles.puzzle import Attempt, Puzzle
from tpunb.puzzles.refusals import AnswerError

Spec = tuple[str | None, ...]
"""The mesh axis of each axis of an array, as for `jax.sharding.PartitionSpec`."""


@dataclasses.dataclass(frozen=True)
class OnOneCore:
    """A function for one core.

    Attributes:
        needs: Primitives that its program has to have, such as `"pallas_call"`.
    """

    needs: tuple[str, ...] = ()

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Run the function on one device, and return it with abstract arguments."""
        (fn,) = functions(answer, 1)
        jax = jax_module()
        args = tuple(_struct(jax, puzzle, name) for name in puzzle.arguments)
        jaxpr, run = traced(fn, args)
        refuse_host_work(jaxpr, self.needs)
        problem = wrong(puzzle, run, lambda name, value: _typed(jax, puzzle, name, value))
        is_kernel = "pallas_call" in self.needs
        return Attempt(
            problem, run, args, compiling=without_lines if is_kernel else contextlib.nullcontext
        )


@dataclasses.dataclass(frozen=True)
class Jitted(OnOneCore):
    """A function without arguments that returns a `jax.jit`, whose own options count."""

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Run the jitted function on one device, and return it with abstract arguments."""
        (make,) = functions(answer, 1)
        fn = make if hasattr(make, "lower") else make()
        if not hasattr(fn, "lower"):
            raise AnswerError("Return what jax.jit returns, without calling it.")
        return dataclasses.replace(super().attempt(puzzle, (fn,)), fn=fn)


@dataclasses.dataclass(frozen=True)
class OnEachCore:
    """A function that each core runs on its own parts of the arguments: `jax.shard_map`'s.

    Attributes:
        parts: How each argument is cut, in the arguments' order.
        result: How the cores' results are put together.
        axes: The mesh.
    """

    parts: tuple[Spec, ...]
    result: Spec
    axes: tuple[tuple[str, int], ...] = (("core", 8),)

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Run the function on all devices, and return it with abstract arguments."""
        (fn,) = functions(answer, 1)
        jax = jax_module()
        mesh, spec = mesh_of(self.axes), jax.sharding.PartitionSpec
        cut = [spec(*part) for part in self.parts]
        whole = jax.shard_map(fn, mesh=mesh, in_specs=tuple(cut), out_specs=spec(*self.result))
        places = dict(
            zip(puzzle.arguments, (jax.sharding.NamedSharding(mesh, p) for p in cut), strict=True)
        )
        args = tuple(_struct(jax, puzzle, name, sharding) for name, sharding in places.items())
        jaxpr, run = traced(functools.update_wrapper(whole, fn), args)
        refuse_host_work(jaxpr)

        def placed(name: str, value: Any) -> Any:
            return jax.device_put(_typed(jax, puzzle, name, value), places[name])

        return Attempt(wrong(puzzle, run, placed, mesh.size), run, args)


@dataclasses.dataclass(frozen=True)
class Shardings:
    """A function that returns a dict with a `PartitionSpec` for each argument of the puzzle's own.

    Attributes:
        fn: The function. It is not run, because shardings do not change its results.
        axes: The mesh.
    """

    fn: Callable[..., Any]
    axes: tuple[tuple[str, int], ...] = (("core", 8),)

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Return the function with abstract arguments that are cut as the answer says."""
        jax, names = jax_module(), list(puzzle.arguments)
        (choose,) = functions(answer, 1)
        specs = choose()
        if not isinstance(specs, Mapping) or set(specs) != set(names):
            raise AnswerError(f"Return a dict with the keys {', '.join(map(repr, names))}.")
        kind = jax.sharding.PartitionSpec
        if other := [name for name in names if not isinstance(specs[name], kind)]:
            raise AnswerError(f"The value of {other[0]!r} has to be a PartitionSpec, such as P().")
        mesh = mesh_of(self.axes)
        args = tuple(
            _struct(jax, puzzle, name, jax.sharding.NamedSharding(mesh, specs[name]))
            for name in names
        )
        return Attempt(fn=self.fn, args=args)


def functions(answer: Sequence[Any], number: int) -> tuple[Callable[..., Any], ...]:
    """Return the functions of an answer.

    Raises:
        AnswerError: It has another number of functions, or something else.
    """
    if len(answer) != number or not all(map(callable, answer)):
        what = "a function" if number == 1 else f"{number} functions"
        raise AnswerError(f"Give `check` {what} after the puzzle's name, without calling it.")
    return tuple(answer)


def mesh_of(axes: Sequence[tuple[str, int]]) -> Any:
    """Return a mesh of the virtual TPU's devices.

    Raises:
        AnswerError: There are too few devices.
    """
    jax = jax_module()
    names, sizes = zip(*axes, strict=True)
    if len(jax.devices()) != math.prod(sizes):
        raise AnswerError(
            f"This puzzle needs {math.prod(sizes)} devices, and JAX has {len(jax.devices())}. "
            "Run: %tpu_connect --simulate v5e-8 --framework jax --judge off"
        )
    kinds = (jax.sharding.AxisType.Auto,) * len(names)
    return jax.make_mesh(sizes, names, axis_types=kinds)


def wrong(
    puzzle: Puzzle,
    run: Callable[..., Any],
    placed: Callable[[str, Any], Any],
    cores: int = 1,
) -> str:
    """Return what is wrong with the results of a function for random arguments; or `""`.

    Args:
        puzzle: The puzzle.
        run: The function.
        placed: Returns an argument on the devices, for its name and numbers.
        cores: The number of cores that compute together.
    """
    arguments = {name: placed(name, value) for name, value in puzzle.random_arguments().items()}
    got = run(*arguments.values())
    right = puzzle.spec(*(_wide(value) for value in arguments.values()))
    problem = difference(
        _numbers(got), right, cores=cores, tolerance=puzzle.tolerance, hint=puzzle.hint
    )
    if not problem or not all(np.isfinite(array).all() for array in flat(_numbers(got))):
        return problem
    others = puzzle.random_arguments()
    unused = [
        name
        for name in arguments
        if _equal(got, run(*{**arguments, name: placed(name, others[name])}.values()))
    ]
    return " ".join(filter(None, (problem, ignored(unused))))


def _equal(one: Any, other: Any) -> bool:
    return all(map(np.array_equal, flat(_numbers(one)), flat(_numbers(other))))


def _numbers(nest: Any) -> Any:
    """Return the results as arrays of NumPy."""
    jax = jax_module()
    return [np.asarray(leaf, "float64") for leaf in jax.tree_util.tree_leaves(nest)]


def _wide(value: Any) -> np.ndarray[Any, Any]:
    """Return an argument as the spec takes it: integers, or rounded numbers as float64."""
    array = np.asarray(value)
    return array if array.dtype.kind in "iu" else array.astype("float64")


def _typed(jax: Any, puzzle: Puzzle, name: str, value: Any) -> Any:
    return jax.numpy.asarray(value, puzzle.arguments[name].dtype)


def _struct(jax: Any, puzzle: Puzzle, name: str, sharding: Any = None) -> Any:
    array = puzzle.arguments[name]
    return jax.ShapeDtypeStruct(array.shape, jax.numpy.dtype(array.dtype), sharding=sharding)
