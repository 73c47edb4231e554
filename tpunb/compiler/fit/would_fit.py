"""Alternatives that fit: a smaller batch, more cores, parts that are computed again."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tpunb import framework
from tpunb._util.internal_errors import report_internal_error
from tpunb._util.logs import logger
from tpunb._util.patching import attribute
from tpunb._util.units import grouped
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.topologies import Target, family_of
from tpunb.compiler.fit.any_batch import AnyBatch
from tpunb.compiler.fit.fits import Fit, Ways, takes
from tpunb.compiler.program import TpuProgram
from tpunb.errors import TpunbError
from tpunb.errors.code_problems import is_of_this_package
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
    ways: Ways = {"a smaller batch": _other_batches(program, kind, settings, batches, models)}
    if jax_call is not None:
        ways = {**framework.jax().ways_to_fit(jax_call, kind, settings), **ways}
    tried = _Tried(settings, silent=jax_call is None)
    for name, way in ways.items():
        tried.go(name, way)
    (error,) = program.errors
    sentences = [fit.sentence for fit in tried.fits]
    error = dataclasses.replace(error, fix=" ".join([*sentences, error.fix]))
    batch = next((fit.batch for fit in tried.fits if fit.batch is not None), None)
    notes = (*program.notes, *tried.notes())
    return dataclasses.replace(program, errors=(error,), notes=notes, fitting_batch=batch)


class _Tried:
    """The ways that were tried, those that fit, and why the others could not be tried.

    Args:
        settings: The settings of the compilation.
        silent: Whether a way that the function does not accept is left out without a note.
    """

    def __init__(self, settings: Settings, *, silent: bool) -> None:
        self.fits: list[Fit] = []
        self._deadline, self._silent = settings.deadline, silent
        self._too_late: list[str] = []
        self._refused: list[str] = []

    def go(self, name: str, way: Iterator[Fit]) -> None:
        """Try a way, unless the time is over."""
        before = len(self.fits)
        try:
            if not self._is_over():
                self.fits.extend(way)
        except TpunbError:  # the function has no batch, or no other TPU type fits it
            return
        except Exception as failure:  # the function may not accept another batch
            if is_of_this_package(traceback.extract_tb(failure.__traceback__)[-1].filename):
                report_internal_error(failure, logger("compiler"), "An alternative is left out.")
            said = next(iter(str(failure).splitlines()), "")
            self._refused.append(f"{name}, which raises {type(failure).__name__}: {said}")
        if self._is_over() and len(self.fits) == before:
            self._too_late.append(name)

    def _is_over(self) -> bool:
        return time.monotonic() >= self._deadline.end

    def notes(self) -> Iterator[str]:
        """Yield a sentence about each way that could not be tried."""
        if self._refused and not self._silent:
            yield f"Not tried: {'; '.join(self._refused)}"
        if self._too_late:
            limit = f"the time limit of {self._deadline.seconds:g} s"
            yield f"Not tried, because {limit} is over: {', '.join(self._too_late)}."


def _other_batches(
    program: TpuProgram,
    kind: Target,
    settings: Settings,
    batches: Callable[[], AnyBatch],
    models: Sequence[Any],
) -> Iterator[Fit]:
    """Yield the sentences about a smaller batch, a larger type, and recomputed blocks."""
    resizable = batches()
    if resizable.before is None or not resizable.is_batch():
        return
    own = resizable.before // resizable.times
    # Try halves, from the first that may fit if memory is proportional to the batch.
    over = program.memory.fraction if program.memory else 1.0
    halves = (own >> power for power in range(1, own.bit_length()))
    for size in itertools.islice((half for half in halves if half * over <= own), _TRIES):
        settings.progress(f"trying a batch of {grouped(size)} a replica on {kind.tpu.name}")
        if memory := takes(resizable.on(kind, size, settings)):
            whole, batch = size, f"{grouped(size)} a replica"
            if program.examples:
                whole = size * kind.replicas
                batch = f"{grouped(whole)} ({batch})"
            elif resizable.replicas is not None:  # a JAX function has the batch of all devices
                whole = size * resizable.replicas
                each = f" ({grouped(size)} a core)" if resizable.replicas > 1 else ""
                batch = f"{grouped(whole)}{each}"
            yield Fit(f"A batch of {batch} fits: {memory}.", whole)
            yield from _on_a_larger_type(program.examples or 0, size, kind, settings, resizable)
            break
    yield from _blocks_again(lambda: resizable.on(kind, own, settings), models, kind, settings)


def _on_a_larger_type(
    examples: int, size: int, kind: Target, settings: Settings, batches: AnyBatch
) -> Iterator[Fit]:
    """Yield the sentence that a global batch fits on a type with at most `size` per replica."""
    for larger in family_of(kind):
        each, rest = divmod(examples, larger.replicas)
        if 0 < each <= size and not rest:
            settings.progress(f"trying {larger.tpu.name}")
            if batches.whole:  # a model takes the batch of all cores
                batches = dataclasses.replace(batches, times=larger.replicas)
            if memory := takes(batches.on(larger, each, settings)):
                yield Fit(f"{grouped(examples)} fit on a {larger.tpu.name}: {memory}.")
            return


def _blocks_again(
    compiled: Callable[[], TpuProgram], models: Sequence[Any], kind: Target, settings: Settings
) -> Iterator[Fit]:
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
        memory = takes(compiled())
    if memory:
        names = [block.name for block in blocks]
        listed = ", ".join(names if len(names) < 4 else [names[0], "…", names[-1]])
        yield Fit(
            f"The same batch fits if keras.remat computes {listed} again for the gradient: "
            f"{memory}."
        )
