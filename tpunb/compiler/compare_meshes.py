"""A JAX function on several meshes: the same results, and what each mesh costs."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tpunb._util.units import counted
from tpunb.compiler.compile import compile as compile_function
from tpunb.compiler.mesh_comparison import LeafDifference, MeshComparison, OnMesh
from tpunb.compiler.program import CompileError, CompilerUnavailableError, TpuProgram
from tpunb.errors import TpunbError
from tpunb.tpu.types import Accelerator, accelerator, accelerator_types

_NAMES = ("data", "model")
"""The axes of the meshes if no argument has a mesh, as many as are needed."""

_ROUNDING = {8: 1e-9, 4: 1e-4, 2: 3e-2, 1: 0.25}
"""By bytes of an element, the share of the largest value that rounding may change in a long sum."""

_SAME_FACTOR = 1e-3


class MeshError(TpunbError, ValueError):
    """Meshes on which a function cannot be compared."""


def compare_meshes(
    fn: Callable[..., Any],
    args: Sequence[Any],
    meshes: Sequence[Sequence[int]],
    tpu: Accelerator | None,
) -> MeshComparison:
    """Run a function on several meshes, and compare the results and the programs.

    Args:
        fn: The function. If it has a parameter `mesh`, it gets the mesh.
        args: Its arguments.
        meshes: The sizes of the axes of each mesh.
        tpu: The TPU type whose devices JAX has, for the compiler; None if they are no TPU's.

    Raises:
        MeshError: The meshes do not fit the devices or the arguments.
        Exception: The function raised this error.
    """
    if not meshes:
        raise MeshError("There are no meshes.", fix="Name some: meshes=[(1,), (8,), (4, 2)].")
    if "jax" not in sys.modules:
        raise MeshError("Meshes are JAX's, and JAX is not imported.", fix="import jax")
    names, kinds = _axes_of(fn, args, max(map(len, meshes)))
    made = [_mesh(sizes, names, kinds) for sizes in meshes]
    note, rows = "", []
    first: list[tuple[str, Any]] | None = None
    for mesh in made:
        function, arrays = _bound(fn, args, mesh)
        with _jax().set_mesh(mesh):
            results = _leaves(function(*arrays))
            program, why = _compiled(function, arrays, tpu, mesh.size)
        first = results if first is None else first
        differences = _differences(first, results)
        wrong = tuple(each for each, limit in differences if each.difference > limit)
        most = max((each.difference for each, _ in differences), default=0.0)
        rows.append(OnMesh(tuple(mesh.shape.items()), most, wrong, program))
        note = note or why
    return MeshComparison(tuple(rows), note)


def _jax() -> Any:
    return sys.modules["jax"]


def _axes_of(fn: Any, args: Sequence[Any], most: int) -> tuple[tuple[str, ...], Any]:
    """Return the names and types of the axes: those of the arguments' mesh, or usual names."""
    jax = _jax()
    for leaf in jax.tree.leaves(args):
        mesh = getattr(getattr(leaf, "sharding", None), "mesh", None)
        if mesh is not None and mesh.axis_names:
            if most > len(mesh.axis_names):
                raise MeshError(
                    f"A mesh has {counted(most, 'axis').replace('axiss', 'axes')}, and the mesh of "
                    f"the arguments has only {mesh.axis_names}.",
                    fix="Give each mesh at most as many sizes as the arguments' mesh has axes.",
                )
            return tuple(mesh.axis_names), mesh.axis_types
    if not _takes_mesh(fn):
        raise MeshError(
            "No argument is sharded, so the function would run on one device on every mesh.",
            fix="Shard its batch: jax.device_put(batch, NamedSharding(mesh, P('data'))), or give "
            "the function a parameter `mesh`.",
        )
    if most > len(_NAMES):
        names = tuple(f"axis{number}" for number in range(most))
    else:
        names = _NAMES[:most]
    return names, (jax.sharding.AxisType.Auto,) * len(names)


def _mesh(sizes: Sequence[int], names: Sequence[str], kinds: Any) -> Any:
    """Return a mesh whose last axes have size 1 if the sizes are fewer."""
    jax = _jax()
    full = (*sizes, *(1,) * (len(names) - len(sizes)))
    devices, count = jax.devices(), math.prod(full)
    if count > len(devices) or count < 1:
        raise MeshError(
            f"A mesh of {' × '.join(map(str, sizes))} needs {counted(count, 'device')}, and JAX "
            f"has {len(devices)}.",
            fix="Connect to a larger type, such as %tpu_connect --simulate v5e-16 --framework jax.",
        )
    if count == len(devices):
        return jax.make_mesh(full, names, axis_types=kinds)
    some = np.array(devices[:count]).reshape(full)  # make_mesh only takes whole slices of a TPU
    return jax.sharding.Mesh(some, names, axis_types=kinds)


def _takes_mesh(fn: Any) -> bool:
    try:
        return "mesh" in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return False


def _bound(fn: Any, args: Sequence[Any], mesh: Any) -> tuple[Any, list[Any]]:
    """Return a compiled function of the arrays among the arguments, and the arrays on a mesh."""
    jax = _jax()
    leaves, tree = jax.tree.flatten(args)
    places = [
        place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray)
    ]
    named = {"mesh": mesh} if _takes_mesh(fn) else {}

    def call(*arrays: Any) -> Any:
        filled = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        return fn(*tree.unflatten(filled), **named)

    call.__name__ = getattr(fn, "__name__", "function")
    return jax.jit(call), [_put(leaves[place], mesh) for place in places]


def _put(array: Any, mesh: Any) -> Any:
    """Return a copy of an array on a mesh, cut by the array's own spec."""
    jax = _jax()
    sharding = getattr(array, "sharding", None)
    spec = getattr(sharding, "spec", jax.sharding.PartitionSpec())
    there = jax.sharding.NamedSharding(mesh, spec)
    try:
        return jax.device_put(array, there, may_alias=False)
    except ValueError as error:  # JAX's IndivisibleError is one
        raise MeshError(
            f"An argument of shape {list(array.shape)} with the spec {spec} does not divide over a "
            f"mesh of {' × '.join(map(str, mesh.shape.values()))}.",
            fix="Choose sizes that divide it.",
        ) from error


def _leaves(result: Any) -> list[tuple[str, Any]]:
    """Return the arrays of a result, with their paths."""
    jax = _jax()
    leaves, _ = jax.tree.flatten_with_path(result)
    return [(jax.tree_util.keystr(path), _values(leaf)) for path, leaf in leaves]


def _values(leaf: Any) -> Any:
    jax = _jax()
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _differences(
    first: list[tuple[str, Any]], others: list[tuple[str, Any]]
) -> list[tuple[LeafDifference, float]]:
    """Return the difference of each array, with the difference that rounding may make."""
    if [path for path, _ in first] != [path for path, _ in others]:
        return [(LeafDifference("", math.inf), 0.0)]
    return [
        _difference(path, one, other) for (path, one), (_, other) in zip(first, others, strict=True)
    ]


def _difference(path: str, one: Any, other: Any) -> tuple[LeafDifference, float]:
    if one.shape != other.shape or one.dtype != other.dtype:
        return LeafDifference(path, math.inf), 0.0
    is_exact = one.dtype.kind in "biu"
    limit = 0.0 if is_exact else _ROUNDING[min(8, one.dtype.itemsize)]
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    a, b = one.astype(wide), other.astype(wide)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return LeafDifference(path, math.inf), limit
    a, b = np.where(np.isfinite(a), a, 0), np.where(np.isfinite(b), b, 0)
    largest = float(np.abs(a).max(initial=0.0))
    apart = float(np.abs(a - b).max(initial=0.0))
    if apart == 0.0 or largest == 0.0:
        return LeafDifference(path, 0.0 if apart == 0.0 else math.inf), limit
    difference = apart / largest
    factor = float(np.vdot(a, b).real / np.vdot(a, a).real)
    is_multiple = difference > limit and np.abs(b - factor * a).max() < _SAME_FACTOR * largest
    return LeafDifference(path, difference, factor if is_multiple else None), limit


def _compiled(
    function: Any, arrays: Sequence[Any], tpu: Accelerator | None, cores: int
) -> tuple[TpuProgram | None, str]:
    """Return the program for a type with so many cores, or why there is none."""
    if tpu is None:
        return None, ""
    types = [accelerator(name) for name in accelerator_types()]
    fitting = [
        each.name for each in types if (each.family, each.num_devices) == (tpu.family, cores)
    ]
    if not fitting:
        return None, f"No {tpu.family} has {counted(cores, 'core')}, so that mesh was not compiled."
    try:
        return compile_function(
            function, *arrays, tpu=fitting[0], speed=True, live_arrays=False
        ), ""
    except (CompilerUnavailableError, CompileError) as error:
        return None, str(error)
