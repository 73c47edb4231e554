"""The forms of answers that only JAX has: a part for each core, shardings, and `jax.jit` itself."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tpunb.puzzles.forms import OnOneCore, functions
from tpunb.puzzles.framework import AnswerError, Numbers
from tpunb.puzzles.jax_programs import Jax, jax_module
from tpunb.puzzles.puzzle import Attempt, Puzzle
from tpunb.puzzles.trial import wrong

Spec = tuple[str | None, ...]
"""The mesh axis of each axis of an array, as for `jax.sharding.PartitionSpec`."""

CORES = 8
"""The cores of the mesh, whose axis is `"core"`."""


@dataclasses.dataclass(frozen=True)
class OnEachCore:
    """A function that each core runs on its own parts of the arguments: `jax.shard_map`'s.

    Attributes:
        parts: How each argument is cut, in the arguments' order.
        result: How the cores' results are put together.
    """

    parts: tuple[Spec, ...]
    result: Spec
    tpu: ClassVar[str] = "v5e-8"

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Run the function on all devices, and return its program with the arguments' types."""
        (fn,) = functions(answer, 1)
        jax, mesh = jax_module(), _mesh()
        spec = jax.sharding.PartitionSpec
        cut = tuple(spec(*part) for part in self.parts)
        whole = jax.shard_map(fn, mesh=mesh, in_specs=cut, out_specs=spec(*self.result))
        places = [jax.sharding.NamedSharding(mesh, part) for part in cut]
        args = _types(puzzle, places)
        run = Jax().traced(functools.update_wrapper(whole, fn), args)

        def results(*arrays: Any) -> list[Numbers]:
            return Jax().numbers(run(*map(jax.device_put, arrays, places)))

        return Attempt(wrong(puzzle, results, mesh.size), run, args)


class Jitted(OnOneCore):
    """A function without arguments that returns a `jax.jit`, whose own options count."""

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Run the jitted function on one device, and return it with the arguments' types."""
        (make,) = functions(answer, 1)
        fn = make if hasattr(make, "lower") else make()
        if not hasattr(fn, "lower"):
            raise AnswerError("Return what jax.jit returns, without calling it.")
        return dataclasses.replace(super().attempt(puzzle, (fn,)), fn=fn)


class Shardings:
    """A function that returns a dict with a `PartitionSpec` for each argument of the puzzle's spec.

    The spec is a function of JAX. It is not run, because shardings do not change its results.
    """

    tpu: ClassVar[str] = "v5e-8"

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Return the puzzle's spec with arguments that are cut as the answer says."""
        (choose,) = functions(answer, 1)
        specs, names = choose(), list(puzzle.arguments)
        if not isinstance(specs, Mapping) or set(specs) != set(names):
            raise AnswerError(f"Return a dict with the keys {', '.join(map(repr, names))}.")
        sharding = jax_module().sharding
        if other := [name for name in names if not isinstance(specs[name], sharding.PartitionSpec)]:
            raise AnswerError(f"The value of {other[0]!r} has to be a PartitionSpec, such as P().")
        mesh = _mesh()
        places = [sharding.NamedSharding(mesh, specs[name]) for name in names]
        return Attempt(fn=puzzle.spec, args=_types(puzzle, places))


def _types(puzzle: Puzzle, places: Sequence[Any]) -> tuple[Any, ...]:
    arrays = puzzle.arguments.values()
    return tuple(
        Jax().type_of(array.shape, array.dtype, place)
        for array, place in zip(arrays, places, strict=True)
    )


def _mesh() -> Any:
    """Return a mesh of the virtual TPU's devices.

    Raises:
        AnswerError: There is another number of devices.
    """
    jax = jax_module()
    if len(jax.devices()) != CORES:
        raise AnswerError(
            f"This puzzle needs {CORES} devices, and JAX has {len(jax.devices())}.",
            fix="%tpu_connect --simulate v5e-8 --framework jax --judge off",
        )
    return jax.make_mesh((CORES,), ("core",), axis_types=(jax.sharding.AxisType.Auto,))
