"""The words and rows in which text, HTML and the widget show compiled programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TypeVar

from tpunb._util.plain_text import shortened
from tpunb._util.units import byte_count, counted, duration, grouped
from tpunb.errors.code_problems import SourceLine
from tpunb.tpu.compiled_program import Buffer, Program, ProgramMemory, Share, StepTime, TpuRow

MAX_LINES = 200
"""Lines of code that are kept: of more, those that matter."""

MAX_ROWS = 100
"""Layers, operations, collectives and tensors that are kept, of each."""

MAX_PROBLEMS = 30

_MAX_NOTE = 2000
_MAX_NAME = 120
_MAX_CODE = 200
_WASTE = 1e-3
"""Padding that takes a smaller part of the peak is not worth a row."""

# What IPython and ipykernel call a cell: "<ipython-input-3-…>", "/tmp/ipykernel_7/123.py".
_CELL = re.compile(r"<|.*[/\\]ipykernel_\d+[/\\]")

TYPE_HEAD = (
    "TPU",
    "cores",
    "fits",
    "memory a core",
    "largest batch",
    "time a call",
    "examples/s a core",
)
_FITS = {True: "yes", False: "no", None: "not known"}

_T = TypeVar("_T")


@dataclass(frozen=True)
class Tables:
    """The rows of a program that are shown, at most as many as a page bears.

    Attributes:
        lines: The lines of the user's code with what each takes, in their order.
        problems: What the compiler refuses in a line.
        layers: The model's, longest or largest first.
        operations: TensorFlow's, longest first.
        collectives: Longest first.
        largest: Tensors alive at the peak, largest first.
        padding: Tensors with padding, most wasteful first.
        peak: Bytes of which those of a row are a part.
        omitted: How many rows are left out, by the name of their table; `"errors"` too.
        rest: The time that no line, or no layer, accounts for, in words.
    """

    lines: list[Share]
    problems: Mapping[SourceLine, str]
    layers: list[Share]
    operations: list[Share]
    collectives: list[Share]
    largest: list[Buffer]
    padding: list[Buffer]
    peak: int
    omitted: Mapping[str, int]
    rest: Mapping[str, str]

    def problem(self, row: Share) -> str:
        """The errors of a line; empty for none."""
        return self.problems.get(row.line, "") if row.line is not None else ""

    @property
    def weighs_lines(self) -> bool:
        """True if anything is known of the lines of code."""
        return any(map(self._weight, self.lines))

    def heaviest_lines(self, count: int) -> list[Share]:
        """So many lines that matter most, in their order."""
        return _heaviest(self.lines, self._weight, count)

    def _weight(self, row: Share) -> float:
        return _weight(row.line, row, self.peak, self.problems)


def tables(program: Program) -> Tables:
    """The rows of a program that are shown."""
    memory, time = program.memory, program.time
    peak = max(memory.peak, 1) if memory is not None else 1
    problems = _problems(program)
    lines, omitted_lines = _lines(program, peak, problems)
    layers = _joined(
        time.by_layer if time is not None else (), memory.by_layer if memory is not None else ()
    )
    operations = time.by_operation if time is not None else ()
    collectives = time.collectives if time is not None else ()
    largest = memory.largest if memory is not None else ()
    wasteful = [one for one in memory.padding if one.wasted > peak * _WASTE] if memory else []
    omitted = {
        "errors": len(program.errors) - MAX_PROBLEMS,
        "lines": omitted_lines,
        "layers": len(layers) - MAX_ROWS,
        "operations": len(operations) - MAX_ROWS,
        "collectives": len(collectives) - MAX_ROWS,
        "largest": len(largest) - MAX_ROWS,
        "padding": len(wasteful) - MAX_ROWS,
    }
    return Tables(
        lines=lines,
        problems=problems,
        layers=_first(layers),
        operations=_first(operations),
        collectives=_first(collectives),
        largest=list(largest[:MAX_ROWS]),
        padding=wasteful[:MAX_ROWS],
        peak=peak,
        omitted={name: count for name, count in omitted.items() if count > 0},
        rest=dict(_rest(time)) if time is not None else {},
    )


def _rest(time: StepTime) -> Iterator[tuple[str, str]]:
    """Return what the shares of lines and layers leave out, if it is a percent or more."""
    for name, rows, of in (
        ("lines", time.by_line, "no line of this code: libraries, such as an optimizer, and"),
        ("layers", time.by_layer, "no layer: loss, optimizer and"),
    ):
        rest = 1 - sum(row.fraction or 0.0 for row in rows)
        if rows and rest >= 0.01:
            yield name, f"The other {percent(rest)} of the time is in {of} what the compiler adds."


def _first(rows: Sequence[Share]) -> list[Share]:
    return [replace(row, name=shortened(row.name, _MAX_NAME)) for row in rows[:MAX_ROWS]]


def _problems(program: Program) -> dict[SourceLine, str]:
    files = {line.place.file for line in program.lines}
    # A check leaves the file out where there is only a cell.
    only = next(iter(files)) if len(files) == 1 else ""
    return {
        SourceLine(problem.file or only, problem.line): problem.code
        for problem in program.errors
        if problem.line is not None
    }


def _lines(
    program: Program, peak: int, problems: Mapping[SourceLine, str]
) -> tuple[list[Share], int]:
    """The lines that are kept, by file as they first appear, and how many are left out.

    Lines that have a share but are not in the program's text come with their name.
    """
    texts = {line.place: line.text for line in program.lines}
    time = () if program.time is None else program.time.by_line
    memory = () if program.memory is None else program.memory.by_line
    shares = {row.line: row for row in _joined(time, memory) if row.line is not None}
    places = list({**texts, **shares, **problems})
    files = {file: number for number, file in enumerate(dict.fromkeys(x.file for x in places))}
    places.sort(key=lambda place: (files[place.file], place.line))
    nothing = Share("")

    def weight(place: SourceLine) -> float:
        return _weight(place, shares.get(place, nothing), peak, problems)

    def row(place: SourceLine) -> Share:
        found = shares.get(place, nothing)
        text = texts.get(place, found.name)
        return replace(found, line=place, name=shortened(text, _MAX_CODE))

    kept = _heaviest(places, weight, MAX_LINES)
    return list(map(row, kept)), len(places) - len(kept)


def _joined(timed: Iterable[Share], held: Iterable[Share]) -> list[Share]:
    """Lines or layers with their time and their memory: one list may have only one of these."""
    memory = {share.line or share.name: share for share in held}
    rows = []
    for share in timed:
        found = memory.pop(share.line or share.name, None)
        rows.append(share if found is None else replace(share, memory=found.memory))
    return rows + list(memory.values())


def _weight(
    place: SourceLine | None, row: Share, peak: int, problems: Mapping[SourceLine, str]
) -> float:
    """The weight of a line."""
    return float("inf") if place in problems else (row.fraction or 0.0) + row.memory / peak


def _heaviest(rows: Sequence[_T], weight: Callable[[_T], float], count: int) -> list[_T]:
    """So many rows of the most weight, in their order; the first of those that weigh the same."""
    if len(rows) <= count:
        return list(rows)
    by_weight = sorted(range(len(rows)), key=lambda at: (-weight(rows[at]), at))
    return [rows[at] for at in sorted(by_weight[:count])]


def file_title(line: SourceLine | None) -> str:
    """A file's name for a reader, the same in every run; empty for a cell."""
    file = line.file if line is not None else ""
    return "" if not file or _CELL.match(file) else PurePath(file).name


def title(program: Program) -> str:
    """The TPU type, how many replicas there are, and the batch."""
    parts = [counted(program.replicas, "replica")]
    if program.logical_devices > 1:
        parts[0] += f" of {program.logical_devices} cores"
    if program.examples is not None:
        parts.append(f"global batch {grouped(program.examples)}")
    return f"TPU {program.tpu} · {' · '.join(parts)}"


def verdict(program: Program) -> str:
    """`"compiles"`, `"refused"` or `"unknown"`."""
    if program.unknown:
        return "unknown"
    return "compiles" if program.ok else "refused"


def headline(program: Program) -> str:
    """The outcome in a sentence: how much it takes, or why it is refused."""
    memory = program.memory
    if program.unknown:
        return f"Not known whether it compiles: {program.unknown.rstrip('.')}."
    if memory is not None and memory.over:
        outcome = "Compiles" if program.ok else "Does not fit"
        return (
            f"{outcome}: {byte_count(memory.peak)} a core, {byte_count(memory.over)} more than "
            f"the {byte_count(memory.available)} available."
        )
    if program.errors:
        return f"Does not compile: {counted(len(program.errors), 'error')}."
    return "Compiles." if memory is None else f"Compiles and fits: {memory_phrase(memory)}."


def memory_phrase(memory: ProgramMemory) -> str:
    """`"3.4 GiB of 15.48 GiB a core (22%)"`."""
    exact = "" if memory.exact else "about "
    share = percent(memory.peak / max(memory.available, 1))
    return f"{exact}{byte_count(memory.peak)} of {byte_count(memory.available)} a core ({share})"


def part_phrase(kind: str, size: int) -> str:
    """`"temporaries 3.2 GiB"`."""
    return f"{kind} {byte_count(size)}"


def memory_limit(memory: ProgramMemory) -> str:
    """The data sheet's memory beside what a program can use; empty where they are the same."""
    if memory.data_sheet == memory.available:
        return ""
    usable, sheet = byte_count(memory.available), byte_count(memory.data_sheet)
    return f"{usable} usable of the data sheet's {sheet}"


def time_phrases(program: Program) -> Iterator[str]:
    """The time of a call, and the examples a second."""
    time, examples = program.time, program.examples
    if time is None:
        return
    yield f"{time} a call (estimated)"
    if time.host_decides:
        yield "too small to compare types: the host decides"
        return
    if examples is not None and time.low > 0:
        yield f"{rate(examples / time.high)} to {rate(examples / time.low)} examples/s"
    if (per_core := program.examples_per_second_per_core) is not None:
        yield f"about {rate(per_core)} examples/s a core"


def facts(program: Program) -> list[str]:
    """The time, and the largest batch, as far as they were asked for."""
    found = list(time_phrases(program))
    if program.largest_batch is not None:
        found.append(f"largest global batch that fits: {grouped(program.largest_batch)}")
    return found


def notes(program: Program) -> list[str]:
    """Notes for the reader, and what the figures leave out."""
    found = list(program.notes)
    if program.time is not None and program.time.not_counted:
        found.append(f"Not counted: {' '.join(program.time.not_counted)}")
    return [shortened(note, _MAX_NOTE) for note in dict.fromkeys(found)]


def tensor_source(tensor: Buffer) -> str:
    """The origin of a tensor: an operation, a variable, an argument; and the layer."""
    source = tensor.operation or tensor.kind
    if tensor.kind in ("variable", "argument") and tensor.node:
        source = f"{tensor.kind} {tensor.node}"
    return " · ".join(shortened(part, _MAX_NAME) for part in (source, tensor.layer) if part)


def padding_phrase(tensor: Buffer) -> str:
    """`"512 MiB for 40.5 MiB of numbers, 12.6 times"`."""
    size, numbers = byte_count(tensor.padded_bytes), byte_count(tensor.unpadded_bytes)
    return f"{size} for {numbers} of numbers, {tensor.factor:.3g} times"


def type_rows(programs: Iterable[Program]) -> tuple[list[str], list[list[str]]]:
    """The table "which TPU do I need": its head and its rows, without empty columns."""
    rows = [_type_cells(program.row) for program in programs]
    kept = [at for at in range(len(TYPE_HEAD)) if any(row[at] for row in rows)]
    return [TYPE_HEAD[at] for at in kept], [[row[at] for at in kept] for row in rows]


def types_note(programs: Iterable[Program]) -> str:
    """Return a note on the times in that table, or an empty string."""
    small = [one.tpu for one in programs if one.time is not None and one.time.host_decides]
    if not small:
        return ""
    return f"Too small to compare types by time ({', '.join(small)}): the host decides."


def _type_cells(row: TpuRow) -> tuple[str, ...]:
    memory = time = ""
    if row.peak is not None and row.available is not None:
        memory = f"{byte_count(row.peak)} of {byte_count(row.available)}"
    if row.low is not None and row.high is not None:
        time = f"{duration(row.low)} to {duration(row.high)}"
    return (
        row.tpu,
        grouped(row.cores),
        _FITS[row.fits],
        memory,
        "" if row.largest_batch is None else grouped(row.largest_batch),
        time,
        "" if row.examples_per_second_per_core is None else rate(row.examples_per_second_per_core),
    )


def share_phrases(row: Share) -> tuple[str, str, str]:
    """A row's share of the time, in percent and in seconds, and of memory; empty for nothing."""
    return (
        percent(row.fraction) if row.fraction else "",
        duration(row.seconds) if row.seconds else "",
        byte_count(row.memory) if row.memory else "",
    )


def percent(fraction: float) -> str:
    """A share in whole percents; `"<1%"` for less."""
    return "<1%" if 0 < fraction < 0.005 else f"{100 * fraction:.0f}%"


def rate(value: float) -> str:
    """A rate per second, to three digits."""
    return grouped(round(float(f"{value:.3g}"))) if value >= 100 else f"{value:.3g}"
