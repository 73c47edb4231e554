"""Ways in which a JAX function fits: scans computed again, donated arguments, more cores."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import inspect
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tpunb._util.logs import logger
from tpunb._util.patching import attribute
from tpunb._util.units import byte_count
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.topologies import Target, family_of
from tpunb.compiler.fit.candidates import Candidate, Space, Spaces
from tpunb.compiler.frameworks import arrays_in
from tpunb.compiler.program import TpuProgram
from tpunb.errors.code_problems import is_library
from tpunb.jax.checks.equations import all_equations
from tpunb.jax.compiler import batches as jax_batches
from tpunb.jax.compiler import functions as jax_functions

_TRIES = 3
_MOST_NAMES = 3
_MUCH = 0.01
"""The fraction of a core's memory that donation has to free to be advised."""

_WORTH = 100
"""An argument that takes less than this fraction of the largest, 1/100, is not donated."""


def ways(fn: Any, args: Sequence[Any], kind: Target) -> Spaces:
    """Return the ways in which a JAX call may fit with its own batch, in the order to try them."""
    return {
        "jax.checkpoint around scans": _scans_again(fn, args, kind),
        "donated arguments": _donated(fn, args, kind),
        "more cores": _on_more_cores(fn, args, kind),
    }


def _scans_again(fn: Any, args: Sequence[Any], kind: Target) -> Space:
    """Yield a JAX function with `jax.checkpoint` around its scans' bodies."""
    lines: set[int | None] = set()

    def compiled(settings: Settings) -> TpuProgram:
        with scans_again(lines):
            return jax_functions.function_for(fn, args, settings).on(kind, settings)

    def sentence() -> str:
        known = sorted(line for line in lines if line is not None)
        at = f" at line{'s' if len(known) > 1 else ''} {' and '.join(map(str, known))}"
        around = f"the body of jax.lax.scan{at if known else ''}"
        return f"The same call fits if jax.checkpoint wraps {around}" if lines else ""

    if has_scans(fn, args):
        yield Candidate(f"{kind.tpu.name} with scans computed again", compiled, sentence)


def has_scans(fn: Any, args: Sequence[Any]) -> bool:
    """Return whether a function has a `jax.lax.scan`."""
    equations = all_equations(jax_functions.traced_call(fn, args).jaxpr.jaxpr)
    return any(each.equation.primitive.name == "scan" for each in equations)


@contextlib.contextmanager
def scans_again(lines: set[int | None]) -> Iterator[None]:
    """Within a block, wrap the bodies of `jax.lax.scan` in `jax.checkpoint`.

    The bodies are usually a model's layers, and a scan keeps the values of each that the gradient
    needs. Outside scans, the TPU's compiler itself recomputes values that do not fit.

    Args:
        lines: Gets the lines of the user's code that call a scan.
    """
    jax: Any = sys.modules["jax"]
    scan = jax.lax.scan

    def again(body: Callable[..., Any], *args: Any, **options: Any) -> Any:
        stack = traceback.walk_stack(sys._getframe(1))
        places = ((frame.f_code.co_filename, line) for frame, line in stack)
        users = (n for file, n in places if not is_library(file))
        lines.add(next(users, None))
        return scan(jax.checkpoint(body, prevent_cse=False), *args, **options)

    # JAX keeps traces per setting. Change a setting that affects no program, only warnings.
    other = "allow" if jax.config.jax_numpy_rank_promotion == "warn" else "warn"
    with (
        warnings.catch_warnings(),
        jax.numpy_rank_promotion(other),
        attribute(jax.lax, "scan", again),
    ):
        warnings.simplefilter("ignore")
        yield


def _donated(fn: Any, args: Sequence[Any], kind: Target) -> Space:
    """Yield a JAX function that may overwrite some of its arguments."""
    if (found := donation(fn, args)) is not None:
        label = f"{kind.tpu.name} with donated arguments"
        fits = f"The same call fits if {found.given} donated (and so overwritten), {found.how}"
        yield Candidate(label, functools.partial(found.on, kind), fits)


def with_advice(
    program: TpuProgram, fn: Any, args: Sequence[Any], kind: Target, settings: Settings
) -> TpuProgram:
    """Add to a program that fits how much memory the donation of its arguments would free.

    Args:
        program: The program.
        fn: The JAX function.
        args: Its arguments.
        kind: The target that it was compiled for.
        settings: The settings of the compilation.
    """
    if not program.ok or program.memory is None:
        return program
    much = program.memory.available * _MUCH
    settings = dataclasses.replace(settings, speed=False, details=False)
    try:
        if (found := donation(fn, args, least=much * kind.cores)) is None:
            return program
        settings.progress(f"trying {kind.tpu.name} with donated arguments")
        donated = found.on(kind, settings)
    except Exception as failure:  # the time is over, or the function cannot be called so
        logger("compiler").debug("donation is not tried: %s", failure)
        return program
    if donated.memory is None:
        return program
    freed = program.memory.peak - donated.memory.peak
    if not donated.ok or freed < much:
        return program
    how = f"if {found.given} donated (and so overwritten): {found.how}"
    note = f"It takes {byte_count(freed)} less {how}."
    return dataclasses.replace(program, notes=(*program.notes, note))


@dataclasses.dataclass(frozen=True)
class Donation:
    """A function that may overwrite the arguments whose memory its results can take.

    Attributes:
        jitted: The function of its arrays.
        arrays: Its arrays.
        given: The arguments that it may overwrite, and a verb, as in "`params` is".
        how: The call of `jax.jit`.
    """

    jitted: Any
    arrays: Sequence[Any]
    given: str
    how: str

    def on(self, kind: Target, settings: Settings) -> TpuProgram:
        """Compile it for a target."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return jax_functions.function_for(self.jitted, self.arrays, settings).on(kind, settings)


def donation(fn: Any, args: Sequence[Any], least: float = 0.0) -> Donation | None:
    """Return a function that may overwrite its arguments, or None if that frees no memory.

    Args:
        fn: The function.
        args: Its arguments.
        least: The bytes that these arguments have at least, on all cores together.
    """
    jax: Any = sys.modules["jax"]
    places = [place for place, arg in enumerate(args) if _has_only_arrays(arg)]
    largest = max((_bytes(args[place]) for place in places), default=0)
    if largest < least:
        return None

    def call(*arrays: Any) -> Any:
        given = dict(zip(places, arrays, strict=True))
        return fn(*(given.get(place, arg) for place, arg in enumerate(args)))

    arrays = [args[place] for place in places]
    new, old = _donatable(jax.jit(call).trace(*arrays), arrays)
    new = [place for place in new if _bytes(arrays[place]) * _WORTH >= largest]
    if not new or sum(_bytes(arrays[place]) for place in new) < least:
        return None
    jitted = jax.jit(call, donate_argnums=sorted([*new, *old]))
    chosen = sorted(places[place] for place in [*new, *old])
    listed = str(chosen[0]) if len(chosen) == 1 else str(tuple(chosen))
    names = argument_names(fn, args)
    given = _listed([names[places[place]] for place in new])
    given += " is" if len(new) == 1 else " are"
    return Donation(jitted, arrays, given, f"jax.jit({_name(fn)}, donate_argnums={listed})")


def _bytes(arg: Any) -> int:
    arrays = arrays_in(arg)
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)


def _has_only_arrays(arg: Any) -> bool:
    arrays = arrays_in(arg)
    return bool(arrays) and all(hasattr(array, "dtype") for array in arrays)


def _donatable(traced: Any, args: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Return the arguments whose memory the results can take, and those that are donated already.

    Args:
        traced: The traced call.
        args: Its arguments.
    """
    jaxpr = traced.jaxpr.jaxpr
    overwritten = {
        id(array)
        for eqn in jaxpr.eqns
        for array, is_donated in zip(eqn.invars, eqn.params.get("donated_invars", ()), strict=False)
        if is_donated
    }
    results = jax_functions.kinds_of(traced.out_info)
    inputs = iter(jaxpr.invars)
    wanted: list[tuple[int, collections.Counter[Any]]] = []
    old: list[int] = []
    for place, arg in enumerate(args):
        if overwritten & {id(next(inputs)) for _ in arrays_in(arg)}:
            old.append(place)
            results -= jax_functions.kinds_of(arg)
        else:
            wanted.append((place, jax_functions.kinds_of(arg)))
    new: list[int] = []
    for place, needed in wanted:
        if needed <= results:
            new.append(place)
            results -= needed
    return new, old


def _name(fn: Any) -> str:
    """Return the name of a function for a reader."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__name__", type(fn).__name__)
    return "f" if name == "<lambda>" else str(name)


def argument_names(fn: Any, args: Sequence[Any]) -> list[str]:
    """Return the names of a function's arguments for a reader."""
    try:
        known = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a function in C has no signature
        known = []
    names = [each.name for each in known if each.kind is not each.VAR_POSITIONAL]
    return [
        names[place] if place < len(names) else f"argument {place}" for place in range(len(args))
    ]


def _listed(names: Sequence[str]) -> str:
    """Return the names of arguments in words, or their number if they are many."""
    if len(names) > _MOST_NAMES:
        return f"{len(names)} arguments"
    return " and ".join(f"`{name}`" for name in names)


def _on_more_cores(fn: Any, args: Sequence[Any], kind: Target) -> Space:
    """Yield a JAX function on more cores of the same family, until it fits.

    Its mesh is extended along an axis. Without a mesh, the arguments with its batch are sharded.
    """
    jax: Any = sys.modules["jax"]
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree_util.tree_leaves(list(args))]
    meshes = [own.mesh for own in shardings if isinstance(own, jax.sharding.NamedSharding)]
    mesh = next((mesh for mesh in meshes if mesh.size > 1), None)
    devices = 1 if mesh is None else mesh.size
    least = max(devices + 1, kind.tpu.num_devices)
    larger = [t for t in family_of(kind) if t.cores >= least and t.cores % devices == 0]
    for target in larger[:_TRIES]:
        if mesh is None:
            named = jax_functions.mesh_of(target.cores, "data")
            sharding = jax.sharding.NamedSharding(named, jax.sharding.PartitionSpec("data"))
            batch, with_batch = jax_batches.any_batch(fn, args)
            spread = with_batch(batch, sharding)
            names = zip(argument_names(fn, args), args, spread, strict=True)
            cut = _listed([name for name, old, new in names if old is not new])
            how = f"with {cut} sharded over {jax_functions.code_of_mesh(target.cores)}"
        else:
            spread, how = _spread(args, mesh, target.cores)

        def compiled(
            settings: Settings, target: Target = target, spread: list[Any] = spread
        ) -> TpuProgram:
            return jax_functions.function_for(fn, spread, settings).on(target, settings)

        name = target.tpu.name
        tried = yield Candidate(name, compiled, f"It fits on a {name} {how}")
        if tried.ok:
            return


def _spread(args: Sequence[Any], mesh: Any, cores: int) -> tuple[list[Any], str]:
    """Return the arguments on a mesh of `cores` cores, whose longest axis is extended."""
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
