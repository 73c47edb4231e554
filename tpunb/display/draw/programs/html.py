"""Compiled programs as HTML: tables and bars that need no script and no style sheet.

Every figure is also text. If a front end removes styles, the bars go and the figures stay. The live
form is the same page. Its script finds the values to sort by in `data-value`, a tensor's line in
`data-line`, and a line of the code in `data-code`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from tpunb._util.units import and_more, grouped, percent
from tpunb.display.draw.programs import tables as shown
from tpunb.display.draw.programs.communication import communication_html
from tpunb.display.draw.programs.memory import memory_html
from tpunb.display.draw.programs.text import programs_text
from tpunb.tpu.compiled_program import Program, ProgramMemory

HEAVIEST = 10
"""Rows of a table that are shown at once; a table with only a few more shows all."""

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
    """Return the static forms of programs: text and HTML."""
    return {"text/plain": programs_text(programs), "text/html": programs_html(programs)}


def types_table(programs: Sequence[Program]) -> Markup:
    """Return the table "which TPU do I need"."""
    head, cells = shown.type_rows(programs)
    rows = [
        [
            badge(cell, _BADGES[shown.verdict(program)]) if name == "fits" else _whole(cell)
            for name, cell in zip(head, row, strict=True)
        ]
        for program, row in zip(programs, cells, strict=True)
    ]
    return Markup(scrolled(table(rows, head=head, named=True, style=LINED)))


def programs_html(programs: Sequence[Program]) -> str:
    """Return the table "which TPU do I need" with folded programs below it, or a single program."""
    if len(programs) == 1:
        return f"<div>{block(shown.title(programs[0]), bold=True)}{_program(programs[0])}</div>"
    parts: list[str] = [types_table(programs)]
    parts += map(_small, filter(None, [shown.types_note(programs)]))
    parts.append(beside := memory_html(programs[:MAX_PROGRAMS]))
    parts += [
        folded(shown.title(program), _program(program, with_picture=not beside))
        for program in programs[:MAX_PROGRAMS]
    ]
    if (rest := len(programs) - MAX_PROGRAMS) > 0:
        parts.append(block(and_more(rest)))
    return f"<div>{''.join(parts)}</div>"


def _program(program: Program, *, with_picture: bool = True) -> str:
    """Return the verdict, memory, time, and the lines and layers with their shares."""
    memory, time = program.memory, program.time
    tables = shown.tables(program)
    parts = [block(badge(shown.headline(program), _BADGES[shown.verdict(program)]))]
    if program.errors:
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
        parts.append(scrolled(table(rows, head=head, style=REPORT)))
        if (more := len(program.errors) - len(rows)) > 0:
            parts.append(_small(and_more(more)))
    if memory is not None:
        parts.append(_memory(memory))
    if with_picture:
        parts.append(memory_html([program]))
    parts.append(block(" · ".join(shown.facts(program))))
    if time is not None and time.parts:
        shares = (f"{name} {percent(part)}" for name, part in time.parts.items())
        parts.append(_small(" · ".join(shares)))
    if tables["lines"].rows:
        lines = tables["lines"]
        draw = functools.partial(_code, timed=time is not None, with_memory=memory is not None)
        parts.append(_opening(lines, _heaviest_lines(lines), "lines", draw))
    for name, title, is_open in (
        ("layers", "Layers", True),
        ("operations", "Operations", False),
        ("collectives", "Communication", program.communication is not None),
        ("largest", "Largest tensors at the peak", memory is not None and not memory.fits),
        ("padding", "Padding", False),
    ):
        if tables[name].rows:
            every = tables[name]
            draw = functools.partial(_rows, name=name)
            content = _opening(every, every.first(HEAVIEST), "rows", draw)
            if name == "collectives" and program.communication is not None:
                content = Markup(communication_html(program.communication) + content)
            parts.append(folded(title, content, is_open=is_open))
    parts += map(_small, shown.notes(program))
    return f"<div data-program>{''.join(parts)}</div>"


def _small(text: str) -> Markup:
    lines = ";white-space:pre-line" if "\n" in text else ""
    return Markup(f'<div style="{_SMALL}{lines}">{escaped(text)}</div>')


def _memory(memory: ProgramMemory) -> Markup:
    """Return the bar of a core's memory with a legend; memory over the limit is red."""
    total = max(memory.peak, memory.available, 1)
    room = memory.available
    blocks, legend = [], []
    for kind, size in memory.parts.items():
        inside = min(room, size)
        room -= inside
        # Draw two blocks if the limit goes through a part.
        for length, colour in ((inside, _COLOURS[kind]), (size - inside, _OVER)):
            if length:
                # Round down, because blocks whose widths add up to more than the whole would wrap.
                width = int(length / total * 10_000) / 100
                style = f"float:left;height:16px;width:{width:.2f}%;background:{colour}"
                blocks.append(f'<div style="{style}"></div>')
        legend.append(_swatch(_COLOURS[kind]) + escaped(shown.part_phrase(kind, size)))
    if over := shown.over_phrase(memory):
        legend.append(f"{_swatch(_OVER)}<b>{escaped(over)}</b>")
    if limit := shown.memory_limit(memory):
        legend.append(escaped(limit))
    spaced = " ".join(
        f'<span style="display:inline-block;margin:0 14px 0 0">{part}</span>' for part in legend
    )
    phrases = ", ".join(shown.part_phrase(*part) for part in memory.parts.items())
    label = escaped(f"{shown.memory_phrase(memory)}: {phrases}")
    return Markup(
        f'<div role="img" aria-label="{label}" '
        f'style="{_TRACK};height:16px;max-width:60em;margin:6px 0 2px">{"".join(blocks)}</div>'
        f'<div style="font-size:12px;margin:0 0 6px">{spaced}</div>'
    )


def _swatch(colour: str) -> str:
    style = "display:inline-block;width:9px;height:9px;border-radius:2px;margin:0 4px 0 0"
    return f'<span style="{style};background:{colour}"></span>'


def _heaviest_lines(lines: shown.Table) -> shown.Table:
    """Return the heaviest lines, without lines that take nothing: the code is below."""
    heaviest = lines.heaviest(HEAVIEST)
    rows = [row for row in heaviest.rows if row.problem or row.share or row.size]
    return replace(heaviest, rows=rows)


def _opening(
    every: shown.Table, heaviest: shown.Table, noun: str, draw: Callable[[shown.Table], str]
) -> Markup:
    """Return the heaviest rows, and all of them in a section that opens."""
    count = len(every.rows)
    if count <= HEAVIEST + 2:
        return Markup(f"{draw(every)}{_below(every)}")
    of = f"{count} of {grouped(count + every.omitted)}" if every.omitted else f"All {count}"
    more = f"{draw(every)}{_below(replace(every, rest=''))}"
    return Markup(
        f"{draw(heaviest)}{_below(replace(heaviest, omitted=0))}{folded(f'{of} {noun}', more)}"
    )


def _code(lines: shown.Table, *, timed: bool, with_memory: bool) -> Markup:
    rows: list[Sequence[str] | str] = []
    limits = any(row.limit for row in lines.rows)
    file = ""
    for row in lines.rows:
        if row.file != file:
            file = row.file
            rows.append(file or "cell")
        ground = f";background:{RED}" if row.problem else ""
        style = f"font-family:monospace;white-space:pre-wrap;min-width:18em{ground}"
        number = "" if row.line is None else str(row.line)
        mark = " ✗" if row.problem else ""
        rows.append(
            [
                Markup(f'<span data-code="{number}">{number}{mark}</span>'),
                *([figure_bar(row.fraction, row.share, _BAR)] if timed else []),
                *([_whole(row.limit)] if limits else []),
                *([figure_bar(row.part, row.size, _MEMORY)] if with_memory else []),
                Markup(f'<div style="{style}">{escaped(row.name)}</div>'),
            ]
        )
    shown_columns = {"time": timed, "limit": limits, "memory": with_memory}
    head = ["line", *(name for name, is_shown in shown_columns.items() if is_shown), "code"]
    return scrolled(table(rows, head=head, named=True, style=_CODE))


def figure_bar(fraction: float, text: str, colour: str) -> Markup:
    """Return a bar with its figure below; empty without a figure."""
    if not text:
        return Markup("")
    width = round(100 * min(max(fraction, 0.0), 1.0), 1)
    return Markup(
        f'<div data-value="{fraction:.4g}" style="white-space:nowrap;min-width:72px">'
        f"{escaped(text)}"
        f'<div style="{_TRACK};height:4px"><div style="width:{width}%;height:4px;'
        f'background:{colour}"></div></div></div>'
    )


def _rows(rows: shown.Table, name: str) -> Markup:
    """Return a row for each layer, operation, collective or tensor, without empty columns."""
    tensors = name in ("largest", "padding")
    columns: dict[str, Callable[[shown.Row], str]] = {
        "tensor" if tensors else "name": lambda row: row.name,
        "time": lambda row: figure_bar(row.fraction, row.share, _BAR),
        "seconds": lambda row: _whole(row.seconds),
        "limit": lambda row: _whole(row.limit),
        "memory": lambda row: (
            _whole(row.size) if name == "padding" else figure_bar(row.part, row.size, _MEMORY)
        ),
        "along": lambda row: _whole(row.along),
        "moved": lambda row: _whole(row.moved),
        "made by" if tensors else "moves": lambda row: row.source,
        "line": lambda row: _line(row.line),
        "used last in line": lambda row: _line(row.last),
    }
    cells = {head: list(map(cell, rows.rows)) for head, cell in columns.items()}
    filled = {head: column for head, column in cells.items() if any(column)}
    body = list(zip(*filled.values(), strict=True))
    named = not tensors
    return scrolled(table(body, head=list(filled), named=named, style=_CODE))


def _line(number: int | None) -> Markup:
    return Markup("" if number is None else f'<span data-line="{number}">{number}</span>')


def _whole(text: str) -> Markup:
    """Return text that stays in one line: a number and its unit."""
    return Markup(f'<span style="white-space:nowrap">{escaped(text)}</span>' if text else "")


def _below(drawn: shown.Table) -> str:
    """Return the number of all omitted rows, and the time that no row accounts for."""
    more = and_more(drawn.omitted) if drawn.omitted else ""
    return "".join(map(_small, filter(None, [more, drawn.rest])))
