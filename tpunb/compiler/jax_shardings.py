"""Functions of JAX on more cores: with a longer axis of their mesh, or their batch sharded."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tpunb._util.units import byte_count
from tpunb.compiler.jax_functions import any_batch, function_for, has_batch
from tpunb.compiler.topologies import Target, family_of
from tpunb.compiler.verdict import Settings

_TRIES = 3


def on_more_cores(fn: Any, args: Sequence[Any], kind: Target, settings: Settings) -> Iterator[str]:
    """The sentence that a function fits on more cores of the same family, if it does.

    Args:
        fn: The function.
        args: Its arguments.
        kind: The TPU type on which it does not fit.
        settings: How to compile.
    """
    mesh = _mesh_of(args)
    devices = 1 if mesh is None else mesh.size
    for larger in itertools.islice(_larger(kind, devices), _TRIES):
        cores = larger.tpu.num_devices
        settings.progress(f"trying {larger.tpu.name}")
        try:
            spread, how = _cut(fn, args, cores) if mesh is None else _spread(args, mesh, cores)
            program = function_for(fn, spread, None, settings).on(larger, settings)
        except Exception:  # a size that the cores do not divide, a mesh in the function itself
            logging.getLogger("tpunb.compiler").debug("not on more cores", exc_info=True)
            return
        if program.ok and program.memory:
            yield f"It fits on a {larger.tpu.name} {how}: {byte_count(program.memory.peak)} a core."
            return


def _larger(kind: Target, devices: int) -> Iterator[Target]:
    """The types of a family with a multiple of so many cores, of which the smallest come first."""
    for found in family_of(kind):
        cores = found.tpu.num_devices
        if cores > devices and cores >= kind.tpu.num_devices and cores % devices == 0:
            yield found


def _mesh_of(args: Sequence[Any]) -> Any:
    """The mesh of several devices that arguments are sharded over; None without one."""
    jax: Any = sys.modules["jax"]
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree_util.tree_leaves(list(args))]
    named = (one for one in shardings if isinstance(one, jax.sharding.NamedSharding))
    return next((one.mesh for one in named if one.mesh.size > 1), None)


def _spread(args: Sequence[Any], mesh: Any, cores: int) -> tuple[list[Any], str]:
    """The arguments on a mesh of so many cores, whose longest axis is longer."""
    jax: Any = sys.modules["jax"]
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    axis = max(sizes, key=lambda name: sizes[name])
    sizes[axis] *= cores // mesh.size
    longer = jax.sharding.AbstractMesh(
        tuple(sizes.values()), tuple(sizes), axis_types=mesh.axis_types
    )

    def moved(value: Any) -> Any:
        own = getattr(value, "sharding", None)
        if not isinstance(own, jax.sharding.NamedSharding):
            return value
        sharding = jax.sharding.NamedSharding(longer, own.spec, memory_kind=own.memory_kind)
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)

    spread = jax.tree_util.tree_map(moved, list(args))
    return spread, f"with {sizes[axis]} devices on its mesh's axis {axis!r}"


def _cut(fn: Any, args: Sequence[Any], cores: int) -> tuple[list[Any], str]:
    """The arguments with the batch cut over so many cores; everything else is on each."""
    jax: Any = sys.modules["jax"]
    mesh = jax.sharding.AbstractMesh((cores,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    batch, _ = any_batch(fn, args)

    def cut(argument: Any) -> Any:
        if not has_batch(argument, batch):
            return argument
        return jax.tree_util.tree_map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), argument
        )

    how = f"with its batch sharded over an AbstractMesh(({cores},), ('data',))"
    return [cut(one) for one in args], how
