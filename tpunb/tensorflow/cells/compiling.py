"""Cells for the TPU's own compiler, which compiles them without running them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.freed_memory import giving_back
from tpunb._util.units import byte_count
from tpunb.cells.reading.cell_errors import line_in, line_of_user
from tpunb.cells.reading.nests import leaves, parts_of
from tpunb.cells.reading.source import StepSource
from tpunb.cells.settings import CompileSettings
from tpunb.compiler.ask import libtpu
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.partial_answers import for_each_type
from tpunb.compiler.ask.topologies import Target, targets
from tpunb.compiler.ask.verdict import Function
from tpunb.compiler.fit.any_batch import AnyBatch
from tpunb.compiler.fit.batch_sizes import FINE, SearchStopped, Sizes
from tpunb.compiler.fit.would_fit import with_what_fits
from tpunb.compiler.program import TpuProgram, TpuPrograms
from tpunb.errors.code_problems import SourceLine
from tpunb.machine.keras_internals import layer_names, models_in
from tpunb.tensorflow.cells.capture import Captured
from tpunb.tensorflow.cells.open_batches import Types, open_batch, opened, silent
from tpunb.tensorflow.cells.steps import Steps
from tpunb.tensorflow.checks.rule_check import refuse_other_strategies, with_fixed
from tpunb.tensorflow.compiler.functions import size_of, traced_function
from tpunb.tensorflow.virtual.graph.traced_function import TracedFunction
from tpunb.tensorflow.virtual.strict import xla
from tpunb.tpu.compiled_program import Buffer, CodeLine

_MUCH = 0.1


@giving_back()
def compile_step(steps: Steps, settings: CompileSettings) -> TpuProgram | TpuPrograms:
    """Compile a step of a cell, and read only its data's first batch: see `CellRunner.compile`."""
    strategy = steps.cache.strategy
    libtpu.start(speed=settings.speed)
    xla.start()
    refuse_other_strategies(strategy)
    kinds = targets(settings.tpus, strategy)
    say = settings.progress or (lambda _: None)
    say("tracing the cell")
    batch = steps.bind_first_batch()
    types = open_batch(steps.batches, steps.names)
    captured, functions = _traced(steps, types)
    values = (*captured.read.values(), *captured.closed.values())
    used = [leaf for value in values for leaf in leaves(value)]
    layers = {name for leaf in used for name in layer_names(leaf)}
    models = [model for leaf in used for model in models_in(leaf)]
    how = settings.settings(functools.partial(line_in, steps.cell), len(kinds), say)
    how = dataclasses.replace(how, choose_user=functools.partial(line_of_user, steps.cell))
    share = max(batch.sizes, default=None) if batch is not None else None
    function = traced_function(functions, how, layers=frozenset(layers), each=share)
    batches = _any_batch(steps, types, share) if share else None

    def completed(kind: Target, program: TpuProgram) -> TpuProgram:
        if batches is None:
            return program
        if settings.largest_batch:
            return _with_largest(program, kind, batches, settings, how)
        return with_what_fits(program, kind, how, lambda: batches, models)

    shown = for_each_type(
        kinds,
        lambda kind: function.on(kind, how),
        completed,
        lambda program: _of_cell(program, steps.cell, captured, functions),
    )
    return shown[0] if len(shown) == 1 else shown


def _traced(
    steps: Steps, types: Types, size: int | None = None
) -> tuple[Captured, list[TracedFunction]]:
    """Return the values that a cell captures, and its replica functions.

    Args:
        steps: The run of the cell.
        types: The types of a batch whose sizes are not fixed, by the cell's names.
        size: The batch size of a replica; None for the size of the batch that was read.
    """
    resized = None if size is None else functools.partial(_resized, names=steps.names, size=size)
    captured, fixed = steps.step.functions_to_compile(resized)
    if not types:
        return captured, fixed
    with silent():
        _, functions = steps.step.functions_to_compile(lambda values: opened(values, types))
    return captured, with_fixed(functions, fixed)


def _any_batch(steps: Steps, types: Types, first: int) -> AnyBatch:
    """Return the cell with any batch.

    Only shapes are traced, and no batch of another size is made.
    """

    def lowered(sizes: Sequence[int], how: Settings) -> Function:
        _, functions = _traced(steps, types, sizes[0])
        return traced_function(functions, how, each=sizes[0])

    return AnyBatch(lowered, lambda size: [size], first, 1)


def _with_largest(
    program: TpuProgram, kind: Target, batches: AnyBatch, settings: CompileSettings, how: Settings
) -> TpuProgram:
    """Return the program with the largest global batch that fits on its TPU type."""
    memory, first = program.memory, batches.before
    if memory is None or first is None:
        return program
    quiet = dataclasses.replace(how, speed=False, details=False, progress=lambda _: None)

    def attempt(size: int) -> TpuProgram:
        limited = dataclasses.replace(quiet, deadline=settings.deadline())
        return program if size == first else batches.on(kind, size, limited)

    sizes = Sizes(program.replicas, attempt, how.progress)
    step = 0 if settings.largest_batch == "quick" else 1
    largest = sizes.largest(first, memory.available, fine=FINE, step=step)
    notes = (*program.notes, sizes.note) if sizes.note else program.notes
    most = program.replicas * largest
    if sizes.stopped:
        fitting = dataclasses.replace(program, largest_batch=most or None, notes=notes)
        message = f"while looking for the largest batch on {program.tpu}: {sizes.known}."
        raise SearchStopped(message, TpuPrograms([fitting]))
    return dataclasses.replace(program, largest_batch=most, notes=notes)


def _resized(captured: Captured, names: Sequence[str], size: int) -> list[Any]:
    """Return the arguments, with the batch's arguments as shapes of another size."""

    def resized(argument: Any) -> Any:
        part = parts_of(argument)[0]
        return tf.TensorSpec([size, *part.shape[1:]], part.dtype) if part.shape.rank else argument

    return [
        resized(argument) if owner in names else argument
        for argument, owner in zip(captured.arguments, captured.owners, strict=True)
    ]


def _of_cell(
    program: TpuProgram,
    cell: StepSource,
    captured: Captured,
    functions: Sequence[TracedFunction],
) -> TpuProgram:
    """Return the program in the cell's terms: its lines, and the notebook's names."""
    # Include all lines of the cell, not only those with a share of the program.
    text = "\n".join(cell.lines[1:]).rstrip().splitlines()
    code = [CodeLine(SourceLine("", number), line) for number, line in enumerate(text, start=2)]
    others = (line for line in program.lines if line.place.file)
    program = dataclasses.replace(program, lines=(*code, *others))
    memory = program.memory
    if memory is None:
        return program
    # Map TensorFlow's names of the replica function's arguments to the notebook's names.
    names: dict[str, str] = {}
    owners = ["replica_id", *captured.owners]
    for function in functions:
        inputs = [tensor for tensor in function.graph.inputs if tensor.dtype.name != "resource"]
        if len(inputs) == len(owners):  # otherwise composite tensors are among the inputs
            names |= zip((tensor.name.partition(":")[0] for tensor in inputs), owners, strict=True)
    names |= {size_of(name): size_of(owner) for name, owner in names.items()}

    def named(buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
        return tuple(
            dataclasses.replace(buffer, node=names.get(buffer.node, buffer.node))
            if buffer.kind == "argument"
            else buffer
            for buffer in buffers
        )

    notes = program.notes
    if memory.outputs >= _MUCH * memory.peak:
        note = (
            f"Names that the cell assigns are its results, {byte_count(memory.outputs)} a core: "
            "compute what is only needed inside in a function."
        )
        notes = (*notes, note)
    memory = dataclasses.replace(
        memory, largest=named(memory.largest), padding=named(memory.padding)
    )
    return dataclasses.replace(program, memory=memory, notes=notes)
