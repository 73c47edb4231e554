"""Alternatives that fit: a smaller batch, more cores, parts that are computed again."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tpunb import framework
from tpunb._util.patching import attribute
from tpunb._util.units import grouped
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.topologies import Target, family_of
from tpunb.compiler.fit.any_batch import AnyBatch
from tpunb.compiler.fit.candidates import Candidate, Search, Space, Spaces
from tpunb.compiler.program import TpuProgram
from tpunb.machine.keras_internals import blocks_of

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
    scans are computed again, its arguments are donated, or it gets more cores, before its batch is
    made smaller. The program's notes say what could not be tried.

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
    resizable = functools.cache(batches)
    spaces: Spaces = {"a smaller batch": _other_batches(program, kind, resizable)}
    if models:
        spaces["keras.remat"] = _blocks_again(kind, resizable, models)
    if jax_call is not None:
        spaces = {**framework.jax().ways_to_fit(jax_call, kind), **spaces}
    search = Search(settings)
    for name, space in spaces.items():
        search.explore(name, space)
    fits = [each for each in search.judged if each.sentence]
    (error,) = program.errors
    sentences = [each.sentence for each in fits]
    if jax_call is not None and kind.tpu.num_devices > 1:
        call = f'{getattr(jax_call[0], "__name__", "step")}, …, tpu="{kind.tpu.name}"'
        sentences.append(f"tpunb.search({call}) looks for a layout that fits.")
    fix = " ".join([*sentences, error.fix])
    batch = next((each.candidate.of for each in fits if each.candidate.of is not None), None)
    notes = (*program.notes, *search.not_tried(refused=jax_call is not None))
    error = dataclasses.replace(error, fix=fix)
    return dataclasses.replace(program, errors=(error,), notes=notes, fitting_batch=batch)


def _own_batch(batches: Callable[[], AnyBatch]) -> tuple[AnyBatch, int]:
    """Return a function with any batch, and its own batch of a replica; 0 if it is not known."""
    resizable = batches()
    if resizable.before is None or not resizable.is_batch():
        return resizable, 0
    return resizable, resizable.before // resizable.times


def _other_batches(program: TpuProgram, kind: Target, batches: Callable[[], AnyBatch]) -> Space:
    """Yield smaller batches until one fits, and the type on which the same global batch fits."""
    resizable, own = _own_batch(batches)
    # Try halves, from the first that may fit if memory is proportional to the batch.
    over = program.memory.fraction if program.memory else 1.0
    halves = (own >> power for power in range(1, own.bit_length()))
    for size in itertools.islice((half for half in halves if half * over <= own), _TRIES):
        whole, batch = size, f"{grouped(size)} a replica"
        if program.examples:
            whole = size * kind.replicas
            batch = f"{grouped(whole)} ({batch})"
        elif resizable.replicas is not None:  # a JAX function has the batch of all devices
            whole = size * resizable.replicas
            each = f" ({grouped(size)} a core)" if resizable.replicas > 1 else ""
            batch = f"{grouped(whole)}{each}"
        tried = yield Candidate(
            f"a batch of {grouped(size)} a replica on {kind.tpu.name}",
            functools.partial(resizable.on, kind, size),
            f"A batch of {batch} fits",
            whole,
        )
        if tried.ok:
            yield from _on_a_larger_type(program.examples or 0, size, kind, resizable)
            return


def _on_a_larger_type(examples: int, size: int, kind: Target, batches: AnyBatch) -> Space:
    """Yield the same global batch on a type with at most `size` per replica."""
    for larger in family_of(kind):
        each, rest = divmod(examples, larger.replicas)
        if 0 < each <= size and not rest:
            if batches.whole:  # a model takes the batch of all cores
                batches = dataclasses.replace(batches, times=larger.replicas)
            name = larger.tpu.name
            compiled = functools.partial(batches.on, larger, each)
            yield Candidate(name, compiled, f"{grouped(examples)} fit on a {name}")
            return


def _blocks_again(kind: Target, batches: Callable[[], AnyBatch], models: Sequence[Any]) -> Space:
    """Yield the same batch with `keras.remat` around the models' blocks."""
    # Models may share a block, and a cell may reach a model by several names.
    blocks = list({id(block): block for model in models for block in blocks_of(model)}.values())
    remat = getattr(sys.modules.get("keras"), "remat", None)
    if not blocks or remat is None:
        return
    resizable, own = _own_batch(batches)
    if not own:
        return

    def again(call: Callable[..., Any]) -> Callable[..., Any]:
        # Both backends accept only tensors, so pass keywords such as `training` separately.
        return lambda *args, **options: remat(lambda *tensors: call(*tensors, **options))(*args)

    def compiled(settings: Settings) -> TpuProgram:
        with contextlib.ExitStack() as undo:
            for block in blocks:
                undo.enter_context(attribute(block, "call", again(block.call)))
            return resizable.on(kind, own, settings)

    names = [block.name for block in blocks]
    listed = ", ".join(names if len(names) < 4 else [names[0], "…", names[-1]])
    fits = f"The same batch fits if keras.remat computes {listed} again for the gradient"
    label = f"{kind.tpu.name} with {len(blocks)} blocks computed again"
    yield Candidate(label, compiled, fits)
