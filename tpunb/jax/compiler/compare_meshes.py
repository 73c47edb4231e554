"""A JAX function on several meshes: the same results, and what each mesh costs."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpunb._util.units import counted
from tpunb.compiler.compile import compile as compile_function
from tpunb.compiler.program import CompileError, CompilerUnavailableError, TpuProgram
from tpunb.errors import TpunbError
from tpunb.jax.checks.equations import all_equations
from tpunb.jax.compiler.mesh_comparison import LeafDifference, MeshComparison, OnMesh
from tpunb.tpu.types import Accelerator, accelerator, accelerator_types

_NAMES = ("data", "model")
"""The axes of the meshes if no argument has a mesh, as many as are needed."""

_ROUNDING = {8: 1e-9, 4: 1e-4, 2: 3e-2, 1: 0.25}
"""By bytes of an element, the share of the largest value that rounding may change in a long sum."""

_SAME_FACTOR = 1e-3

_SMALL = 1e-4
"""Below this share of the largest number, a result may be rounding only: a sum that should be 0."""

_NOISE = 32
"""By how much more than the last bit of the arguments another order of sums may move a result."""

_FINE = 1e-6
"""Functions whose floats are rounded more coarsely than float32 have much noise in all results."""

_COARSE_NOISE = 8
"""As `_NOISE`, for functions that compute with coarser floats than float32."""

_OWN_MESH = ("context mesh", "incompatible devices")

_Leaves = list[tuple[str, Any]]


class MeshError(TpunbError, ValueError):
    """Meshes on which a function cannot be compared."""


def compare_meshes(
    fn: Callable[..., Any],
    args: Sequence[Any],
    meshes: Sequence[Sequence[int]] | None,
    tpu: Accelerator | None,
) -> MeshComparison:
    """Run a function on several meshes, and compare the results and the programs.

    Args:
        fn: The function. If it has a parameter `mesh`, it gets the mesh.
        args: Its arguments.
        meshes: The sizes of the axes of each mesh; None if the user gave none.
        tpu: The TPU type whose devices JAX has, for the compiler; None if they are not a TPU's.

    Raises:
        MeshError: The meshes do not fit the devices or the arguments.
        Exception: The function raised this error.
    """
    if meshes is None:
        raise MeshError(
            "In JAX, tpunb.compare runs a function on several meshes, which are missing.",
            fix="tpunb.compare(step, params, batch, meshes=[(1,), (8,)])",
        )
    if not isinstance(meshes, Sequence) or not meshes:
        raise MeshError("There are no meshes.", fix="Name some: meshes=[(1,), (8,), (4, 2)].")
    if "jax" not in sys.modules:
        raise MeshError("Meshes are JAX's, and JAX is not imported.", fix="import jax")
    if not all(map(_are_sizes, meshes)):
        raise MeshError(
            f"{meshes!r} are not the sizes of meshes.",
            fix="Write a tuple for each mesh: meshes=[(1,), (8,), (4, 2)].",
        )
    names, kinds = _axes_of(fn, args, max(map(len, meshes)))
    made = [mesh_of_devices(sizes, names, kinds) for sizes in meshes]
    note, rows = "", []
    for row, run in compare_runs([functools.partial(run_on, fn, args, mesh) for mesh in made]):
        with _jax().set_mesh(run.mesh):
            program, why = _compiled(run.function, run.arrays, tpu, run.mesh.size)
        rows.append(dataclasses.replace(row, program=program))
        note = note or why
    return MeshComparison(tuple(rows), note)


class Run(NamedTuple):
    """A run of a function on a mesh: the compiled function of its arrays, and the arrays."""

    function: Any
    arrays: Sequence[Any]
    mesh: Any

    def results(self, arrays: Sequence[Any] | None = None) -> _Leaves:
        """Run the function, with other arrays than its own if they are given."""
        return _results(self.function, self.arrays if arrays is None else arrays, self.mesh)


def compare_runs(runs: Sequence[Callable[[], Run]]) -> Iterator[tuple[OnMesh, Run]]:
    """Run a function on several meshes, and yield its differences from the first.

    Args:
        runs: Each returns a run, with its own copies of the arrays.
    """
    first: _Leaves | None = None
    scale = coarsest = 0.0

    @functools.cache
    def nearby() -> _Leaves:
        run = runs[0]()
        return run.results([_nudged(array, coarsest) for array in run.arrays])

    for make in runs:
        run = make()
        results = run.results()
        if first is None:
            first, scale = results, _scale([*run.arrays, *(leaf for _, leaf in results)])
            coarsest = _coarsest(run)
        noise = _COARSE_NOISE if coarsest > _FINE else _NOISE
        least = math.inf if coarsest > _FINE else _SMALL * scale
        differences = list(_differences(first, results, least, noise, nearby))
        wrong = tuple(each for each, limit in differences if each.difference > limit)
        most = max((each.difference for each, _ in differences), default=0.0)
        yield OnMesh(tuple(run.mesh.shape.items()), most, wrong), run


def _jax() -> Any:
    return sys.modules["jax"]


def _axes_of(fn: Any, args: Sequence[Any], most: int) -> tuple[tuple[str, ...], Any]:
    """Return the names and types of the axes: of the arguments' mesh, or usual names."""
    jax = _jax()
    for leaf in jax.tree.leaves(args):
        mesh = getattr(getattr(leaf, "sharding", None), "mesh", None)
        if mesh is not None and mesh.axis_names:
            if most > len(mesh.axis_names):
                raise MeshError(
                    f"A mesh has {counted(most, 'axis')}, and the mesh of "
                    f"the arguments has only {mesh.axis_names}.",
                    fix="Give each mesh at most as many sizes as the arguments' mesh has axes.",
                )
            return tuple(mesh.axis_names), mesh.axis_types
    if not takes_mesh(fn):
        raise MeshError(
            "No argument is sharded, so the function would run on one device on every mesh.",
            fix="Shard its batch: jax.device_put(batch, NamedSharding(mesh, P('data'))), or give "
            "the function a parameter `mesh`.",
        )
    names = _NAMES[:most] if most <= len(_NAMES) else tuple(f"axis{n}" for n in range(most))
    return names, (jax.sharding.AxisType.Auto,) * len(names)


def mesh_of_devices(sizes: Sequence[int], names: Sequence[str], kinds: Any) -> Any:
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


def _are_sizes(sizes: Any) -> bool:
    is_tuple = isinstance(sizes, Sequence) and len(sizes) > 0
    return is_tuple and all(isinstance(size, int) and size > 0 for size in sizes)


def takes_mesh(fn: Any) -> bool:
    """Return whether a function has a parameter `mesh`."""
    try:
        return "mesh" in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return False


def run_on(fn: Any, args: Sequence[Any], mesh: Any) -> Run:
    """Return a run of a function, with the arrays among its arguments on a mesh."""
    jax = _jax()
    leaves, tree = jax.tree.flatten(args)
    places = [
        place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray)
    ]
    named = {"mesh": mesh} if takes_mesh(fn) else {}

    def call(*arrays: Any) -> Any:
        filled = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        return fn(*tree.unflatten(filled), **named)

    call.__name__ = getattr(fn, "__name__", "function")
    return Run(jax.jit(call), [_put(leaves[place], mesh) for place in places], mesh)


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


def _results(function: Any, arrays: Sequence[Any], mesh: Any) -> _Leaves:
    """Run a function on a mesh."""
    try:
        with _jax().set_mesh(mesh):
            return _leaves(function(*arrays))
    except ValueError as error:
        if not any(words in str(error) for words in _OWN_MESH):
            raise
        raise MeshError(
            "The function names a mesh of its own, so it cannot run on other meshes: "
            f"{str(error).splitlines()[0]}",
            fix="Give the function a parameter `mesh`, and use it in jax.shard_map, NamedSharding "
            "and in_shardings.",
        ) from error


def _leaves(result: Any) -> _Leaves:
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
    first: _Leaves,
    others: _Leaves,
    least: float,
    noise: float,
    nearby: Callable[[], _Leaves],
) -> Iterator[tuple[LeafDifference, float]]:
    """Yield the difference of each array, with the difference that rounding may make.

    Args:
        first: The results on the first mesh.
        others: The results on another mesh.
        least: An array of smaller numbers may be rounding only.
        noise: By how much more than another rounding of the arguments it may then differ.
        nearby: Returns the results on the first mesh for arguments that are rounded otherwise.
    """
    if [path for path, _ in first] != [path for path, _ in others]:
        yield LeafDifference("", math.inf, reason="has other parts"), 0.0
        return
    for place, ((path, one), (_, other)) in enumerate(zip(first, others, strict=True)):
        found, limit = _difference(path, one, other)
        is_small = limit > 0 and _largest(_finite(_wide(one))) < least
        if found.difference > limit and not found.reason and is_small:
            moved = _largest(_finite(_wide(nearby()[place][1]) - _wide(one)))
            apart = _largest(_finite(_wide(other) - _wide(one)))
            found = found if apart > noise * moved else LeafDifference(path, 0.0)
        yield found, limit


def _difference(path: str, one: Any, other: Any) -> tuple[LeafDifference, float]:
    if one.shape != other.shape or one.dtype != other.dtype:
        kinds = f"is {_kind(other)}, and {_kind(one)} on the first mesh"
        return LeafDifference(path, math.inf, reason=kinds), 0.0
    limit = _rounding(one.dtype)
    a, b = _wide(one), _wide(other)
    odd = ~np.isfinite(a)
    if not np.array_equal(odd, ~np.isfinite(b)) or not np.array_equal(
        a[odd], b[odd], equal_nan=True
    ):
        reason = "has infinities or NaNs in other places"
        return LeafDifference(path, math.inf, reason=reason), limit
    a, b = _finite(a), _finite(b)
    largest, apart = _largest(a), _largest(a - b)
    if apart == 0.0:
        return LeafDifference(path, 0.0), limit
    if largest == 0.0:
        return LeafDifference(path, math.inf, reason="is 0 on the first mesh alone"), limit
    difference = apart / largest
    factor = float(np.vdot(a, b).real / np.vdot(a, a).real)
    is_multiple = difference > limit and np.abs(b - factor * a).max() < _SAME_FACTOR * largest
    return LeafDifference(path, difference, factor if is_multiple else None), limit


def _rounding(dtype: Any) -> float:
    """Return the share of the largest value that rounding may change; 0.0 for exact types."""
    if dtype.kind == "c":
        return _ROUNDING[dtype.itemsize // 2]
    is_float = _jax().numpy.issubdtype(dtype, np.floating)  # also bfloat16, which NumPy lacks
    return _ROUNDING[dtype.itemsize] if is_float else 0.0


def _scale(arrays: Sequence[Any]) -> float:
    """Return the largest number of arrays of floats."""
    is_inexact = _jax().numpy.issubdtype
    inexact = (np.asarray(each) for each in arrays if is_inexact(each.dtype, np.inexact))
    return max((_largest(_finite(_wide(each))) for each in inexact), default=0.0)


def _kind(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _wide(array: Any) -> Any:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _finite(array: Any) -> Any:
    return np.where(np.isfinite(array), array, 0)


def _largest(array: Any) -> float:
    return float(np.abs(array).max(initial=0.0))


def _coarsest(run: Run) -> float:
    """Return the coarsest rounding of the floats that a function computes with."""
    jax = _jax()
    with jax.set_mesh(run.mesh):
        jaxpr = run.function.trace(*run.arrays).jaxpr.jaxpr
    kinds = {
        getattr(var.aval, "dtype", None)
        for each in all_equations(jaxpr)
        for var in each.equation.outvars
    }
    floats = [
        kind for kind in kinds if kind is not None and jax.numpy.issubdtype(kind, np.floating)
    ]
    return max((float(jax.numpy.finfo(kind).eps) for kind in floats), default=0.0)


def _nudged(array: Any, least: float) -> Any:
    """Return an array whose numbers are moved by the last bit, up or down, or by `least`."""
    jax = _jax()
    if not jax.numpy.issubdtype(array.dtype, np.inexact):
        return array
    signs = np.random.default_rng(0).choice([-1.0, 1.0], array.shape)
    values = _wide(np.asarray(array)) * (
        1 + max(float(jax.numpy.finfo(array.dtype).eps), least) * signs
    )
    return jax.device_put(values.astype(array.dtype), array.sharding)


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
