"""Compiled programs as plain text: bars of block characters, at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from tpunb._util.plain_text import aligned, plain, shortened
from tpunb._util.units import and_more, grouped, percent
from tpunb.display.draw.programs import tables as shown
from tpunb.display.draw.programs.communication import group_lines
from tpunb.display.draw.programs.memory import memory_text
from tpunb.tpu.compiled_program import Program, ProgramMemory

WIDTH = 100
MAX_LINES = 60
MAX_ROWS = 8

_BAR = 10
_MEMORY_BAR = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FILLS = {"variables": "█", "inputs": "▓", "results": "▓", "temporaries": "▒", "other": "░"}


def programs_text(programs: Sequence[Program]) -> str:
    """Return the table "which TPU do I need", or the text of a single program."""
    if len(programs) == 1:
        return _program(programs[0])
    head, body = shown.type_rows(programs)
    lines = aligned([head, *body])
    for program in programs:
        lines += [f"{program.label}: {problem.reason}" for problem in program.errors[:1]]
    lines += filter(None, [shown.types_note(programs)])
    lines += memory_text(programs, WIDTH)
    return plain("\n".join(shortened(line, WIDTH) for line in lines))


def _program(program: Program) -> str:
    """Return the verdict, memory, time, and the lines and layers with their shares."""
    memory, time = program.memory, program.time
    tables = shown.tables(program)
    lines = [shown.title(program), shown.headline(program)]
    for problem in program.errors[: shown.MAX_PROBLEMS]:
        lines += _wrapped(str(problem))
    if (more := len(program.errors) - shown.MAX_PROBLEMS) > 0:
        lines.append(f"  {and_more(more)}")
    if memory is not None:
        lines.append(f"HBM     {_memory_bar(memory)} {shown.memory_phrase(memory)}")
        parts = [shown.part_phrase(kind, size) for kind, size in memory.parts.items()]
        lines += _side_by_side([*parts, shown.memory_limit(memory)], indent=8)
    if time is not None:
        phrases = _side_by_side(shown.time_phrases(program), indent=8)
        lines += ["time" + phrases[0][4:], *phrases[1:]]
        parts = [f"{name} {percent(part)}" for name, part in time.parts.items()]
        lines += _side_by_side(parts, indent=8)
    if program.largest_batch is not None:
        lines.append(f"largest global batch that fits  {grouped(program.largest_batch)}")
    lines += memory_text([program], WIDTH)
    named = "layers" if tables["layers"].rows or time is None else "operations"
    for section in (
        _code(tables["lines"], timed=time is not None, with_memory=memory is not None),
        [*_shares(tables[named], named), *_communication(program, tables["collectives"])],
        _tensors(tables["largest"], "largest tensors at the peak"),
        _tensors(tables["padding"], "padding"),
    ):
        section_lines = list(section)
        lines += ["", *section_lines] if section_lines else []
    for note in shown.notes(program):
        lines += _wrapped(note)
    return plain("\n".join(line.rstrip() for line in lines))


def _wrapped(text: str) -> list[str]:
    return [
        line
        for part in text.splitlines()
        for line in textwrap.wrap(part, WIDTH, initial_indent="  ", subsequent_indent="  ")
    ]


def _side_by_side(parts: Iterable[str], indent: int) -> list[str]:
    """Return lines with as many parts in each line as fit."""
    lines: list[str] = []
    for part in filter(None, parts):
        longer = f"{lines[-1]} · {part}" if lines else ""
        if lines and len(longer) <= WIDTH:
            lines[-1] = longer
        else:
            lines.append(" " * indent + part)
    return lines


def _memory_bar(memory: ProgramMemory) -> str:
    """Return the parts side by side, with exclamation marks for memory over the limit."""
    total = max(memory.peak, memory.available, 1)
    limit = round(_MEMORY_BAR * memory.available / total)
    cells: list[str] = []
    begin = 0
    for kind, size in memory.parts.items():
        begin += size
        cells += [_FILLS.get(kind, "·")] * (round(_MEMORY_BAR * begin / total) - len(cells))
    if cells:  # even the smallest part is visible
        cells[0] = _FILLS.get(next(iter(memory.parts)), "·")
    return "".join("!" if place >= limit else cell for place, cell in enumerate(cells))


def _code(every: shown.Table, *, timed: bool, with_memory: bool) -> Iterator[str]:
    if not every.rows:
        return
    limits = max(len(row.limit) for row in every.rows)
    head = [
        *([f"{'time':<16}"] if timed else []),
        *([f"{'limit':<{limits}} "] if limits else []),
        *(["memory"] if with_memory else []),
    ]
    yield f"  line  {' '.join(head)}"
    lines = every.heaviest(MAX_LINES)
    file = ""
    for row in lines.rows:
        if row.file != file:
            file = row.file
            yield f"  {file or 'cell'}"
        mark = "✗" if row.problem else " "
        number = "" if row.line is None else row.line
        time = f"{_bar(row.fraction)} {row.share:>5} " if timed else ""
        limit = f"{row.limit:<{limits}}  " if limits else ""
        memory = f"{_bar(row.part)} {row.size:>9}" if with_memory else ""
        yield shortened(f"{mark} {number:>4}  {time}{limit}{memory}  {row.name.rstrip()}", WIDTH)
    yield from _below(lines)


def _bar(fraction: float) -> str:
    """Return a fraction as a bar of characters' eighths."""
    eighths = round(8 * _BAR * min(max(fraction, 0.0), 1.0))
    whole, part = divmod(max(eighths, int(fraction > 0)), 8)
    return ("█" * whole + (_EIGHTHS[part] if part else "")).ljust(_BAR)


def _shares(every: shown.Table, name: str) -> Iterator[str]:
    """Yield a line for each layer, operation or collective."""
    if not every.rows:
        return
    timed = any(row.share for row in every.rows)
    yield f"  {name}"
    first = every.first(MAX_ROWS)
    for row in first.rows:
        size = row.moved if name == "collectives" else row.size
        time = f"{_bar(row.fraction)} {row.share:>5} " if timed else ""
        line = "" if row.line is None or name != "collectives" else f"line {row.line}"
        what = " · ".join(filter(None, [row.name, row.limit, row.along, line, row.source]))
        yield shortened(f"  {time}{row.seconds:>8} {size:>9}  {what}", WIDTH)
    yield from _below(first)


def _communication(program: Program, collectives: shown.Table) -> Iterator[str]:
    """Yield a line for each collective, and the cores that exchange data."""
    yield from _shares(collectives, "collectives")
    if program.communication is not None:
        for line in group_lines(program.communication):
            yield shortened(f"  {line}", WIDTH)


def _tensors(every: shown.Table, heading: str) -> Iterator[str]:
    """Yield a line for each tensor: its size, or its size with and without padding."""
    if not every.rows:
        return
    yield f"  {heading}"
    first = every.first(MAX_ROWS)
    for row in first.rows:
        place = "" if row.line is None else f" · line {row.line}"
        place += "" if row.last in (None, row.line) else f", used last in line {row.last}"
        cells = [row.name, row.size] if heading == "padding" else [f"{row.size:>9}", row.name]
        yield shortened(f"  {'  '.join(cells)}  {row.source}{place}", WIDTH)
    yield from _below(first)


def _below(drawn: shown.Table) -> Iterator[str]:
    """Yield the number of all omitted rows, and the time that no row accounts for."""
    if drawn.omitted:
        yield f"  {and_more(drawn.omitted)}"
    yield from _wrapped(drawn.rest)
