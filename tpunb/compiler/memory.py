"""A program's memory on a core, by tensor, line and layer, and the buffers alive at its peak."""

from __future__ import annotations

import collections
import dataclasses
import linecache
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tpunb.compiler.hlo import Computation, Instruction, Module, Shape
from tpunb.compiler.libtpu import Compiled
from tpunb.compiler.lowered import Origins, Parameters, unmarked
from tpunb.compiler.topologies import Target
from tpunb.errors.code_problems import SourceLine
from tpunb.tpu.compiled_program import Buffer, ProgramMemory, Share

# They give the buffers of what they take, in place or in parts.
_ALIASES = frozenset(
    {"bitcast", "optimization-barrier", "add-dependency", "async-update", "domain"}
)
_IN_PLACE = frozenset({"all-reduce", "all-reduce-start", "dynamic-update-slice", "scatter", "sort"})
_SHARED = re.compile(r"output_to_operand_aliasing=\{(.*?\))\}")
_ALIASING = re.compile(r'"aliasing_operands":\{"lists":\[(.*?\]\}|)\]\}')
_INDICES = re.compile(r'"indices":\[([^\]]*)\]')
_PAIR = re.compile(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}\)")


@dataclasses.dataclass(frozen=True, slots=True)
class Live:
    """A buffer that is alive at the peak.

    Attributes:
        shape: Its shape.
        instruction: What made it.
        parameter: Its number, where it is an argument; else None.
        output: Whether it is, or becomes, a result.
    """

    shape: Shape
    instruction: Instruction
    parameter: int | None = None
    output: bool = False


@dataclasses.dataclass(slots=True)
class _Buffer:
    shape: Shape
    instruction: Instruction
    begin: int
    end: int
    parameter: int | None = None
    output: bool = False
    inner: tuple[Live, ...] = ()

    @property
    def size(self) -> int:
        return self.shape.padded if self.shape.space == 0 else 0


Value = Sequence["int | Value"]


def alive_at_peak(module: Module) -> list[Live]:
    """The buffers in HBM that are alive when they take most, largest first."""
    found = _peak(module, module.entry, entry=True)
    return sorted(found, key=lambda one: one.shape.padded, reverse=True)


def _peak(module: Module, computation: Computation, *, entry: bool) -> list[Live]:
    sweep = _Sweep(module, computation, entry=entry)
    sizes = sweep.sizes()
    if not sizes:
        return []
    return sweep.alive(max(range(len(sizes)), key=sizes.__getitem__))


class _Sweep:
    """The buffers of a scheduled computation, with the times between which they are alive."""

    def __init__(self, module: Module, computation: Computation, *, entry: bool) -> None:
        self._module, self._computation, self._entry = module, computation, entry
        self._buffers: list[_Buffer] = []
        self._values: dict[str, list[int]] = {}
        self._bodies: dict[int, list[Live]] = {}
        for time, instruction in enumerate(computation.instructions):
            self._see(time, instruction)
        self._return(len(computation.instructions))

    def sizes(self) -> list[int]:
        """The bytes that are alive at each instruction."""
        steps = [0] * (len(self._computation.instructions) + 2)
        for buffer in self._buffers:
            steps[buffer.begin] += buffer.size
            steps[buffer.end + 1] -= buffer.size
        total, sizes = 0, []
        for time, step in enumerate(steps[:-2]):
            total += step
            inner = sum(one.shape.padded for one in self._bodies.get(time, ()))
            sizes.append(total + inner)
        return sizes

    def alive(self, time: int) -> list[Live]:
        """Return the buffers that are alive at an instruction."""
        own = [
            Live(one.shape, one.instruction, one.parameter, one.output)
            for one in self._buffers
            if one.begin <= time <= one.end and one.size
        ]
        return own + self._bodies.get(time, [])

    def _see(self, time: int, instruction: Instruction) -> None:
        for operand in instruction.operands:
            for buffer in self._values.get(operand, ()):
                self._buffers[buffer].end = max(self._buffers[buffer].end, time)
        self._values[instruction.name] = list(self._given(time, instruction))
        bodies = [
            found
            for kind, name in instruction.called.items()
            if kind == "body" or kind.startswith(("branch", "true", "false", "called"))
            if (found := self._body(name))
        ]
        if bodies:  # of branches, the one that takes most
            self._bodies[time] = max(bodies, key=lambda one: sum(x.shape.padded for x in one))

    def _body(self, name: str) -> list[Live]:
        computation = self._module.computations.get(name)
        return _peak(self._module, computation, entry=False) if computation else []

    def _given(self, time: int, instruction: Instruction) -> Iterator[int]:
        """The buffers of an instruction's results, flat."""
        opcode, operands = instruction.opcode, instruction.operands
        known = [self._values.get(operand, []) for operand in operands]
        if opcode == "parameter":
            yield from self._parameter(time, instruction)
        elif opcode == "tuple":
            yield from (buffer for one in known for buffer in one)
        elif opcode == "get-tuple-element":
            yield from self._element(instruction)
        elif opcode == "while" or (opcode in _ALIASES and known):
            yield from known[0][: len(instruction.results)]
        elif opcode.endswith("-start") and opcode not in _IN_PLACE:
            yield from self._begun(time, instruction, known)
        elif opcode.endswith("-done") and known:
            yield from self._finished(instruction, known[0])
        else:
            yield from self._made(time, instruction, known)

    def _parameter(self, time: int, instruction: Instruction) -> Iterator[int]:
        number = int(instruction.argument) if instruction.argument.isdigit() else 0
        for shape in instruction.results:
            if self._entry:  # the caller keeps them for as long as the program runs
                buffer = self._new(0, instruction, shape)
                self._buffers[buffer].end = len(self._computation.instructions)
                self._buffers[buffer].parameter = number
                yield buffer
            else:
                yield self._new(time, instruction, dataclasses.replace(shape, space=-1))

    def _element(self, instruction: Instruction) -> Iterator[int]:
        """A part of a tuple; a tuple in it is counted by how many arrays are before it."""
        source = self._computation.by_name.get(instruction.operands[0])
        values = self._values.get(instruction.operands[0], [])
        if source is None:
            return
        parts = _parts(source.shape)
        before = sum(parts[: instruction.index])
        width = parts[instruction.index] if instruction.index < len(parts) else 1
        yield from values[before : before + width]

    def _begun(
        self, time: int, instruction: Instruction, known: Sequence[list[int]]
    ) -> Iterator[int]:
        """Something asynchronous: what it takes is among its results, which wait for its end."""
        sources = [buffer for one in known for buffer in one]
        for shape in instruction.results:
            same = next((one for one in sources if self._buffers[one].shape == shape), None)
            if same is None:
                yield self._new(time, instruction, shape)
            else:
                sources.remove(same)
                yield same

    def _finished(self, instruction: Instruction, started: list[int]) -> Iterator[int]:
        """The results among what was started; the last of its shape, as sources come first."""
        for shape in instruction.results:
            yield from [one for one in started if self._buffers[one].shape == shape][-1:]

    def _made(
        self, time: int, instruction: Instruction, known: Sequence[list[int]]
    ) -> Iterator[int]:
        shared = _shared(instruction)
        for place, shape in enumerate(instruction.results):
            operand = shared.get(place)
            sources = known[operand] if operand is not None and operand < len(known) else []
            if sources and self._fits(sources[0], shape, time):
                yield sources[0]
            else:
                yield self._new(time, instruction, shape)

    def _fits(self, buffer: int, shape: Shape, time: int) -> bool:
        """Return whether a result can lie where an operand does."""
        before = self._buffers[buffer]
        return before.shape.padded == shape.padded and before.shape.space == shape.space

    def _new(self, time: int, instruction: Instruction, shape: Shape) -> int:
        self._buffers.append(_Buffer(shape, instruction, time, time))
        return len(self._buffers) - 1

    def _return(self, end: int) -> None:
        results = self._values.get(self._computation.root.name, [])
        for place, number in enumerate(results):
            buffer = self._buffers[number]
            buffer.end = end
            if not self._entry:
                continue
            buffer.output = True
            if place in self._module.aliases and buffer.parameter is None:
                # It is written over the argument, which is counted already.
                buffer.shape = dataclasses.replace(buffer.shape, space=-1)


def _shared(instruction: Instruction) -> Mapping[int, int]:
    """Return which results reuse which operands' memory, by number."""
    if instruction.opcode in _IN_PLACE:
        return {place: place for place in range(len(instruction.results))}
    if found := _SHARED.search(instruction.rest):
        pairs = _PAIR.findall(found[1])
        return {int(out.split(",")[0] or 0): int(which) for out, which, _ in pairs}
    shared: dict[int, int] = {}
    if found := _ALIASING.search(instruction.rest):
        count = len(instruction.operands)
        for text in _INDICES.findall(found[1]):
            # Operands first, results behind them.
            numbers = [int(number) for number in re.findall(r"\d+", text)]
            before = [number for number in numbers if number < count]
            shared.update((n - count, before[0]) for n in numbers if n >= count and before)
    return shared


def _parts(shape: str) -> list[int]:
    """Return the number of arrays in each element of a tuple."""
    depth, parts, begin = 0, [], 1
    for place, character in enumerate(shape):
        depth += (character in "([{") - (character in ")]}")
        if (depth == 1 and character == ",") or (depth == 0 and character == ")"):
            text = shape[begin:place]
            parts.append(_arrays(text))
            begin = place + 1
    return parts or [1]


def _arrays(text: str) -> int:
    return len(re.findall(r"\w+\[", text))


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
    """Return the memory that a compiled program takes.

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
    """Return the values that the scheduled computations write to HBM."""
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
