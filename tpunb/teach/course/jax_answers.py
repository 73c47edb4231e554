"""Answers that are functions of JAX: their program as data, which runs without their code."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tpunb.teach.puzzles.jax_programs import ARITHMETIC, jax_module

_COLLECTIVES = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}
_COLLECTIVE = re.compile(rf" ({'|'.join(sorted(_COLLECTIVES))})(?:-start)?\(")


def are_of_jax(values: Sequence[Any]) -> bool:
    """Return whether all values are arrays of JAX."""
    return all(type(each).__module__.startswith("jax") for each in values)


def types_of(arrays: Sequence[Any]) -> list[Any]:
    """Return the types of arrays as plain data, with the mesh and the axes of their sharding."""
    return [[list(each.shape), each.dtype.name, *_place(each)] for each in arrays]


def placed(array: Any, kind: Sequence[Any]) -> Any:
    """Return an array of JAX of such a type."""
    return jax_module().device_put(np.asarray(array), _type(kind).sharding)


def exported(fn: Callable[..., Any], types: Sequence[Any]) -> dict[str, Any]:
    """Return the program of a function as plain data: its module and the types of its results."""
    jax = jax_module()
    program = jax.jit(lambda *args: fn(*args), keep_unused=True)
    found = jax.export.export(program, platforms=["tpu"])(*map(_type, types))
    results = [[list(each.shape), each.dtype.name] for each in found.out_avals]
    is_one = found.out_tree == jax.tree_util.tree_structure(0)
    return {"module": found.mlir_module_serialized, "results": results, "is one": is_one}


def runner(program: Mapping[str, Any], args: Sequence[Any]) -> Callable[..., Any]:
    """Return the function of a program, for arrays of the types for which it was exported."""
    call, is_one = _of_data(program, args).call, program["is one"]
    run: Callable[..., Any] = jax_module().jit(
        lambda *args: call(*args)[0 if is_one else slice(None)]
    )
    return run


def structure(program: Mapping[str, Any], args: Sequence[Any]) -> tuple[list[str], list[str], bool]:
    """Return how a program computes its results; what they do not depend on does not count.

    Returns:
        The collectives of the compiled program; those that its code has; whether `jax.shard_map`
        has all of its arithmetic.
    """
    from tpunb.teach.puzzles.live_operations import SHARD_MAP, live_operations

    of_data = _of_data(program, args)
    compiled = jax_module().jit(of_data.call).lower(*args).compile().as_text()
    live = live_operations(of_data.mlir_module())
    has_map = any(each.name == SHARD_MAP for each in live)
    outside = [each for each in live if each.name in ARITHMETIC and SHARD_MAP not in each.around]
    written = {each.name.partition(".")[2].replace("_", "-") for each in live} & _COLLECTIVES
    return sorted({*_COLLECTIVE.findall(compiled)}), sorted(written), has_map and not outside


def _of_data(program: Mapping[str, Any], args: Sequence[Any]) -> Any:
    """Return a program as JAX's export, with the arguments and results that it says."""
    jax = jax_module()

    def nothing(*_: Any) -> Any:
        return [jax.numpy.zeros(*each) for each in program["results"]]

    empty = jax.jit(nothing, keep_unused=True)
    frame = jax.export.export(empty, platforms=["tpu"])(*map(_type, types_of(args)))
    here = jax.export.DisabledSafetyCheck.platform()  # the module is for a TPU
    return dataclasses.replace(
        frame, mlir_module_serialized=program["module"], disabled_safety_checks=(here,)
    )


def _place(array: Any) -> list[Any]:
    sharding: Any = getattr(array, "sharding", None)
    if not hasattr(sharding, "mesh"):
        return [[], [], []]
    mesh = sharding.mesh
    return [list(mesh.axis_names), list(mesh.devices.shape), list(sharding.spec)]


def _type(kind: Sequence[Any]) -> Any:
    jax = jax_module()
    shape, dtype, names, sizes, spec = kind
    if not names:
        return jax.ShapeDtypeStruct(tuple(shape), dtype)
    axis_types = (jax.sharding.AxisType.Auto,) * len(names)
    mesh = jax.make_mesh(tuple(sizes), tuple(names), axis_types=axis_types)
    axes = jax.sharding.PartitionSpec(*(tuple(a) if isinstance(a, list) else a for a in spec))
    place = jax.sharding.NamedSharding(mesh, axes)
    return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=place)
