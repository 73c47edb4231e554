"""What a program takes of a core's memory, by tensor, line and layer."""

from __future__ import annotations

import collections
import linecache
from collections.abc import Callable, Iterable, Iterator

from tpunb.compiler.hlo import Instruction, Module
from tpunb.compiler.libtpu import Compiled
from tpunb.compiler.liveness import Live, alive_at_peak
from tpunb.compiler.lowered import Origins, Parameters, unmarked
from tpunb.compiler.shapes import Shape
from tpunb.compiler.topologies import Target
from tpunb.errors.code_problems import SourceLine
from tpunb.tpu.compiled_program import Buffer, ProgramMemory, Share

__all__ = ["described", "line_name"]

_MOST = 20
_PADDED = 1.05
_NO_BUFFERS = frozenset(
    {"parameter", "tuple", "get-tuple-element", "bitcast", "while", "constant", "copy-done"}
)


def described(
    compiled: Compiled,
    module: Module | None,
    parameters: Parameters,
    origins: Origins,
    target: Target,
) -> ProgramMemory:
    """What a compiled program takes.

    Args:
        compiled: What libtpu says.
        module: Its program; None where there is none.
        parameters: Its arguments.
        origins: Where its instructions came from.
        target: What it was compiled for.
    """
    alive = alive_at_peak(module) if module else []
    buffers = [_buffer(one, module, parameters, origins) for one in alive if module]
    variables = sum(one.padded_bytes for one in buffers if one.kind == "variable")
    results = compiled.outputs - compiled.aliased
    temporaries = max(compiled.peak - compiled.arguments - results, 0)
    return ProgramMemory(
        peak=compiled.peak,
        available=target.hardware.usable_bytes,
        data_sheet=target.tpu.hbm_bytes,
        arguments=compiled.arguments,
        variables=variables,
        outputs=results,
        temporaries=temporaries,
        code=compiled.code,
        largest=tuple(buffers[:_MOST]),
        padding=tuple(_padding(module, parameters, origins))[:_MOST] if module else (),
        by_line=_summed(buffers, lambda one: one.line),
        by_layer=_summed(buffers, lambda one: one.layer),
    )


def line_name(line: SourceLine) -> str:
    """A line's code, for a reader."""
    return linecache.getline(line.file, line.line).strip() or f"line {line.line}"


def _buffer(live: Live, module: Module, parameters: Parameters, origins: Origins) -> Buffer:
    if live.parameter is not None and live.parameter < len(parameters):
        name, variable = parameters[live.parameter]
        kind = "variable" if variable else "argument"
        layer = origins.layer(name)
        return _of_shape(live.shape, kind, name, None, layer, kind)
    kind = "output" if live.output else "temporary"
    return _made(live.shape, live.instruction, module, origins, kind)


def _made(
    shape: Shape, instruction: Instruction, module: Module, origins: Origins, kind: str
) -> Buffer:
    node = module.nodes[instruction.name]
    operation = origins.operation(node) or instruction.opcode
    return _of_shape(shape, operation, node, origins.line(node), origins.layer(node), kind)


def _of_shape(
    shape: Shape, operation: str, node: str, line: SourceLine | None, layer: str, kind: str
) -> Buffer:
    return Buffer(
        shape.sizes,
        shape.dtype,
        shape.padded,
        shape.unpadded,
        operation,
        unmarked(node),
        line,
        layer,
        kind,
        shape.text,
    )


def _padding(module: Module, parameters: Parameters, origins: Origins) -> list[Buffer]:
    """The buffers with most padding, in the whole program, each shape of a node once."""
    found: dict[tuple[str, str], Buffer] = {}
    for instruction, shape in _in_hbm(module):
        buffer = _made(shape, instruction, module, origins, "temporary")
        found.setdefault((buffer.node, buffer.text), buffer)
    for instruction in module.entry.instructions:
        if instruction.opcode == "parameter" and instruction.results:
            live = Live(instruction.results[0], instruction, int(instruction.argument))
            buffer = _buffer(live, module, parameters, origins)
            found.setdefault((buffer.node, buffer.text), buffer)
    wasteful = [one for one in found.values() if one.factor > _PADDED]
    return sorted(wasteful, key=lambda one: one.wasted, reverse=True)


def _in_hbm(module: Module) -> Iterator[tuple[Instruction, Shape]]:
    """What the scheduled computations make in HBM."""
    pending = [module.entry]
    while pending:
        for instruction in pending.pop().instructions:
            if instruction.opcode not in _NO_BUFFERS:
                yield from ((instruction, one) for one in instruction.results if one.space == 0)
            if instruction.opcode == "while":
                pending.append(module.computations[instruction.called["body"]])


def _summed(
    buffers: Iterable[Buffer], key: Callable[[Buffer], SourceLine | str | None]
) -> tuple[Share, ...]:
    sums: collections.Counter[SourceLine | str] = collections.Counter()
    for buffer in buffers:
        if place := key(buffer):
            sums[place] += buffer.padded_bytes
    return tuple(
        Share(place, memory=size)
        if isinstance(place, str)
        else Share(line_name(place), place, memory=size)
        for place, size in sums.most_common()
    )
