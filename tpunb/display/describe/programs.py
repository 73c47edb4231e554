"""What the TPU's compiler made of a function, as it is shown.

Programs come from the room above: they are read by their attributes, and what is drawn
never sees their classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tpunb._util.plain_text import shortened
from tpunb._util.units import counted, grouped
from tpunb.display.describe.program_code import describe_code
from tpunb.display.describe.program_description import (
    MemoryBar,
    ProgramDescription,
    ProgramsDescription,
    Segment,
    ShareRow,
    TensorRow,
    TimeFacts,
    TypeRow,
    Verdict,
)

__all__ = ["describe_program", "describe_programs"]

MAX_ROWS = 100
"""Layers, operations, collectives and tensors that are kept, of each."""

MAX_PROBLEMS = 30
MAX_TEXT = 2000
MAX_NAME = 120

_WASTE = 1e-3
"""Padding that takes a smaller part of the peak is not worth a row."""

_TIMED = {"operations": "by_operation", "collectives": "collectives"}


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
    code, lines_left_out = describe_code(program, peak)
    found = {
        "errors": program.errors,
        "layers": _merged(_of(time, "by_layer"), _of(memory, "by_layer")),
        **{name: _of(time, attribute) for name, attribute in _TIMED.items()},
        "largest": _of(memory, "largest"),
        "padding": [one for one in _of(memory, "padding") if one.wasted > peak * _WASTE],
    }
    left_out = {name: len(rows) - MAX_ROWS for name, rows in found.items()}
    left_out |= {"errors": len(program.errors) - MAX_PROBLEMS, "code": lines_left_out}
    shares = {name: _shares(found[name], peak) for name in ("layers", *_TIMED)}
    return ProgramDescription(
        tpu=program.tpu,
        title=_title(program),
        verdict=_verdict(program),
        outcome=_outcome(program),
        errors=tuple(program.errors[:MAX_PROBLEMS]),
        memory=None if memory is None else _memory_bar(memory),
        time=None if time is None else _time_facts(program),
        code=code,
        layers=shares["layers"],
        operations=shares["operations"],
        collectives=shares["collectives"],
        largest=_tensors(found["largest"], peak),
        padding=_tensors(found["padding"], peak),
        notes=_notes(program),
        largest_batch=program.largest_batch,
        omitted=tuple((name, count) for name, count in left_out.items() if count > 0),
    )


def _notes(program: Any) -> tuple[str, ...]:
    notes = (*program.notes, *_of(program.time, "not_counted"))
    return tuple(shortened(note, MAX_TEXT) for note in dict.fromkeys(notes))


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


def _shares(shares: Sequence[Any], peak: int) -> tuple[ShareRow, ...]:
    return tuple(_share(share, peak) for share in shares[:MAX_ROWS])


def _share(share: Any, peak: int) -> ShareRow:
    return ShareRow(
        shortened(share.name, MAX_NAME),
        share.seconds,
        share.fraction,
        share.memory,
        share.memory / peak,
        share.bytes,
    )


def _tensors(buffers: Sequence[Any], peak: int) -> tuple[TensorRow, ...]:
    return tuple(_tensor(buffer, peak) for buffer in buffers[:MAX_ROWS])


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
