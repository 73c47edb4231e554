"""Alternatives that fit: a smaller batch, more cores, parts that are computed again."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tpunb._util.internal_errors import report_internal_error
from tpunb._util.logs import logger
from tpunb._util.units import byte_count, grouped
from tpunb.compiler import jax_functions
from tpunb.compiler.batch_sizes import AnyBatch
from tpunb.compiler.compile_settings import Settings
from tpunb.compiler.program import TpuProgram
from tpunb.compiler.topologies import Target, family_of
from tpunb.errors import TpunbError
from tpunb.errors.code_problems import is_library, is_of_this_package
from tpunb.virtual.keras_internals import blocks_of
from tpunb.virtual.patch.patch_tools import attribute

_TRIES = 3


def with_what_fits(
    program: TpuProgram,
    kind: Target,
    settings: Settings,
    batches: Callable[[], AnyBatch],
    models: Sequence[Any] = (),
    jax_call: tuple[Any, Sequence[Any]] | None = None,
) -> TpuProgram:
    """Compile alternatives to a program that does not fit, and add those that fit to the fix.

    The alternatives are a smaller batch, and for a global batch the same batch on more cores. For
    models, their blocks are computed again for the gradient. For a JAX function, the bodies of its
    scans are computed again, or it gets more cores.

    Args:
        program: The program. A program that fits or has other errors is returned unchanged.
        kind: The target that it was compiled for.
        settings: The settings of the compilation.
        batches: Returns the function with any batch.
        models: The Keras models in the function.
        jax_call: A JAX function without models, and its arguments.
    """
    if [error.code for error in program.errors] != ["memory"]:
        return program
    settings = dataclasses.replace(settings, speed=False, details=False)
    ways = [_other_batches(program, kind, settings, batches, models)]
    if jax_call is not None:
        ways += [_scans_again(*jax_call, kind, settings), _on_more_cores(*jax_call, kind, settings)]
    fixes: list[_Fix] = []
    for way in ways:
        try:
            for fix in way:
                fixes.append(fix)
        except TpunbError:  # the function has no batch, or no other TPU type fits it
            continue
        except Exception as failure:  # the function may not accept another batch
            if is_of_this_package(traceback.extract_tb(failure.__traceback__)[-1].filename):
                report_internal_error(failure, logger("compiler"), "An alternative is left out.")
    (error,) = program.errors
    error = dataclasses.replace(error, fix=" ".join([*(fix.sentence for fix in fixes), error.fix]))
    batch = next((fix.batch for fix in fixes if fix.batch is not None), None)
    return dataclasses.replace(program, errors=(error,), fitting_batch=batch)


class _Fix(NamedTuple):
    """An alternative that fits, in one sentence, and its batch if that is smaller."""

    sentence: str
    batch: int | None = None


def _takes(program: TpuProgram) -> str:
    """Return a program's memory in words, or an empty string if it does not fit."""
    return f"{byte_count(program.memory.peak)} a core" if program.ok and program.memory else ""


def _other_batches(
    program: TpuProgram,
    kind: Target,
    settings: Settings,
    batches: Callable[[], AnyBatch],
    models: Sequence[Any],
) -> Iterator[_Fix]:
    """Yield the sentences about a smaller batch, a larger type, and recomputed blocks."""
    resizable = batches()
    if resizable.before is None:
        return
    own = resizable.before // resizable.times
    # Try halves, from the first that may fit if memory is proportional to the batch.
    over = program.memory.fraction if program.memory else 1.0
    halves = (own >> power for power in range(1, own.bit_length()))
    for size in itertools.islice((half for half in halves if half * over <= own), _TRIES):
        settings.progress(f"trying a batch of {grouped(size)} a replica on {kind.tpu.name}")
        if takes := _takes(resizable.on(kind, size, settings)):
            whole, batch = size, f"{grouped(size)} a replica"
            if program.examples:
                whole = size * kind.replicas
                batch = f"{grouped(whole)} ({batch})"
            elif resizable.replicas is not None:  # a JAX function has the batch of all devices
                whole = size * resizable.replicas
                each = f" ({grouped(size)} a core)" if resizable.replicas > 1 else ""
                batch = f"{grouped(whole)}{each}"
            yield _Fix(f"A batch of {batch} fits: {takes}.", whole)
            yield from _on_a_larger_type(program.examples or 0, size, kind, settings, resizable)
            break
    yield from _blocks_again(lambda: resizable.on(kind, own, settings), models, kind, settings)


def _on_a_larger_type(
    examples: int, size: int, kind: Target, settings: Settings, batches: AnyBatch
) -> Iterator[_Fix]:
    """Yield the sentence that a global batch fits on a type with at most `size` per replica."""
    for larger in family_of(kind):
        each, rest = divmod(examples, larger.replicas)
        if 0 < each <= size and not rest:
            settings.progress(f"trying {larger.tpu.name}")
            if batches.whole:  # a model takes the batch of all cores
                batches = dataclasses.replace(batches, times=larger.replicas)
            if takes := _takes(batches.on(larger, each, settings)):
                yield _Fix(f"{grouped(examples)} fit on a {larger.tpu.name}: {takes}.")
            return


def _blocks_again(
    compiled: Callable[[], TpuProgram], models: Sequence[Any], kind: Target, settings: Settings
) -> Iterator[_Fix]:
    """Yield the sentence that a batch fits if `keras.remat` wraps the models' blocks."""
    # Models may share a block, and a cell may reach a model by several names.
    blocks = list({id(block): block for model in models for block in blocks_of(model)}.values())
    remat = getattr(sys.modules.get("keras"), "remat", None)
    if not blocks or remat is None:
        return

    def again(call: Callable[..., Any]) -> Callable[..., Any]:
        # Both backends accept only tensors, so pass keywords such as `training` separately.
        return lambda *args, **options: remat(lambda *tensors: call(*tensors, **options))(*args)

    settings.progress(f"trying {kind.tpu.name} with {len(blocks)} blocks computed again")
    with contextlib.ExitStack() as undo:
        for block in blocks:
            undo.enter_context(attribute(block, "call", again(block.call)))
        takes = _takes(compiled())
    if takes:
        names = [block.name for block in blocks]
        listed = ", ".join(names if len(names) < 4 else [names[0], "…", names[-1]])
        yield _Fix(
            f"The same batch fits if keras.remat computes {listed} again for the gradient: {takes}."
        )


def _scans_again(fn: Any, args: Sequence[Any], kind: Target, settings: Settings) -> Iterator[_Fix]:
    """Yield the sentence that a JAX function fits if `jax.checkpoint` wraps its scans' bodies.

    The bodies are usually a model's layers, and a scan keeps the values of each that the gradient
    needs. Outside scans, the TPU's compiler itself recomputes values that do not fit.
    """
    jax: Any = sys.modules["jax"]
    scan = jax.lax.scan
    lines: list[int | None] = []

    def again(body: Callable[..., Any], *args: Any, **options: Any) -> Any:
        stack = traceback.walk_stack(sys._getframe(1))
        places = ((frame.f_code.co_filename, line) for frame, line in stack)
        users = (n for file, n in places if not (is_library(file) or is_of_this_package(file)))
        lines.append(next(users, None))
        return scan(jax.checkpoint(body, prevent_cse=False), *args, **options)

    settings.progress(f"trying {kind.tpu.name} with scans computed again")
    # JAX keeps traces per setting. Change a setting that affects no program, only warnings.
    other = "allow" if jax.config.jax_numpy_rank_promotion == "warn" else "warn"
    with (
        warnings.catch_warnings(),
        jax.numpy_rank_promotion(other),
        attribute(jax.lax, "scan", again),
    ):
        warnings.simplefilter("ignore")
        program = jax_functions.function_for(fn, args, settings).on(kind, settings)
    if lines and (takes := _takes(program)):
        known = sorted({line for line in lines if line is not None})
        at = f" at line{'s' if len(known) > 1 else ''} {' and '.join(map(str, known))}"
        yield _Fix(
            "The same call fits if jax.checkpoint wraps the body of jax.lax.scan"
            f"{at if known else ''}: {takes}."
        )


def _on_more_cores(
    fn: Any, args: Sequence[Any], kind: Target, settings: Settings
) -> Iterator[_Fix]:
    """Yield the sentence that a JAX function fits on more cores of the same family.

    Its mesh is extended along an axis. Without a mesh, its batch is sharded.
    """
    jax: Any = sys.modules["jax"]
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree_util.tree_leaves(list(args))]
    meshes = [own.mesh for own in shardings if isinstance(own, jax.sharding.NamedSharding)]
    mesh = next((mesh for mesh in meshes if mesh.size > 1), None)
    devices = 1 if mesh is None else mesh.size
    least = max(devices + 1, kind.tpu.num_devices)
    larger = [t for t in family_of(kind) if t.cores >= least and t.cores % devices == 0]
    for target in larger[:_TRIES]:
        settings.progress(f"trying {target.tpu.name}")
        if mesh is None:
            named = jax.sharding.AbstractMesh((target.cores,), ("data",))
            sharding = jax.sharding.NamedSharding(named, jax.sharding.PartitionSpec("data"))
            batch, with_batch = jax_functions.any_batch(fn, args)
            spread = with_batch(batch, sharding)
            how = f"with its batch sharded over an AbstractMesh(({target.cores},), ('data',))"
        else:
            spread, how = _spread(args, mesh, target.cores)
        function = jax_functions.function_for(fn, spread, settings)
        if takes := _takes(function.on(target, settings)):
            yield _Fix(f"It fits on a {target.tpu.name} {how}: {takes}.")
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
