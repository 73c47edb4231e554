"""Compiled programs as HTML: tables and bars that need no script and no style sheet.

Every figure is there as text too: where a front end removes styles, the bars go and the
figures stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tpunb._util.tables import (
    GREEN,
    LINED,
    ORANGE,
    REPORT,
    Markup,
    TableStyle,
    badge,
    block,
    escaped,
    folded,
    scrolled,
    table,
)
from tpunb._util.units import and_more, byte_count
from tpunb.display.draw import program_tables as shown
from tpunb.display.draw.programs_text import programs_text
from tpunb.tpu.compiled_program import Buffer, Program, ProgramMemory, Share

MAX_LINES = 80
MAX_ROWS = 16
MAX_PROGRAMS = 12

RED = "rgba(204,51,51,.35)"
_OVER = "#cc3311"
_BAR = "#0072b2"
_MEMORY = "#008f68"
_COLOURS = {
    "variables": "#0072b2",
    "inputs": "#3d8fc4",
    "results": "#b3578c",
    "temporaries": "#008f68",
    "other": "#7f6a00",
    "free": "rgba(128,128,128,.18)",
}
_TRACK = "background:rgba(128,128,128,.18);overflow:hidden;border-radius:3px"
_SMALL = "font-size:12px;opacity:.8;margin:2px 0"
_CELL = "padding:1px 10px 1px 0;text-align:left;vertical-align:top;border:0"
_CODE = TableStyle(
    "color:inherit;border-collapse:collapse;margin:4px 0 10px;font-size:12px;max-width:100%",
    f"{_CELL};font-weight:400;opacity:.75;white-space:nowrap",
    _CELL,
    "padding:6px 10px 1px 0;text-align:left;font-weight:600",
)
_BADGES = {"compiles": GREEN, "refused": RED, "unknown": ORANGE}


def programs_bundle(programs: Sequence[Program]) -> dict[str, Any]:
    """The static forms of programs: text and HTML."""
    return {"text/plain": programs_text(programs), "text/html": programs_html(programs)}


def programs_html(programs: Sequence[Program]) -> str:
    """The table "which TPU do I need", and each program folded below it; or a single program."""
    if len(programs) == 1:
        return _program(programs[0])
    head, cells = shown.type_rows(programs)
    rows = [
        [
            badge(cell, _BADGES[shown.verdict(program)]) if name == "fits" else _whole(cell)
            for name, cell in zip(head, row, strict=True)
        ]
        for program, row in zip(programs, cells, strict=True)
    ]
    parts: list[str] = [scrolled(table(rows, head=head, named=True, style=LINED))]
    if note := shown.types_note(programs):
        parts.append(_small(note))
    parts += [folded(shown.title(one), _program(one)) for one in programs[:MAX_PROGRAMS]]
    if (rest := len(programs) - MAX_PROGRAMS) > 0:
        parts.append(block(and_more(rest)))
    return f"<div>{''.join(parts)}</div>"


def _program(program: Program) -> str:
    """The verdict, memory, time, and the lines and layers with their shares."""
    tables = shown.tables(program)
    parts = [
        block(shown.title(program), bold=True),
        block(badge(shown.headline(program), _BADGES[shown.verdict(program)])),
        _errors(program, tables),
    ]
    if program.memory is not None:
        parts.append(_memory(program.memory))
    parts.append(block(" · ".join(shown.facts(program))))
    if program.time is not None and program.time.parts:
        shares = (f"{name} {shown.percent(part)}" for name, part in program.time.parts.items())
        parts.append(_small(" · ".join(shares)))
    if tables.weighs_lines:
        parts.append(_code(program, tables))
    parts += [_shares(tables, name) for name in ("layers", "operations", "collectives")]
    too_large = program.memory is not None and not program.memory.fits
    parts.append(_tensors(tables, "largest", "Largest tensors at the peak", is_open=too_large))
    parts.append(_tensors(tables, "padding", "Padding"))
    parts += [_small(note) for note in shown.notes(program)]
    return f"<div>{''.join(parts)}</div>"


def _small(text: str) -> Markup:
    return Markup(f'<div style="{_SMALL}">{escaped(text)}</div>')


def _errors(program: Program, tables: shown.Tables) -> Markup:
    if not program.errors:
        return Markup("")
    rows = [
        (
            "" if problem.line is None else f"line {problem.line}",
            problem.code,
            problem.cause,
            problem.fix,
        )
        for problem in program.errors[: shown.MAX_PROBLEMS]
    ]
    head = ("line", "error", "reason", "try")
    return Markup(scrolled(table(rows, head=head, style=REPORT)) + _more(tables, "errors"))


def _memory(memory: ProgramMemory) -> Markup:
    """The bar of a core's memory with a legend; red is what there is no room for."""
    total = max(memory.peak, memory.available, 1)
    phrases = {kind: shown.part_phrase(kind, size) for kind, size in memory.parts.items()}
    label = f"{shown.memory_phrase(memory)}: {', '.join(phrases.values())}"
    blocks = [
        _block(size / total, _OVER if over else _COLOURS[kind]) for kind, size, over in _cut(memory)
    ]
    legend = [f"{_swatch(_COLOURS[kind])}{escaped(text)}" for kind, text in phrases.items()]
    if memory.over:
        legend.append(f"{_swatch(_OVER)}<b>{escaped(byte_count(memory.over))} too much</b>")
    if limit := shown.memory_limit(memory):
        legend.append(escaped(limit))
    return Markup(
        f'<div role="img" aria-label="{escaped(label)}" '
        f'style="{_TRACK};height:16px;max-width:60em;margin:6px 0 2px">{"".join(blocks)}</div>'
        f'<div style="font-size:12px;margin:0 0 6px">{_spaced(legend)}</div>'
    )


def _cut(memory: ProgramMemory) -> Iterator[tuple[str, int, bool]]:
    """Kind and size of the parts, in two where the limit goes through one."""
    room = memory.available
    for kind, size in memory.parts.items():
        inside = min(room, size)
        room -= inside
        if inside:
            yield kind, inside, False
        if size > inside:
            yield kind, size - inside, True


def _block(fraction: float, colour: str) -> str:
    # Rounded down: blocks whose widths add up to more than the whole would wrap.
    width = int(fraction * 10_000) / 100
    return f'<div style="float:left;height:16px;width:{width:.2f}%;background:{colour}"></div>'


def _swatch(colour: str) -> str:
    style = "display:inline-block;width:9px;height:9px;border-radius:2px;margin:0 4px 0 0"
    return f'<span style="{style};background:{colour}"></span>'


def _spaced(parts: Iterable[str]) -> str:
    return " ".join(
        f'<span style="display:inline-block;margin:0 14px 0 0">{part}</span>' for part in parts
    )


def _code(program: Program, tables: shown.Tables) -> Markup:
    timed, held = program.time is not None, program.memory is not None
    rows: list[Sequence[str] | str] = []
    file = ""
    lines = tables.heaviest_lines(MAX_LINES)
    for row in lines:
        if shown.file_title(row.line) != file:
            file = shown.file_title(row.line)
            rows.append(file or "cell")
        rows.append(_code_row(row, tables, timed=timed, held=held))
    head = ["line", *(["time"] if timed else []), *(["memory"] if held else []), "code"]
    rest = _more(tables, "lines", len(lines), len(tables.lines))
    return Markup(scrolled(table(rows, head=head, named=True, style=_CODE)) + rest)


def _code_row(row: Share, tables: shown.Tables, *, timed: bool, held: bool) -> list[str]:
    problem = tables.problem(row)
    ground = f";background:{RED}" if problem else ""
    style = f"font-family:monospace;white-space:pre-wrap;min-width:18em{ground}"
    number = str(row.line.line) if row.line is not None else ""
    time, _, memory = shown.share_phrases(row)
    return [
        f"{number} ✗" if problem else number,
        *([_bar(row.fraction or 0.0, time, _BAR)] if timed else []),
        *([_bar(row.memory / tables.peak, memory, _MEMORY)] if held else []),
        Markup(f'<div style="{style}">{escaped(row.name)}</div>'),
    ]


def _bar(fraction: float, text: str, colour: str) -> Markup:
    """A bar with its figure below; nothing for nothing."""
    if not text:
        return Markup("")
    width = round(100 * min(max(fraction, 0.0), 1.0), 1)
    return Markup(
        f'<div style="white-space:nowrap;min-width:72px">{escaped(text)}'
        f'<div style="{_TRACK};height:4px"><div style="width:{width}%;height:4px;'
        f'background:{colour}"></div></div></div>'
    )


def _shares(tables: shown.Tables, name: str) -> Markup:
    """A row for each layer, operation or collective, without empty columns."""
    rows: list[Share] = getattr(tables, name)
    if not rows:
        return Markup("")
    columns = ["name", "time", "seconds", "memory", "moved"]
    cells = []
    for row in rows[:MAX_ROWS]:
        time, seconds, memory = shown.share_phrases(row)
        cells.append(
            [
                row.name,
                _bar(row.fraction or 0.0, time, _BAR),
                _whole(seconds),
                _bar(row.memory / tables.peak, memory, _MEMORY),
                _whole(byte_count(row.bytes) if row.bytes else ""),
            ]
        )
    kept = [at for at in range(len(columns)) if any(row[at] for row in cells)]
    head = [columns[at] for at in kept]
    body = [[row[at] for at in kept] for row in cells]
    content: str = scrolled(table(body, head=head, named=True, style=_CODE))
    content += _more(tables, name, MAX_ROWS, len(rows))
    return folded(name.capitalize(), content, is_open=name == "layers")


def _tensors(tables: shown.Tables, name: str, title: str, *, is_open: bool = False) -> Markup:
    """A row for each tensor: its size, or what its padding makes of it."""
    rows: list[Buffer] = getattr(tables, name)
    if not rows:
        return Markup("")
    cells = [
        (
            row.text,
            _whole(shown.padding_phrase(row))
            if name == "padding"
            else _bar(row.padded_bytes / tables.peak, byte_count(row.padded_bytes), _MEMORY),
            shown.tensor_source(row),
            "" if row.line is None else str(row.line.line),
        )
        for row in rows[:MAX_ROWS]
    ]
    head = ("tensor", "memory", "made by", "line")
    content: str = scrolled(table(cells, head=head, style=_CODE))
    return Markup(
        folded(title, content + _more(tables, name, MAX_ROWS, len(rows)), is_open=is_open)
    )


def _whole(text: str) -> Markup:
    """Text that stays in one line: a number and its unit."""
    return Markup(f'<span style="white-space:nowrap">{escaped(text)}</span>' if text else "")


def _more(tables: shown.Tables, name: str, drawn: int = 0, there: int = 0) -> str:
    """Return how many rows are left out in total, and what no row accounts for."""
    omitted = tables.omitted.get(name, 0) + max(there - drawn, 0)
    rest = tables.rest.get(name, "")
    return (_small(and_more(omitted)) if omitted else "") + (_small(rest) if rest else "")
