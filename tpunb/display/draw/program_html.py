"""Compiled programs as HTML: tables and bars that need no script and no style sheet.

Every figure is there as text too: where a front end removes styles, the bars go and the
figures stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
    table,
)
from tpunb._util.units import byte_count, duration
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

__all__ = ["RED", "program_html", "programs_html"]

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
_TITLE = "font-size:13px;font-weight:600;cursor:pointer;margin:4px 0"
_BADGES = {"compiles": GREEN, "refused": RED, "unknown": ORANGE}


def programs_html(description: ProgramsDescription) -> str:
    """The table "which TPU do I need", and each program folded below it."""
    if len(description.programs) == 1:
        return program_html(description.programs[0])
    cells = [phrases.type_cells(row) for row in description.rows]
    columns = [index for index in range(len(phrases.TYPE_HEAD)) if any(row[index] for row in cells)]
    verdicts = [row.verdict for row in description.rows]
    rows = [
        [_type_cell(index, row, verdict) for index in columns]
        for row, verdict in zip(cells, verdicts, strict=True)
    ]
    head = [phrases.TYPE_HEAD[index] for index in columns]
    programs = description.programs[:MAX_PROGRAMS]
    parts = [_wide(table(rows, head=head, named=True, style=LINED))]
    parts += [_folded(program.title, program_html(program)) for program in programs]
    if (rest := len(description.programs) - len(programs)) > 0:
        parts.append(block(formats.and_more(rest)))
    return f"<div>{''.join(parts)}</div>"


def _type_cell(index: int, row: Sequence[str], verdict: str) -> str:
    if phrases.TYPE_HEAD[index] == "fits":
        return badge(row[index], _BADGES[verdict])
    return Markup(f'<span style="white-space:nowrap">{escaped(row[index])}</span>')


def program_html(program: ProgramDescription) -> str:
    """The verdict, memory, time, and the lines and layers with their shares."""
    parts = [
        block(program.title, bold=True),
        block(badge(phrases.headline(program), _BADGES[program.verdict])),
        _errors(program),
    ]
    if program.memory is not None:
        parts.append(_memory(program.memory))
    parts += [*_time(program), *_sections(program)]
    parts += [Markup(f'<div style="{_SMALL}">{escaped(note)}</div>') for note in program.notes]
    return f"<div>{''.join(parts)}</div>"


def _errors(program: ProgramDescription) -> Markup:
    if not program.errors:
        return Markup("")
    rows = [
        (
            "" if problem.line is None else f"line {problem.line}",
            problem.code,
            problem.cause,
            problem.fix,
        )
        for problem in program.errors
    ]
    head = ("line", "error", "reason", "try")
    return Markup(_wide(table(rows, head=head, style=REPORT)) + _more(program, "errors"))


def _memory(memory: MemoryBar) -> Markup:
    """The bar of a core's memory with a legend; red is what there is no room for."""
    label = f"{phrases.memory_phrase(memory)}: " + ", ".join(
        map(phrases.segment_phrase, memory.segments)
    )
    blocks = [
        _block(size / memory.total, _OVER if over else _COLOURS[kind])
        for kind, size, over in _cut(memory)
    ]
    legend = [
        f"{_swatch(_COLOURS[segment.kind])}{escaped(phrases.segment_phrase(segment))}"
        for segment in memory.segments
    ]
    if memory.over:
        legend.append(f"{_swatch(_OVER)}<b>{escaped(byte_count(memory.over))} too much</b>")
    if limit := phrases.memory_limit(memory):
        legend.append(escaped(limit))
    return Markup(
        f'<div role="img" aria-label="{escaped(label)}" '
        f'style="{_TRACK};height:16px;max-width:60em;margin:6px 0 2px">{"".join(blocks)}</div>'
        f'<div style="font-size:12px;margin:0 0 6px">{_spaced(legend)}</div>'
    )


def _cut(memory: MemoryBar) -> Iterator[tuple[str, int, bool]]:
    """Kind and size of the parts, in two where the limit goes through one."""
    for segment in memory.segments:
        inside = min(max(memory.available - segment.begin, 0), segment.bytes)
        if inside:
            yield segment.kind, inside, False
        if segment.bytes > inside:
            yield segment.kind, segment.bytes - inside, True


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


def _time(program: ProgramDescription) -> Iterator[Markup]:
    yield block(" · ".join(phrases.facts(program)))
    if program.time is not None and program.time.parts:
        yield Markup(
            f'<div style="{_SMALL}">{escaped(" · ".join(phrases.time_parts(program.time)))}</div>'
        )


def _sections(program: ProgramDescription) -> Iterator[Markup]:
    if program.has_shares:
        yield _code(program)
    yield _shares(program, "layers", "Layers", program.layers)
    yield _shares(program, "operations", "Operations", program.operations)
    yield _shares(program, "collectives", "Collectives", program.collectives)
    yield _tensors(program, "largest", "Largest tensors at the peak", program.largest)
    yield _tensors(program, "padding", "Padding", program.padding)


def _code(program: ProgramDescription) -> Markup:
    timed, held = program.time is not None, program.memory is not None
    rows: list[Sequence[str] | str] = []
    file = ""
    shown = heaviest(program.code, lambda row: row.weight, MAX_LINES)
    for row in shown:
        if row.file != file:
            file = row.file
            rows.append(file or "cell")
        rows.append(_code_row(row, timed, held))
    head = ["line", *(["time"] if timed else []), *(["memory"] if held else []), "code"]
    rest = _more(program, "code", len(shown), len(program.code))
    return Markup(_wide(table(rows, head=head, named=True, style=_CODE)) + rest)


def _code_row(row: CodeRow, timed: bool, held: bool) -> list[str]:
    ground = f";background:{RED}" if row.problem else ""
    style = f"font-family:monospace;white-space:pre-wrap;min-width:18em{ground}"
    code = Markup(f'<div style="{style}">{escaped(row.text)}</div>')
    time = "" if not row.fraction else phrases.percent(row.fraction)
    memory = byte_count(row.memory) if row.memory else ""
    return [
        f"{row.number} ✗" if row.problem else str(row.number),
        *([_bar(row.fraction or 0.0, time, _BAR)] if timed else []),
        *([_bar(row.part, memory, _MEMORY)] if held else []),
        code,
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


def _shares(
    program: ProgramDescription, name: str, title: str, rows: tuple[ShareRow, ...]
) -> Markup:
    if not rows:
        return Markup("")
    columns = ["name", "time", "seconds", "memory", "moved"]
    cells = [_share_cells(row) for row in rows[:MAX_ROWS]]
    kept = [index for index in range(len(columns)) if any(row[index] for row in cells)]
    head = [columns[index] for index in kept]
    shown = table(
        [[row[index] for index in kept] for row in cells], head=head, named=True, style=_CODE
    )
    content = _wide(shown) + _more(program, name, MAX_ROWS, len(rows))
    return Markup(_folded(title, content, is_open=name == "layers"))


def _share_cells(row: ShareRow) -> list[str]:
    time = "" if not row.fraction else phrases.percent(row.fraction)
    return [
        row.name,
        _bar(row.fraction or 0.0, time, _BAR),
        duration(row.seconds) if row.seconds else "",
        _bar(row.part, byte_count(row.memory) if row.memory else "", _MEMORY),
        byte_count(row.bytes) if row.bytes else "",
    ]


def _tensors(
    program: ProgramDescription, name: str, title: str, rows: tuple[TensorRow, ...]
) -> Markup:
    if not rows:
        return Markup("")
    padding = name == "padding"
    cells = [
        (
            row.text,
            phrases.padding_phrase(row)
            if padding
            else _bar(row.part, byte_count(row.bytes), _MEMORY),
            phrases.tensor_source(row),
            "" if row.line is None else str(row.line),
        )
        for row in rows[:MAX_ROWS]
    ]
    head = ("tensor", "memory", "made by", "line")
    content = _wide(table(cells, head=head, style=_CODE)) + _more(
        program, name, MAX_ROWS, len(rows)
    )
    too_large = program.memory is not None and bool(program.memory.over)
    return Markup(_folded(title, content, is_open=too_large and not padding))


def _more(program: ProgramDescription, name: str, shown: int = 0, there: int = 0) -> str:
    """The line that says how many rows are left out, here and before."""
    rest = program.left_out(name) + max(there - shown, 0)
    return f'<div style="{_SMALL}">{escaped(formats.and_more(rest))}</div>' if rest else ""


def _folded(title: str, content: str, *, is_open: bool = False) -> str:
    opened = " open" if is_open else ""
    return (
        f'<details{opened}><summary style="{_TITLE}">{escaped(title)}</summary>{content}</details>'
    )


def _wide(content: str) -> str:
    """What scrolls by itself where the page is narrow."""
    return f'<div style="overflow-x:auto;max-width:100%">{content}</div>'
