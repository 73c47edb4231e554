"""Compiled programs as plain text: bars of block characters, at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from tpunb._util.plain_text import plain, shortened
from tpunb._util.units import byte_count, duration, grouped
from tpunb.display.describe.program_code import heaviest
from tpunb.display.describe.program_description import (
    CodeRow,
    MemoryBar,
    ProgramDescription,
    ProgramsDescription,
    ShareRow,
    TensorRow,
)
from tpunb.display.draw import formats
from tpunb.display.draw import program_phrases as phrases

__all__ = ["program_text", "programs_text"]

WIDTH = 100
MAX_LINES = 60
MAX_ROWS = 8

_BAR = 10
_MEMORY_BAR = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FILLS = {"variables": "█", "inputs": "▓", "results": "▓", "temporaries": "▒", "other": "░"}


def programs_text(description: ProgramsDescription) -> str:
    """The table "which TPU do I need", and what a single program of it says."""
    if len(description.programs) == 1:
        return program_text(description.programs[0])
    rows = [phrases.TYPE_HEAD, *map(phrases.type_cells, description.rows)]
    columns = [index for index in range(len(rows[0])) if any(row[index] for row in rows[1:])]
    shown = [[row[index] for index in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = [_columns(row, widths) for row in shown]
    for program in description.programs:
        lines += [f"{program.tpu}: {problem.reason}" for problem in program.errors[:1]]
    return plain("\n".join(shortened(line, WIDTH) for line in lines))


def _columns(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def program_text(program: ProgramDescription) -> str:
    """The verdict, memory, time, and the lines and layers with their shares."""
    lines = [program.title, phrases.headline(program)]
    for problem in program.errors:
        lines += _wrapped(str(problem))
    lines += _more(program, "errors")
    if program.memory is not None:
        lines += _memory(program.memory)
    lines += _time(program)
    if program.largest_batch is not None:
        lines.append(f"largest global batch that fits  {grouped(program.largest_batch)}")
    for section in (_code(program), _layers(program), _tensors(program), _padding(program)):
        found = list(section)
        lines += ["", *found] if found else []
    for note in program.notes:
        lines += _wrapped(note)
    return plain("\n".join(line.rstrip() for line in lines))


def _wrapped(text: str) -> list[str]:
    return [
        line
        for part in text.splitlines()
        for line in textwrap.wrap(part, WIDTH, initial_indent="  ", subsequent_indent="  ")
    ]


def _more(program: ProgramDescription, name: str, shown: int = 0, there: int = 0) -> list[str]:
    """The line that says how many rows are left out, here and before."""
    rest = program.left_out(name) + max(there - shown, 0)
    return [f"  {formats.and_more(rest)}"] if rest else []


def _memory(memory: MemoryBar) -> Iterator[str]:
    yield f"HBM     {_memory_bar(memory)} {phrases.memory_phrase(memory)}"
    parts = [phrases.segment_phrase(segment) for segment in memory.segments]
    yield from _listed([*parts, phrases.memory_limit(memory)], indent=8)


def _listed(parts: Iterable[str], indent: int) -> list[str]:
    """As many parts in a line as fit."""
    lines: list[str] = []
    for part in filter(None, parts):
        longer = f"{lines[-1]} · {part}" if lines else ""
        if lines and len(longer) <= WIDTH:
            lines[-1] = longer
        else:
            lines.append(" " * indent + part)
    return lines


def _memory_bar(memory: MemoryBar) -> str:
    """The parts side by side; exclamation marks where it is over what there is."""
    limit = round(_MEMORY_BAR * memory.available / memory.total)
    cells = []
    for segment in memory.segments:
        begin, end = segment.begin, segment.begin + segment.bytes
        first, last = (round(_MEMORY_BAR * place / memory.total) for place in (begin, end))
        cells += [_FILLS.get(segment.kind, "·")] * (last - first)
    if cells:  # the least of all is seen
        cells[0] = _FILLS.get(memory.segments[0].kind, "·")
    return "".join("!" if place >= limit else cell for place, cell in enumerate(cells))


def _time(program: ProgramDescription) -> Iterator[str]:
    if program.time is None:
        return
    yield f"time    {' · '.join(phrases.time_phrases(program))}"
    if program.time.parts:
        yield from _listed(phrases.time_parts(program.time), indent=8)


def _code(program: ProgramDescription) -> Iterator[str]:
    if not program.has_shares:
        return
    timed, held = program.time is not None, program.memory is not None
    head = [*([f"{'time':<16}"] if timed else []), *(["memory"] if held else [])]
    yield f"  line  {' '.join(head)}"
    shown = heaviest(program.code, lambda row: row.weight, MAX_LINES)
    file = ""
    for row in shown:
        if row.file != file:
            file = row.file
            yield f"  {file or 'cell'}"
        yield shortened(_code_line(row, timed, held), WIDTH)
    yield from _more(program, "code", len(shown), len(program.code))


def _code_line(row: CodeRow, timed: bool, held: bool) -> str:
    mark = "✗" if row.problem else " "
    time = f"{_share_bar(row.fraction)} " if timed else ""
    size = byte_count(row.memory) if row.memory else ""
    memory = f"{_bar(row.part)} {size:>9}" if held else ""
    return f"{mark} {row.number:>4}  {time}{memory}  {row.text.rstrip()}"


def _share_bar(fraction: float | None) -> str:
    text = "" if not fraction else phrases.percent(fraction)
    return f"{_bar(fraction or 0.0)} {text:>5}"


def _bar(fraction: float) -> str:
    """A fraction as a bar of characters' eighths."""
    eighths = round(8 * _BAR * min(max(fraction, 0.0), 1.0))
    whole, part = divmod(max(eighths, int(fraction > 0)), 8)
    return ("█" * whole + (_EIGHTHS[part] if part else "")).ljust(_BAR)


def _layers(program: ProgramDescription) -> Iterator[str]:
    yield from _shares(program, "layers", "layer", program.layers)
    if program.time is not None and not program.layers:
        yield from _shares(program, "operations", "operation", program.operations)
    if program.collectives:
        yield from _shares(program, "collectives", "collective", program.collectives)


def _shares(
    program: ProgramDescription, name: str, heading: str, rows: tuple[ShareRow, ...]
) -> Iterator[str]:
    if not rows:
        return
    timed = any(row.fraction is not None for row in rows)
    yield f"  {heading}s"
    for row in rows[:MAX_ROWS]:
        time = f"{_share_bar(row.fraction)} " if timed else ""
        seconds = duration(row.seconds) if row.seconds else ""
        size = row.bytes if name == "collectives" else row.memory
        sizes = byte_count(size) if size else ""
        yield shortened(f"  {time}{seconds:>8} {sizes:>9}  {row.name}", WIDTH)
    yield from _more(program, name, MAX_ROWS, len(rows))


def _tensors(program: ProgramDescription) -> Iterator[str]:
    if not program.largest:
        return
    yield "  largest tensors at the peak"
    for row in program.largest[:MAX_ROWS]:
        yield shortened(f"  {byte_count(row.bytes):>9}  {row.text}  {_source(row)}", WIDTH)
    yield from _more(program, "largest", MAX_ROWS, len(program.largest))


def _padding(program: ProgramDescription) -> Iterator[str]:
    if not program.padding:
        return
    yield "  padding"
    for row in program.padding[:MAX_ROWS]:
        yield shortened(f"  {row.text}  {phrases.padding_phrase(row)}  {_source(row)}", WIDTH)
    yield from _more(program, "padding", MAX_ROWS, len(program.padding))


def _source(row: TensorRow) -> str:
    place = f"line {row.line}" if row.line is not None else ""
    return " · ".join(part for part in (phrases.tensor_source(row), place) if part)
