"""The words and rows in which text and HTML show compiled programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TypeVar

from tpunb._util.plain_text import shortened
from tpunb._util.units import byte_count, counted, duration, grouped, percent, rate
from tpunb.display.draw.programs.communication import along_phrase, transfer_name
from tpunb.errors.code_problems import SourceLine
from tpunb.tpu.compiled_program import (
    Buffer,
    Communication,
    Program,
    ProgramMemory,
    Share,
    StepTime,
    time_in_words,
    time_of_tpu,
)

MAX_LINES = 80
"""The largest number of code lines that are kept; longer code keeps its most important lines."""

MAX_ROWS = 30
"""The largest number of rows of layers, operations, collectives and tensors each."""

MAX_PROBLEMS = 30

_MAX_NOTE = 2000
_MAX_NAME = 120
_MAX_CODE = 200
_WASTE = 1e-3
"""The smallest part of the peak for which padding gets a row."""

_OFTEN = 1.5
"""The number of times that a row moves its bytes, from which on it is shown."""

# IPython and ipykernel give cells such names: "<ipython-input-3-…>", "/tmp/ipykernel_7/123.py".
_CELL = re.compile(r"<|.*[/\\]ipykernel_\d+[/\\]")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Row:
    """A displayed row of a program's table; a text is empty if it is unknown.

    Attributes:
        name: The line's code, the layer, the operation, the collective or the tensor.
        line: The number of the line of code; None if unknown.
        file: The line's file, for a reader; empty for a cell.
        problem: The compiler's refusal of the line.
        fraction: The row's part of the time, 0 to 1.
        share: The same in percent.
        seconds: The time.
        part: The row's part of the memory at the peak, 0 to 1.
        size: The memory.
        moved: The data that the row moves.
        limit: The fullest unit of the core, and its use.
        source: The origin of a tensor, or the argument that a collective moves.
        along: The cores that exchange data in a collective.
        last: The number of the line that uses a tensor last; None if unknown.
    """

    name: str
    line: int | None = None
    file: str = ""
    problem: str = ""
    fraction: float = 0.0
    share: str = ""
    seconds: str = ""
    part: float = 0.0
    size: str = ""
    moved: str = ""
    limit: str = ""
    source: str = ""
    along: str = ""
    last: int | None = None


@dataclass(frozen=True)
class Table:
    """Rows of a program.

    Attributes:
        rows: The rows.
        omitted: The number of further rows.
        rest: The time that no row accounts for, in words.
    """

    rows: list[Row]
    omitted: int = 0
    rest: str = ""

    def first(self, count: int) -> Table:
        """Return the table with at most so many rows."""
        rows = self.rows[:count]
        return Table(rows, self.omitted + len(self.rows) - len(rows), self.rest)

    def heaviest(self, count: int) -> Table:
        """Return the table with so many of the most important rows, in their order."""
        rows = _heaviest(self.rows, lambda row: _weight(row.problem, row.fraction, row.part), count)
        return Table(rows, self.omitted + len(self.rows) - len(rows), self.rest)


def tables(program: Program) -> dict[str, Table]:
    """Return the rows of a program that are shown, at most as many as fit a page, by table.

    The tables are `"lines"` of code in their order, empty if no line is known; `"layers"`,
    `"operations"` and `"collectives"`, longest or largest first; `"largest"` tensors at the peak;
    and tensors with `"padding"`, most wasteful first.
    """
    memory = program.memory or ProgramMemory(0, 0, 0)
    time = program.time or StepTime(0, 0)
    peak = max(memory.peak, 1)

    def shares(rows: Sequence[Share]) -> Table:
        table_rows = [_row(row, peak, shortened(row.name, _MAX_NAME)) for row in rows[:MAX_ROWS]]
        return Table(table_rows, len(rows) - len(table_rows))

    def tensors(rows: Sequence[Buffer], size: Callable[[Buffer], str]) -> Table:
        table_rows = [
            Row(
                row.text,
                line=None if row.line is None else row.line.line,
                last=None if row.last is None else row.last.line,
                part=row.padded_bytes / peak,
                size=size(row),
                source=_source(row),
            )
            for row in rows[:MAX_ROWS]
        ]
        return Table(table_rows, len(rows) - len(table_rows))

    wasteful = [buffer for buffer in memory.padding if buffer.wasted > peak * _WASTE]
    by_name = {
        "lines": _lines(program, time, memory, peak),
        "layers": shares(_joined(time.by_layer, memory.by_layer)),
        "operations": shares(time.by_operation),
        "collectives": (
            shares(time.collectives)
            if program.communication is None
            else _transfers(program.communication)
        ),
        "largest": tensors(memory.largest, lambda row: byte_count(row.padded_bytes)),
        "padding": tensors(wasteful, _padding),
    }
    for name, rows, of in (
        ("lines", time.by_line, "no line of this code: libraries, such as an optimizer, and"),
        ("layers", time.by_layer, "no layer: loss, optimizer and"),
    ):
        rest = 1 - sum(row.fraction or 0.0 for row in rows)
        if rows and rest >= 0.01:
            text = f"The other {percent(rest)} of the time is in {of} what the compiler adds."
            by_name[name] = replace(by_name[name], rest=text)
    return by_name


def _transfers(communication: Communication) -> Table:
    """Return the collectives of a program, longest first."""
    transfers = communication.transfers
    rows = [
        Row(
            transfer_name(transfer),
            line=None if transfer.line is None else transfer.line.line,
            fraction=transfer.fraction or 0.0,
            share=percent(transfer.fraction) if transfer.fraction else "",
            seconds=duration(transfer.seconds) if transfer.seconds else "",
            moved=byte_count(transfer.sent) if transfer.sent else "",
            along=along_phrase(communication, communication.groups[transfer.group]),
            source=f"argument {transfer.argument}" if transfer.argument else "",
        )
        for transfer in transfers[:MAX_ROWS]
    ]
    return Table(rows, len(transfers) - len(rows))


def _row(row: Share, peak: int, name: str) -> Row:
    return Row(
        name,
        fraction=row.fraction or 0.0,
        share=percent(row.fraction) if row.fraction else "",
        seconds=duration(row.seconds) if row.seconds else "",
        part=row.memory / peak,
        size=byte_count(row.memory) if row.memory else "",
        moved=_moved(row),
        limit=row.limit,
    )


def _moved(row: Share) -> str:
    """Return the bytes that a row moves, and how often it moves those that it needs."""
    if not row.bytes:
        return ""
    often = row.bytes / row.needed if row.needed else 1.0
    return f"{byte_count(row.bytes)}{f' ({often:.1f} times)' if often >= _OFTEN else ''}"


def _lines(program: Program, time: StepTime, memory: ProgramMemory, peak: int) -> Table:
    """Return the lines that are kept, by file in the order of their first lines.

    Lines that have a share but are not in the program's text are shown with their name.
    """
    texts = {line.place: line.text for line in program.lines}
    shares = {row.line: row for row in _joined(time.by_line, memory.by_line) if row.line}
    named = {place.file for place in texts}
    # A check leaves the file out if there is only a cell.
    only = next(iter(named)) if len(named) == 1 else ""
    problems = {
        SourceLine(problem.file or only, problem.line): problem.code
        for problem in program.errors
        if problem.line is not None
    }
    places = list({**texts, **shares, **problems})
    files = {file: number for number, file in enumerate(dict.fromkeys(x.file for x in places))}
    places.sort(key=lambda place: (files[place.file], place.line))
    titles = _titles(files)
    nothing = Share("")

    def weight(place: SourceLine) -> float:
        share = shares.get(place, nothing)
        return _weight(place in problems, share.fraction or 0.0, share.memory / peak)

    if not any(map(weight, places)):
        return Table([])
    lines = []
    for place in _heaviest(places, weight, MAX_LINES):
        share = shares.get(place, nothing)
        text = shortened(texts.get(place, share.name), _MAX_CODE)
        row = _row(share, peak, text)
        problem = problems.get(place, "")
        lines.append(replace(row, line=place.line, file=titles[place.file], problem=problem))
    return Table(lines, len(places) - len(lines))


def _joined(timed: Iterable[Share], in_memory: Iterable[Share]) -> list[Share]:
    """Return lines or layers with their time and memory; a list may have only one of these."""
    memory = {share.line or share.name: share for share in in_memory}
    rows = []
    for share in timed:
        twin = memory.pop(share.line or share.name, None)
        rows.append(share if twin is None else replace(share, memory=twin.memory))
    return rows + list(memory.values())


def _weight(problem: object, fraction: float, part: float) -> float:
    """Return the weight of a line: an error matters most."""
    return float("inf") if problem else fraction + part


def _heaviest(rows: Sequence[_T], weight: Callable[[_T], float], count: int) -> list[_T]:
    """Return the rows of the most weight, in their order; of equal rows, the first ones."""
    if len(rows) <= count:
        return list(rows)
    by_weight = sorted(range(len(rows)), key=lambda at: (-weight(rows[at]), at))
    return [rows[at] for at in sorted(by_weight[:count])]


def _titles(files: Iterable[str]) -> dict[str, str]:
    """Return names of files for a reader, the same in every run; empty for the first cell."""
    cells = ["", "another cell"]
    titles: dict[str, str] = {}
    for file in files:
        if file and not _CELL.match(file):
            titles[file] = PurePath(file).name
            continue
        titles[file] = cells.pop(0)
        cells = cells or [f"another cell ({len(titles)})"]
    return titles


def _source(tensor: Buffer) -> str:
    """Return the origin of a tensor: an operation, a variable or an argument; and the layer."""
    source = tensor.operation or tensor.kind
    if tensor.kind in ("variable", "argument") and tensor.node:
        source = f"{tensor.kind} {tensor.node}"
    return " · ".join(shortened(part, _MAX_NAME) for part in (source, tensor.layer) if part)


def _padding(tensor: Buffer) -> str:
    """Return a phrase such as `"512 MiB for 40.5 MiB of numbers, 12.6 times"`."""
    size, numbers = byte_count(tensor.padded_bytes), byte_count(tensor.unpadded_bytes)
    return f"{size} for {numbers} of numbers, {tensor.factor:.3g} times"


def title(program: Program) -> str:
    """Return the TPU type, the number of replicas, and the batch."""
    parts = [counted(program.replicas, "replica")]
    if program.logical_devices > 1:
        parts[0] += f" of {program.logical_devices} cores"
    if program.examples is not None:
        parts.append(f"global batch {grouped(program.examples)}")
    return f"TPU {program.label} · {' · '.join(parts)}"


def verdict(program: Program) -> str:
    """Return `"compiles"`, `"refused"` or `"unknown"`."""
    if program.unknown or (program.unsized and not program.errors):
        return "unknown"
    return "compiles" if program.ok else "refused"


def headline(program: Program) -> str:
    """Return the outcome in a sentence: the memory it takes, or why it is refused."""
    memory = program.memory
    if program.unknown:
        return f"Not known whether it compiles: {program.unknown.rstrip('.')}."
    if program.unsized and not program.errors:
        return f"Compiles. Whether it fits is not known, because {program.unsized}"
    if memory is not None and memory.over:
        outcome = "Compiles" if program.ok else "Does not fit"
        available = byte_count(memory.available)
        if memory.bound:
            return f"{outcome}: {memory.takes} a core, of the {available} available."
        return (
            f"{outcome}: {byte_count(memory.peak)} a core, {byte_count(memory.over)} more than "
            f"the {available} available."
        )
    if program.errors:
        return f"Does not compile: {counted(len(program.errors), 'error')}."
    return "Compiles." if memory is None else f"Compiles and fits: {memory_phrase(memory)}."


def memory_phrase(memory: ProgramMemory) -> str:
    """Return a phrase such as `"3.4 GiB of 15.48 GiB a core (22%)"`."""
    phrase = f"{memory.takes} of {byte_count(memory.available)} a core"
    share = percent(memory.peak / max(memory.available, 1))
    return phrase if memory.bound else f"{phrase} ({share})"


def over_phrase(memory: ProgramMemory) -> str:
    """Return a phrase such as `"310 MiB too much"`; empty for a program that fits."""
    if not memory.over:
        return ""
    return "too much" if memory.bound else f"{byte_count(memory.over)} too much"


def part_phrase(kind: str, size: int) -> str:
    """Return a phrase such as `"temporaries 3.2 GiB"`."""
    return f"{kind} {byte_count(size)}"


def memory_limit(memory: ProgramMemory) -> str:
    """Return the data sheet's memory beside the usable memory; empty if they are equal."""
    if memory.data_sheet == memory.available:
        return ""
    usable, sheet = byte_count(memory.available), byte_count(memory.data_sheet)
    return f"{usable} usable of the data sheet's {sheet}"


def time_phrases(program: Program) -> Iterator[str]:
    """Yield the time of a call, and the examples a second."""
    time, examples = program.time, program.examples
    if time is None:
        return
    yield f"{time_in_words(time, ' a call')} ({time.source})"
    if time.host_decides:
        yield "too small to compare types: the host decides"
        return
    if examples is not None and time.low > 0:
        yield f"{rate(examples / time.high)} to {rate(examples / time.low)} examples/s"
    if (per_core := program.examples_per_second_per_core) is not None:
        yield f"about {rate(per_core)} examples/s a core"


def facts(program: Program) -> list[str]:
    """Return the time and the largest batch, if they were requested."""
    phrases = list(time_phrases(program))
    if program.largest_batch is not None:
        phrases.append(f"largest global batch that fits: {grouped(program.largest_batch)}")
    return phrases


def notes(program: Program) -> list[str]:
    """Return notes for the reader, and what the figures leave out."""
    texts = list(program.notes)
    if program.time is not None and program.time.not_counted:
        texts.append(f"Not counted: {' '.join(program.time.not_counted)}")
    if program.provenance is not None and program.provenance.mark:
        texts.append(str(program.provenance))
    return [shortened(note, _MAX_NOTE) for note in dict.fromkeys(texts)]


def type_rows(programs: Iterable[Program]) -> tuple[list[str], list[list[str]]]:
    """Return the head and rows of the table "which TPU do I need", without empty columns."""
    rows = []
    for program in programs:
        row = program.row
        memory = time = ""
        if row.peak is not None and row.available is not None:
            memory = f"{byte_count(row.peak)} of {byte_count(row.available)}"
        if program.time is not None:
            time = time_of_tpu(program.time)
        per_core = row.examples_per_second_per_core
        rows.append(
            {
                "TPU": program.label,
                "cores": grouped(row.cores),
                "fits": {True: "yes", False: "no", None: "not known"}[row.fits],
                "memory a core": memory,
                "largest batch": "" if row.largest_batch is None else grouped(row.largest_batch),
                "batch that fits": "" if row.fitting_batch is None else grouped(row.fitting_batch),
                "time a call": time,
                "examples/s a core": "" if per_core is None else rate(per_core),
            }
        )
    head = [name for first in rows[:1] for name in first if any(row[name] for row in rows)]
    return head, [[row[name] for name in head] for row in rows]


def types_note(programs: Iterable[Program]) -> str:
    """Return a note on the times in that table, or an empty string."""
    small = [
        program.label
        for program in programs
        if program.time is not None and program.time.host_decides
    ]
    if not small:
        return ""
    labels = ", ".join(small)
    return f"Too small to compare types by time ({labels}): the host takes longer to start a call."
