"""What the TPU's compiler made of a function, as it is shown.

Programs come from the room above: they are read by their attributes, and what is drawn
never sees their classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tpunb._util.plain_text import shortened
from tpunb._util.units import counted, grouped
from tpunb.display.describe.program_code import CodeRow, describe_code
from tpunb.errors.code_problems import Problem

__all__ = [
    "CodeRow",
    "MemoryBar",
    "ProgramDescription",
    "ProgramsDescription",
    "Segment",
    "ShareRow",
    "TensorRow",
    "TimeFacts",
    "TypeRow",
    "describe_program",
    "describe_programs",
]

MAX_ROWS = 100
"""Layers, operations, collectives and tensors that are kept, of each."""

MAX_PROBLEMS = 30
MAX_TEXT = 2000
MAX_NAME = 120

Verdict = Literal["compiles", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the memory's bar.

    Attributes:
        kind: `"variables"`, `"inputs"`, `"results"`, `"temporaries"`, `"other"` or `"free"`.
        bytes: How large it is.
        begin: Where it begins.
    """

    kind: str
    bytes: int
    begin: int


@dataclass(frozen=True, slots=True)
class MemoryBar:
    """What a program takes of a core's memory, in bytes.

    Attributes:
        segments: Its parts from the left, free memory the last.
        peak: What it takes.
        available: What a program can use.
        data_sheet: What the data sheet has.
        exact: Whether the peak is the compiler's figure.
    """

    segments: tuple[Segment, ...]
    peak: int
    available: int
    data_sheet: int
    exact: bool

    @property
    def over(self) -> int:
        """How much it takes beyond what there is; 0 where it fits."""
        return max(self.peak - self.available, 0)

    @property
    def total(self) -> int:
        """What the whole bar stands for."""
        return max(self.peak, self.available, 1)


@dataclass(frozen=True, slots=True)
class TimeFacts:
    """An estimate of a call's time.

    Attributes:
        low: Seconds, the lower estimate.
        high: Seconds, the higher one.
        parts: Names and fractions of the time, which add up to 1.
        examples: Examples a second at the higher and at the lower estimate; None where the
            batch is not known.
        per_core: Examples a second and core in the middle of the range; None likewise.
    """

    low: float
    high: float
    parts: tuple[tuple[str, float], ...]
    examples: tuple[float, float] | None
    per_core: float | None


@dataclass(frozen=True, slots=True)
class ShareRow:
    """What a layer, an operation or a collective takes.

    Attributes:
        name: What it is called.
        seconds: Of a call; None where no time was asked for.
        fraction: Of the time; None likewise.
        memory: Bytes alive at the peak that it made.
        part: These as a part of the peak.
        bytes: What it moves.
    """

    name: str
    seconds: float | None
    fraction: float | None
    memory: int
    part: float
    bytes: int


@dataclass(frozen=True, slots=True)
class TensorRow:
    """A tensor in a core's memory.

    Attributes:
        text: Type and sizes, `"f32[128,56,56,256]"`.
        bytes: What it takes.
        unpadded: What its numbers take.
        source: What made it: an operation, a variable, an argument.
        layer: The Keras layer, or empty.
        line: The line's number; None where unknown.
        kind: `"variable"`, `"argument"`, `"temporary"` or `"output"`.
        part: Its bytes as a part of the peak.
    """

    text: str
    bytes: int
    unpadded: int
    source: str
    layer: str
    line: int | None
    kind: str
    part: float

    @property
    def factor(self) -> float:
        """How many times its numbers it takes."""
        return self.bytes / self.unpadded if self.unpadded else 1.0


@dataclass(frozen=True, slots=True)
class ProgramDescription:
    """A compiled program, without anything that differs between two runs.

    Attributes:
        tpu: The TPU type.
        title: What it was compiled for.
        verdict: Whether it compiles and fits; `"unknown"` where the compiler did not say.
        outcome: The verdict in a line.
        errors: What the compiler refuses.
        memory: Of one core; None where there are no figures.
        time: None where none was asked for.
        code: The lines of the user's code.
        layers: The model's, longest or largest first.
        operations: TensorFlow's, longest first.
        collectives: Longest first.
        largest: Tensors alive at the peak, largest first.
        padding: Tensors with padding, most wasteful first.
        notes: What a reader has to know, and what is not counted.
        largest_batch: The largest global batch that fits; None where it was not asked for.
        omitted: How many rows of each of these tuples were left out, by its name.
    """

    tpu: str
    title: str
    verdict: Verdict
    outcome: str
    errors: tuple[Problem, ...] = ()
    memory: MemoryBar | None = None
    time: TimeFacts | None = None
    code: tuple[CodeRow, ...] = ()
    layers: tuple[ShareRow, ...] = ()
    operations: tuple[ShareRow, ...] = ()
    collectives: tuple[ShareRow, ...] = ()
    largest: tuple[TensorRow, ...] = ()
    padding: tuple[TensorRow, ...] = ()
    notes: tuple[str, ...] = ()
    largest_batch: int | None = None
    omitted: tuple[tuple[str, int], ...] = ()

    @property
    def has_shares(self) -> bool:
        """Whether anything is known of the lines of code."""
        return any(row.weight for row in self.code)

    def left_out(self, name: str) -> int:
        """How many rows of one of the tuples were left out."""
        return dict(self.omitted).get(name, 0)


@dataclass(frozen=True, slots=True)
class TypeRow:
    """A row of the table "which TPU do I need".

    Attributes:
        tpu: The TPU type.
        cores: How many it has.
        verdict: As a program's.
        peak: Bytes a core; None where unknown.
        available: Bytes a core that a program can use; None likewise.
        largest_batch: None where it was not asked for.
        low: Seconds of a call; None where no time was asked for.
        high: Seconds of a call; None likewise.
        per_core: Examples a second and core; None likewise.
    """

    tpu: str
    cores: int
    verdict: Verdict
    peak: int | None
    available: int | None
    largest_batch: int | None
    low: float | None
    high: float | None
    per_core: float | None


@dataclass(frozen=True, slots=True)
class ProgramsDescription:
    """A function compiled for several TPU types.

    Attributes:
        rows: The table.
        programs: What was compiled, in the table's order.
    """

    rows: tuple[TypeRow, ...]
    programs: tuple[ProgramDescription, ...]


def describe_programs(programs: Iterable[Any]) -> ProgramsDescription:
    """Describes programs for several TPU types.

    Args:
        programs: Such as a `tpunb.compiler.TpuPrograms`.
    """
    programs = list(programs)
    described = tuple(map(describe_program, programs))
    return ProgramsDescription(tuple(map(_type_row, programs, described)), described)


def describe_program(program: Any) -> ProgramDescription:
    """Describes a program.

    Args:
        program: A `tpunb.compiler.program.TpuProgram`, or anything with its attributes.
    """
    memory, time = program.memory, program.time
    peak = max(memory.peak, 1) if memory is not None else 1
    shares = {
        "layers": _merged(_of(time, "by_layer"), _of(memory, "by_layer")),
        "operations": list(_of(time, "by_operation")),
        "collectives": list(_of(time, "collectives")),
    }
    tensors = {name: list(_of(memory, name)) for name in ("largest", "padding")}
    code, lines_left_out = describe_code(program, peak)
    found: dict[str, list[Any]] = {**shares, **tensors, "errors": list(program.errors)}
    left_out = {
        name: len(rows) - (MAX_PROBLEMS if name == "errors" else MAX_ROWS)
        for name, rows in found.items()
    }
    left_out["code"] = lines_left_out
    return ProgramDescription(
        tpu=program.tpu,
        title=_title(program),
        verdict=_verdict(program),
        outcome=_outcome(program),
        errors=tuple(program.errors[:MAX_PROBLEMS]),
        memory=None if memory is None else _memory_bar(memory),
        time=None if time is None else _time_facts(program),
        code=code,
        **{
            name: tuple(_share(row, peak) for row in rows[:MAX_ROWS])
            for name, rows in shares.items()
        },
        **{
            name: tuple(_tensor(row, peak) for row in rows[:MAX_ROWS])
            for name, rows in tensors.items()
        },
        notes=tuple(
            shortened(note, MAX_TEXT) for note in (*program.notes, *_of(time, "not_counted"))
        ),
        largest_batch=program.largest_batch,
        omitted=tuple((name, count) for name, count in left_out.items() if count > 0),
    )


def _of(part: Any, name: str) -> Sequence[Any]:
    """The rows of a part of a program, which it may not have."""
    rows: Sequence[Any] = () if part is None else getattr(part, name)
    return rows


def _verdict(program: Any) -> Verdict:
    if program.unknown:
        return "unknown"
    return "compiles" if program.ok else "refused"


def _title(program: Any) -> str:
    parts = [counted(program.replicas, "replica")]
    if program.logical_devices > 1:
        parts.append(f"{program.logical_devices} logical devices each")
    if program.examples is not None:
        parts.append(f"global batch {grouped(program.examples)}")
    return f"TPU {program.tpu} · {' · '.join(parts)}"


def _outcome(program: Any) -> str:
    if program.unknown:
        return f"Not known whether it compiles: {program.unknown.rstrip('.')}"
    if program.ok:
        return "Compiles and fits" if program.memory is not None else "Compiles"
    memory = program.memory
    return "Does not fit" if memory is not None and not memory.fits else "Does not compile"


def _memory_bar(memory: Any) -> MemoryBar:
    """The parts one after the other; what they do not account for is the program and others."""
    inputs = max(memory.arguments - memory.variables, 0)
    parts = [
        ("variables", memory.variables),
        ("inputs", inputs),
        ("results", memory.outputs),
        ("temporaries", memory.temporaries),
        ("other", memory.peak),
        ("free", memory.available),
    ]
    segments, begin = [], 0
    for kind, size in parts:
        # What aliases or is freed before the peak is in the sums, not in the peak.
        limit = memory.available if kind == "free" else memory.peak
        size = min(size, limit - begin)
        if size > 0:
            segments.append(Segment(kind, size, begin))
            begin += size
    return MemoryBar(
        tuple(segments), memory.peak, memory.available, memory.data_sheet, memory.exact
    )


def _time_facts(program: Any) -> TimeFacts:
    time, examples = program.time, program.examples
    parts = [
        ("matrix products", time.matmul),
        ("memory-bound", time.memory_bound),
        ("collectives", time.collectives_fraction),
    ]
    known = math.fsum(fraction for _, fraction in parts)
    shown = [(name, min(max(fraction, 0.0), 1.0)) for name, fraction in parts if fraction > 0]
    if shown and known < 0.995:
        shown.append(("other", 1 - known))
    rates = None
    if examples is not None and time.low > 0:
        rates = (examples / time.high, examples / time.low)
    return TimeFacts(time.low, time.high, tuple(shown), rates, program.examples_per_second_per_core)


def _merged(timed: Sequence[Any], held: Sequence[Any]) -> list[Any]:
    """Layers with their time and their memory: one record of each may have only one of these."""
    memory = {share.name: share.memory for share in held}
    rows = [_Both(share, memory.pop(share.name, share.memory)) for share in timed]
    return rows + [_Both(share, share.memory) for share in held if share.name in memory]


class _Both:
    """A share of the time with the memory of another record."""

    def __init__(self, share: Any, memory: int) -> None:
        self.name, self.seconds, self.fraction = share.name, share.seconds, share.fraction
        self.bytes, self.memory = share.bytes, memory


def _share(share: Any, peak: int) -> ShareRow:
    return ShareRow(
        shortened(share.name, MAX_NAME),
        share.seconds,
        share.fraction,
        share.memory,
        share.memory / peak,
        share.bytes,
    )


def _tensor(buffer: Any, peak: int) -> TensorRow:
    source = buffer.operation
    if buffer.kind in ("variable", "argument") and buffer.node:
        source = f"{buffer.kind} {buffer.node}"
    return TensorRow(
        buffer.text,
        buffer.padded_bytes,
        buffer.unpadded_bytes,
        shortened(source, MAX_NAME),
        shortened(buffer.layer, MAX_NAME),
        None if buffer.line is None else buffer.line.line,
        buffer.kind,
        buffer.padded_bytes / peak,
    )


def _type_row(program: Any, described: ProgramDescription) -> TypeRow:
    memory, time = described.memory, described.time
    return TypeRow(
        program.tpu,
        program.cores,
        described.verdict,
        None if memory is None else memory.peak,
        None if memory is None else memory.available,
        program.largest_batch,
        None if time is None else time.low,
        None if time is None else time.high,
        None if time is None else time.per_core,
    )
