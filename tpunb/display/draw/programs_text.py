"""Compiled programs as plain text: bars of block characters, at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from tpunb._util.plain_text import plain, shortened
from tpunb._util.units import and_more, byte_count, grouped
from tpunb.display.draw import program_tables as shown
from tpunb.tpu.compiled_program import Buffer, Program, ProgramMemory, Share

WIDTH = 100
MAX_LINES = 60
MAX_ROWS = 8

_BAR = 10
_MEMORY_BAR = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FILLS = {"variables": "█", "inputs": "▓", "results": "▓", "temporaries": "▒", "other": "░"}


def programs_text(programs: Sequence[Program]) -> str:
    """The table "which TPU do I need", or what there is to say of a single program."""
    if len(programs) == 1:
        return _program(programs[0])
    head, body = shown.type_rows(programs)
    rows = [head, *body]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    for program in programs:
        lines += [f"{program.tpu}: {problem.reason}" for problem in program.errors[:1]]
    lines += filter(None, [shown.types_note(programs)])
    return plain("\n".join(shortened(line, WIDTH) for line in lines))


def _program(program: Program) -> str:
    """The verdict, memory, time, and the lines and layers with their shares."""
    tables = shown.tables(program)
    lines = [shown.title(program), shown.headline(program)]
    for problem in program.errors[: shown.MAX_PROBLEMS]:
        lines += _wrapped(str(problem))
    lines += _more(tables, "errors")
    if program.memory is not None:
        lines += _memory(program.memory)
    if program.time is not None:
        lines.append(f"time    {' · '.join(shown.time_phrases(program))}")
        parts = [f"{name} {shown.percent(part)}" for name, part in program.time.parts.items()]
        lines += _side_by_side(parts, indent=8)
    if program.largest_batch is not None:
        lines.append(f"largest global batch that fits  {grouped(program.largest_batch)}")
    shares = [*_shares(tables, "layers")]
    if program.time is not None and not shares:
        shares += _shares(tables, "operations")
    sections = (
        _code(tables, timed=program.time is not None, held=program.memory is not None),
        [*shares, *_shares(tables, "collectives")],
        _tensors(tables, "largest", "largest tensors at the peak"),
        _tensors(tables, "padding", "padding"),
    )
    for section in sections:
        found = list(section)
        lines += ["", *found] if found else []
    for note in shown.notes(program):
        lines += _wrapped(note)
    return plain("\n".join(line.rstrip() for line in lines))


def _wrapped(text: str) -> list[str]:
    return [
        line
        for part in text.splitlines()
        for line in textwrap.wrap(part, WIDTH, initial_indent="  ", subsequent_indent="  ")
    ]


def _more(tables: shown.Tables, name: str, drawn: int = 0, there: int = 0) -> list[str]:
    """The line that says how many rows are left out, here and before."""
    rest = tables.omitted.get(name, 0) + max(there - drawn, 0)
    return [f"  {and_more(rest)}"] if rest else []


def _memory(memory: ProgramMemory) -> Iterator[str]:
    yield f"HBM     {_memory_bar(memory)} {shown.memory_phrase(memory)}"
    parts = [shown.part_phrase(kind, size) for kind, size in memory.parts.items()]
    yield from _side_by_side([*parts, shown.memory_limit(memory)], indent=8)


def _side_by_side(parts: Iterable[str], indent: int) -> list[str]:
    """As many parts in a line as fit."""
    lines: list[str] = []
    for part in filter(None, parts):
        longer = f"{lines[-1]} · {part}" if lines else ""
        if lines and len(longer) <= WIDTH:
            lines[-1] = longer
        else:
            lines.append(" " * indent + part)
    return lines


def _memory_bar(memory: ProgramMemory) -> str:
    """The parts side by side; exclamation marks where it is over what is available."""
    total = max(memory.peak, memory.available, 1)
    limit = round(_MEMORY_BAR * memory.available / total)
    cells: list[str] = []
    begin = 0
    for kind, size in memory.parts.items():
        begin += size
        cells += [_FILLS.get(kind, "·")] * (round(_MEMORY_BAR * begin / total) - len(cells))
    if cells:  # even the smallest part is seen
        cells[0] = _FILLS.get(next(iter(memory.parts)), "·")
    return "".join("!" if place >= limit else cell for place, cell in enumerate(cells))


def _code(tables: shown.Tables, *, timed: bool, held: bool) -> Iterator[str]:
    if not tables.weighs_lines:
        return
    head = [*([f"{'time':<16}"] if timed else []), *(["memory"] if held else [])]
    yield f"  line  {' '.join(head)}"
    rows = tables.heaviest_lines(MAX_LINES)
    file = ""
    for row in rows:
        if shown.file_title(row.line) != file:
            file = shown.file_title(row.line)
            yield f"  {file or 'cell'}"
        mark = "✗" if tables.problem(row) else " "
        number = row.line.line if row.line is not None else ""
        size = shown.share_phrases(row)[2]
        time = f"{_share_bar(row)} " if timed else ""
        memory = f"{_bar(row.memory / tables.peak)} {size:>9}" if held else ""
        yield shortened(f"{mark} {number:>4}  {time}{memory}  {row.name.rstrip()}", WIDTH)
    yield from _more(tables, "lines", len(rows), len(tables.lines))
    yield from _wrapped(tables.rest.get("lines", ""))


def _share_bar(row: Share) -> str:
    return f"{_bar(row.fraction or 0.0)} {shown.share_phrases(row)[0]:>5}"


def _bar(fraction: float) -> str:
    """A fraction as a bar of characters' eighths."""
    eighths = round(8 * _BAR * min(max(fraction, 0.0), 1.0))
    whole, part = divmod(max(eighths, int(fraction > 0)), 8)
    return ("█" * whole + (_EIGHTHS[part] if part else "")).ljust(_BAR)


def _shares(tables: shown.Tables, name: str) -> Iterator[str]:
    """A line for each layer, operation or collective."""
    rows: list[Share] = getattr(tables, name)
    if not rows:
        return
    timed = any(row.fraction is not None for row in rows)
    yield f"  {name}"
    for row in rows[:MAX_ROWS]:
        _, seconds, memory = shown.share_phrases(row)
        moved = byte_count(row.bytes) if row.bytes else ""
        size = moved if name == "collectives" else memory
        time = f"{_share_bar(row)} " if timed else ""
        yield shortened(f"  {time}{seconds:>8} {size:>9}  {row.name}", WIDTH)
    yield from _more(tables, name, MAX_ROWS, len(rows))
    yield from _wrapped(tables.rest.get(name, ""))


def _tensors(tables: shown.Tables, name: str, heading: str) -> Iterator[str]:
    """A line for each tensor: its size, or what its padding makes of it."""
    rows: list[Buffer] = getattr(tables, name)
    if not rows:
        return
    yield f"  {heading}"
    for row in rows[:MAX_ROWS]:
        place = f" · line {row.line.line}" if row.line is not None else ""
        what = [f"{byte_count(row.padded_bytes):>9}", row.text]
        if name == "padding":
            what = [row.text, shown.padding_phrase(row)]
        yield shortened(f"  {'  '.join(what)}  {shown.tensor_source(row)}{place}", WIDTH)
    yield from _more(tables, name, MAX_ROWS, len(rows))
