"""A program's memory on a core by tensor, line and layer, and the buffers alive at its peak."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import linecache
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tpunb.compiler.ask.answers import Compiled
from tpunb.compiler.ask.libtpu import Prepared, unmarked
from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.read.hlo import Computation, Instruction, Module, Shape, aliases_in, parse
from tpunb.errors.code_problems import SourceLine
from tpunb.tpu.compiled_program import (
    Buffer,
    MemoryOverProgram,
    MemoryOwner,
    ProgramMemory,
    Share,
)

# These opcodes return the buffers of their operands, whole or in parts.
_ALIASES = frozenset(
    {"bitcast", "optimization-barrier", "add-dependency", "async-update", "domain"}
)
_IN_PLACE = frozenset({"all-reduce", "all-reduce-start", "dynamic-update-slice", "scatter", "sort"})
_OF_TEMPORARIES = frozenset({"all-reduce", "sort"})
"""Operations in place that do not overwrite an argument, which others may read later."""

_SHARED = re.compile(r"output_to_operand_aliasing=\{(.*?\))\}")
_ALIASING = re.compile(r'"aliasing_operands":\{"lists":\[(.*?\]\}|)\]\}')
_INDICES = re.compile(r'"indices":\[([^\]]*)\]')


@dataclasses.dataclass(slots=True, eq=False)
class Live:
    """A buffer of a scheduled computation.

    Attributes:
        shape: The buffer's shape.
        instruction: The instruction that made it.
        begin: The number of the step from which it is alive.
        end: The number of the last step for which it is alive.
        parameter: The argument's number, if it is an argument; otherwise None.
        output: Whether it is or becomes a result.
        counted: Whether its memory is that of another buffer, which is counted.
    """

    shape: Shape
    instruction: Instruction
    begin: int = 0
    end: int = 0
    parameter: int | None = None
    output: bool = False
    counted: bool = False

    @property
    def size(self) -> int:
        """The buffer's own bytes in HBM."""
        return self.shape.padded if self.shape.space == 0 and not self.counted else 0


@dataclasses.dataclass(frozen=True)
class Lives:
    """The buffers of a program, in its order. Each loop's body and each branch counts once.

    Attributes:
        buffers: The buffers.
        steps: The instructions in their order.
    """

    buffers: Sequence[Live]
    steps: Sequence[Instruction]

    def sizes(self, buffers: Iterable[Live]) -> list[int]:
        """Return the bytes of HBM that some of the buffers take at each step."""
        changes = [0] * (len(self.steps) + 1)
        for buffer in buffers:
            changes[buffer.begin] += buffer.size
            changes[buffer.end + 1] -= buffer.size
        return list(itertools.accumulate(changes[:-1]))

    @functools.cached_property
    def totals(self) -> list[int]:
        """The bytes in HBM at each step."""
        return self.sizes(self.buffers)

    def within(self, peak: int) -> Lives:
        """Return the buffers with results from the beginning, unless that exceeds a known peak.

        The caller reserves results before. The compiler may put other values there until then.
        """
        reserved = [
            dataclasses.replace(live, begin=0 if live.output else live.begin)
            for live in self.buffers
        ]
        lives = Lives(reserved, self.steps)
        return lives if max(lives.totals, default=0) <= peak else self

    @property
    def at_peak(self) -> list[Live]:
        """The buffers in HBM that are alive at the peak, largest first."""
        peak = max(range(len(self.steps)), key=self.totals.__getitem__, default=0)
        alive = [live for live in self.buffers if live.begin <= peak <= live.end and live.size]
        return sorted(alive, key=lambda live: live.shape.padded, reverse=True)


def lives_in(module: Module) -> Lives:
    """Return the buffers of a program."""
    buffers: list[Live] = []
    steps: list[Instruction] = []
    _Sweep(module, module.entry, buffers, steps, entry=True)
    for buffer in buffers:
        # The caller keeps arguments while the program runs.
        if buffer.output or buffer.parameter is not None:
            buffer.end = len(steps) - 1
    return Lives(buffers, steps)


class _Sweep:
    """Adds the buffers and the steps of a scheduled computation to those before it."""

    def __init__(
        self,
        module: Module,
        computation: Computation,
        buffers: list[Live],
        steps: list[Instruction],
        *,
        entry: bool,
    ) -> None:
        self._computation, self._entry = computation, entry
        self._buffers, self._steps = buffers, steps
        self._values: dict[str, list[Live]] = {}
        for instruction in computation.instructions:
            begin = len(steps)
            for kind, name in instruction.called.items():
                inner = module.computations.get(name)
                if inner and kind.startswith(("body", "branch", "true", "false", "called")):
                    _Sweep(module, inner, buffers, steps, entry=False)
            for operand in instruction.operands:
                for buffer in self._values.get(operand, ()):
                    buffer.end = len(steps)
            steps.append(instruction)
            self._values[instruction.name] = list(self._given(begin, instruction))
        for place, buffer in enumerate(self._values.get(computation.root.name, ())):
            buffer.output = entry
            # It replaces an argument, or it is in the memory of the loop's or branch's result.
            buffer.counted |= not entry or (place in module.aliases and buffer.parameter is None)

    def _given(self, begin: int, instruction: Instruction) -> Iterator[Live]:
        """Yield the buffers of an instruction's results, without nesting."""
        opcode = instruction.opcode
        known = [self._values.get(operand, []) for operand in instruction.operands]
        if opcode == "parameter" and self._entry:
            for shape in instruction.results:
                buffer = self._new(0, instruction, shape)
                buffer.parameter = int(instruction.argument)
                yield buffer
        elif opcode == "parameter":
            for shape in instruction.results:
                buffer = self._new(begin, instruction, shape)
                buffer.counted = True
                yield buffer
        elif opcode == "tuple":
            yield from itertools.chain(*known)
        elif opcode == "get-tuple-element":
            # Nested tuples are flat here, so count the arrays before the element.
            source = self._computation.by_name.get(instruction.operands[0])
            parts, index = _parts(source.shape) if source else [], instruction.index
            before, width = sum(parts[:index]), parts[index] if index < len(parts) else 1
            yield from known[0][before : before + width]
        elif opcode == "while" or (opcode in _ALIASES and known):
            yield from known[0][: len(instruction.results)]
        elif opcode.endswith("-start") and opcode not in _IN_PLACE:
            # Its operands are among its results, which wait for its end.
            sources = list(itertools.chain(*known))
            for shape in instruction.results:
                same = next((source for source in sources if source.shape == shape), None)
                if same is not None:
                    sources.remove(same)
                yield same or self._new(begin, instruction, shape)
        elif opcode.endswith("-done") and known:
            # Operands come first, so take the last started buffer of this shape.
            for shape in instruction.results:
                yield from [buffer for buffer in known[0] if buffer.shape == shape][-1:]
        else:
            yield from self._made(begin, instruction, known)

    def _made(
        self, begin: int, instruction: Instruction, known: Sequence[list[Live]]
    ) -> Iterator[Live]:
        """Yield new buffers, or the operands' buffers that the results overwrite."""
        shared = _shared(instruction)
        for place, shape in enumerate(instruction.results):
            operand = shared.get(place, len(known))
            fitting = [
                buffer
                for buffer in (known[operand][:1] if operand < len(known) else ())
                if buffer.shape.padded == shape.padded and buffer.shape.space == shape.space
                if instruction.opcode not in _OF_TEMPORARIES
                or buffer.instruction.opcode != "parameter"
            ]
            yield from fitting or [self._new(begin, instruction, shape)]

    def _new(self, begin: int, instruction: Instruction, shape: Shape) -> Live:
        self._buffers.append(Live(shape, instruction, begin, len(self._steps) - 1))
        return self._buffers[-1]


def _shared(instruction: Instruction) -> Mapping[int, int]:
    """Return the numbers of the results that reuse an operand's memory, and the operands'."""
    if instruction.opcode in _IN_PLACE:
        return {place: place for place in range(len(instruction.results))}
    if text := instruction.attribute(_SHARED):
        return aliases_in(text)
    shared: dict[int, int] = {}
    count = len(instruction.operands)
    for text in _INDICES.findall(instruction.attribute(_ALIASING)):
        # Numbers of operands come first, then numbers of results.
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
            parts.append(len(re.findall(r"\w+\[", shape[begin:place])))
            begin = place + 1
    return parts or [1]


_MOST = 20
_PADDED = 1.05
_NO_BUFFERS = frozenset(
    {"parameter", "tuple", "get-tuple-element", "bitcast", "while", "constant", "copy-done"}
)


def described(
    compiled: Compiled, module: Module | None, prepared: Prepared, target: Target
) -> ProgramMemory:
    """Return the memory of a compiled program.

    Args:
        compiled: libtpu's answer.
        module: The program; None if there is none.
        prepared: The function that was compiled.
        target: The target of the compilation.
    """
    lives = lives_in(module).within(compiled.peak) if module else Lives((), ())
    buffers = [
        dataclasses.replace(
            _buffer(live, module, prepared), last=_last(live, lives, module, prepared)
        )
        for live in lives.at_peak
        if module
    ]
    results = compiled.outputs - compiled.aliased
    return ProgramMemory(
        peak=compiled.peak,
        available=target.hardware.usable_bytes,
        data_sheet=target.tpu.hbm_bytes,
        arguments=compiled.arguments,
        variables=sum(buffer.padded_bytes for buffer in buffers if buffer.kind == "variable"),
        outputs=results,
        aliased=compiled.aliased,
        temporaries=max(compiled.peak - compiled.arguments - results, 0),
        code=compiled.code,
        largest=tuple(buffers[:_MOST]),
        padding=tuple(_padding(module, prepared)[:_MOST]) if module else (),
        by_line=_summed((buffer.line, buffer.padded_bytes) for buffer in buffers),
        by_layer=_summed((buffer.layer, buffer.padded_bytes) for buffer in buffers),
        over_program=_over_program(lives, module, prepared) if module else None,
    )


def of_refused(text: str, prepared: Prepared, target: Target) -> ProgramMemory:
    """Return the memory of a scheduled program that does not fit, by its buffers alone.

    Args:
        text: The program's text.
        prepared: The function.
        target: The target that it does not fit on.
    """
    module = parse(text)
    alive = lives_in(module).at_peak
    results = module.entry.root.results
    counted = Compiled(
        peak=sum(buffer.size for buffer in alive),
        arguments=sum(buffer.size for buffer in alive if buffer.parameter is not None),
        outputs=sum(shape.padded for shape in results),
        aliased=sum(results[place].padded for place in module.aliases if place < len(results)),
        code=0,
        text=text,
        bounded=False,
    )
    return described(counted, module, prepared, target)


def _buffer(live: Live, module: Module, prepared: Prepared) -> Buffer:
    origins, shape = prepared.origins, live.shape
    if live.parameter is not None and live.parameter < len(prepared.parameters):
        node, variable = prepared.parameters[live.parameter]
        operation = kind = "variable" if variable else "argument"
        line = None
    else:
        node = module.nodes[live.instruction.name]
        operation = origins.operation(node) or live.instruction.opcode
        kind = "output" if live.output else "temporary"
        line = origins.line(node)
    return Buffer(
        shape.sizes,
        shape.dtype,
        shape.padded,
        shape.unpadded,
        operation,
        unmarked(node),
        line,
        origins.layer(node),
        kind,
        shape.text,
    )


def _last(live: Live, lives: Lives, module: Module, prepared: Prepared) -> SourceLine | None:
    """Return the line that uses a temporary value last; None for what is alive to the end."""
    if live.output or live.parameter is not None:
        return None
    return prepared.origins.line(module.nodes[lives.steps[live.end].name])


_MOMENTS = 160
"""The most places in a program at which its memory is kept: a picture has no more columns."""
_OWNERS = 7
_SHOWN = 0.01
"""The part of the peak from which on a line is an owner of its own."""
_ARGUMENTS = "arguments and variables"


def _over_program(lives: Lives, module: Module, prepared: Prepared) -> MemoryOverProgram:
    """Return the memory at the places that need most in equal parts of a program, by owner."""
    count = len(lives.steps)
    bounds = [count * part // _MOMENTS for part in range(_MOMENTS + 1)]
    moments = [
        max(range(begin, end), key=lives.totals.__getitem__)
        for begin, end in itertools.pairwise(bounds)
        if begin < end
    ]
    owned: dict[SourceLine | str, list[Live]] = collections.defaultdict(list)
    for live in filter(lambda live: live.size, lives.buffers):
        line = prepared.origins.line(module.nodes[live.instruction.name])
        owned[_ARGUMENTS if live.parameter is not None else line or ""].append(live)
    named: list[MemoryOwner] = []
    for owner, buffers in owned.items():
        every = lives.sizes(buffers)
        place = share(owner)
        sizes = tuple(every[moment] for moment in moments)
        named.append(MemoryOwner(place.name if owner else "", place.line, sizes))
    peak = max(range(len(moments)), key=lambda place: lives.totals[moments[place]])
    named.sort(key=lambda each: each.sizes[peak] + max(each.sizes), reverse=True)
    least = _SHOWN * max(lives.totals)
    shown = [each for each in named if each.name and max(each.sizes) >= least][:_OWNERS]
    others = [each.sizes for each in named if each not in shown]
    shown.sort(key=lambda each: (each.name != _ARGUMENTS, -each.sizes[peak]))
    if others:
        shown.append(MemoryOwner("", None, tuple(map(sum, zip(*others, strict=True)))))
    return MemoryOverProgram(count, tuple(moments), tuple(shown))


def _padding(module: Module, prepared: Prepared) -> list[Buffer]:
    """Return the buffers with the most padding in the program, each shape of a node once."""
    written: list[Live] = []
    pending = [module.entry]
    while pending:
        for step in pending.pop().instructions:
            if step.opcode not in _NO_BUFFERS:
                written += [Live(shape, step) for shape in step.results if shape.space == 0]
            if step.opcode == "while":
                pending.append(module.computations[step.called["body"]])
    written += [
        Live(step.results[0], step, parameter=int(step.argument))
        for step in module.entry.instructions
        if step.opcode == "parameter" and step.results
    ]
    buffers: dict[tuple[str, str], Buffer] = {}
    for live in written:
        buffer = _buffer(live, module, prepared)
        buffers.setdefault((buffer.node, buffer.text), buffer)
    wasteful = [buffer for buffer in buffers.values() if buffer.factor > _PADDED]
    return sorted(wasteful, key=lambda buffer: buffer.wasted, reverse=True)


def _summed(parts: Iterable[tuple[SourceLine | str | None, int]]) -> tuple[Share, ...]:
    sums: collections.Counter[SourceLine | str] = collections.Counter()
    for place, size in parts:
        if place:
            sums[place] += size
    return tuple(share(place, memory=size) for place, size in sums.most_common())


def share(place: SourceLine | str, **figures: Any) -> Share:
    """Return the share of a line, or of a layer or operation given by name."""
    if isinstance(place, str):
        return Share(place, **figures)
    return Share(line_name(place), place, **figures)


def line_name(line: SourceLine) -> str:
    """Return a line's code, for a reader."""
    return linecache.getline(line.file, line.line).strip() or f"line {line.line}"
