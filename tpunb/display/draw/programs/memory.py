"""A core's memory over a program: a picture of the lines that own it, and the same as text."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from string import ascii_lowercase

from tpunb._util.plain_text import shortened
from tpunb._util.tables import Markup, block, escaped
from tpunb._util.units import byte_count, counted, grouped
from tpunb.display.draw import svg
from tpunb.display.draw.colours import FRAME, HOST_COLOURS, INK
from tpunb.errors.code_problems import SourceLine
from tpunb.tpu.compiled_program import MemoryOverProgram, MemoryOwner, Program

WORTH = 0.1
"""The part of a core's memory from which on a program's memory is drawn."""

_MUCH = 0.05
"""The part of the compiler's peak from which on what is not in the picture is named."""

_WIDTH, _HEIGHT, _LEFT, _ABOVE, _BELOW = 640, 200, 74, 24, 26
_OTHERS = "#8c959f"
_COLUMNS, _ROWS = 64, 8
_NAME = 70


def drawn(programs: Sequence[Program]) -> list[tuple[Program, MemoryOverProgram]]:
    """Return the programs whose memory is shown: a large one, or several for the same TPU type."""
    several = len(programs) > 1 and len({program.tpu for program in programs}) == 1
    return [
        (program, memory.over_program)
        for program in programs
        if (memory := program.memory) and memory.over_program and any(memory.over_program.totals)
        if several or (len(programs) == 1 and memory.peak >= WORTH * memory.available)
    ]


def sentence(over: MemoryOverProgram) -> str:
    """Return the peak, and where it is."""
    peak, moment = over.totals[over.peak], over.moments[over.peak]
    return (
        f"Memory over the program: peak {byte_count(peak)} at instruction {grouped(moment + 1)} of "
        f"{grouped(over.steps)} (loops count once)."
    )


def _elsewhere(program: Program) -> str:
    """Return what the compiler's peak has beside the values in HBM, if it is much."""
    memory = program.memory
    if not memory or not memory.over_program or not program.ok:
        return ""
    rest = memory.peak - max(memory.over_program.totals)
    if rest < _MUCH * memory.peak:
        return ""
    return f"{byte_count(rest)} more are in the core's fast memory, or the compiler's own."


def _owner(owner: MemoryOwner) -> str:
    """Return a name such as `"line 7"`."""
    if owner.line is not None:
        return f"line {owner.line.line}"
    return owner.name or "other lines"


def _code(owner: MemoryOwner, program: Program) -> str:
    """Return a line's code; empty if it is not known."""
    known = {line.place: line.text for line in program.lines}
    name = known.get(owner.line, owner.name) if owner.line else ""
    return "" if name == _owner(owner) else shortened(name.strip(), _NAME)


def memory_html(programs: Sequence[Program]) -> Markup:
    """Return the pictures of programs side by side on one scale, with their legends."""
    shown = drawn(programs)
    highest, colours = _highest(shown), _marks(shown, HOST_COLOURS)
    size = _LEFT + _WIDTH + 6, _ABOVE + _HEIGHT + _BELOW
    says = (f"{program.label}. {sentence(over)}" for program, over in shown)
    parts = [
        f'<div style="max-width:{size[0]}px;flex:1 1 20em;min-width:0">'
        f"{block(_title(program, programs), bold=True) if len(programs) > 1 else ''}"
        f'<div style="font-size:12px">{escaped(f"{sentence(over)} {_elsewhere(program)}")}</div>'
        f"{svg.picture(_picture(over, highest, colours), *size, next(says))}"
        f"{_legend(program, over, colours)}</div>"
        for program, over in shown
    ]
    style = "display:flex;flex-wrap:wrap;gap:0 20px;margin:6px 0"
    return Markup(f'<div style="{style}">{"".join(parts)}</div>' if parts else "")


def _title(program: Program, programs: Sequence[Program]) -> str:
    """Return the place of a program among several, and its name."""
    place = next(place for place, each in enumerate(programs, 1) if each is program)
    return f"{place}: {program.name or program.label}"


def _highest(shown: Iterable[tuple[Program, MemoryOverProgram]]) -> int:
    """Return the most bytes of all programs, which are drawn on one scale."""
    return max((max(over.totals) for _, over in shown), default=0)


def _marks(
    shown: Iterable[tuple[Program, MemoryOverProgram]], marks: Sequence[str]
) -> dict[SourceLine, str]:
    """Return a colour or a letter for each line, the same in all programs."""
    lines = (owner.line for _, over in shown for owner in over.owners if owner.line)
    return dict(zip(dict.fromkeys(lines), itertools.cycle(marks), strict=False))


def _mark(owner: MemoryOwner, marks: dict[SourceLine, str], kept: str, others: str) -> str:
    return marks[owner.line] if owner.line else kept if owner.name else others


def _stacked(over: MemoryOverProgram) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the sizes below and with each owner, at each moment; what is alive always is lowest."""
    below = [0] * len(over.moments)
    for owner in over.owners:
        top = [low + size for low, size in zip(below, owner.sizes, strict=True)]
        yield below, top
        below = top


def _picture(
    over: MemoryOverProgram, highest: int, colours: dict[SourceLine, str]
) -> Iterator[str]:
    def down(size: float) -> float:
        return _ABOVE + _HEIGHT * (1 - size / highest)

    edges = [_LEFT + _WIDTH * moment / over.steps for moment in (0, *over.moments[1:], over.steps)]
    for owner, (below, top) in zip(over.owners, _stacked(over), strict=True):
        colour = _mark(owner, colours, svg.NEUTRAL, _OTHERS)
        yield f'<path d="{_area(edges, [*map(down, below)], [*map(down, top)])}" fill="{colour}"/>'
    for part in (0, 0.5, 1):
        y = down(part * highest)
        yield svg.line([(_LEFT, y), (_LEFT + _WIDTH, y)], FRAME, width=0.5)
        yield svg.words(_LEFT - 6, y, byte_count(round(part * highest)), anchor="end")
    x, peak = edges[over.peak], over.totals[over.peak]
    right = x > _LEFT + _WIDTH / 2
    yield svg.line([(x, _ABOVE - 8), (x, _ABOVE + _HEIGHT)], INK, width=1)
    label = f"peak {byte_count(peak)}"
    yield svg.words(
        x - 5 if right else x + 5, 10, label, anchor="end" if right else "start", bold=True
    )
    order = f"{counted(over.steps, 'instruction')} in their order →"
    yield svg.words(_LEFT, _ABOVE + _HEIGHT + 15, order, anchor="start")


def _area(edges: Sequence[float], below: Sequence[float], top: Sequence[float]) -> str:
    """Return the outline of a staircase over another."""
    ahead = _stairs(edges, top)
    back = reversed(_stairs(edges, below))
    return f"M{'L'.join(f'{svg.short(x)} {svg.short(y)}' for x, y in (*ahead, *back))}Z"


def _stairs(edges: Sequence[float], heights: Sequence[float]) -> list[tuple[float, float]]:
    """Return the corners of a staircase, without those in a straight line."""
    corners: list[tuple[float, float]] = []
    for height, run in itertools.groupby(
        zip(heights, itertools.pairwise(edges), strict=True), key=lambda each: each[0]
    ):
        places = [edge for _, pair in run for edge in pair]
        corners += [(places[0], height), (places[-1], height)]
    return corners


def _legend(program: Program, over: MemoryOverProgram, colours: dict[SourceLine, str]) -> str:
    """Return a row for each owner: its memory at the peak, its line and its code."""
    rows = []
    for owner in over.owners:
        colour = _mark(owner, colours, svg.NEUTRAL, _OTHERS)
        swatch = f"display:inline-block;width:9px;height:9px;border-radius:2px;background:{colour}"
        name = escaped(_owner(owner))
        if owner.line is not None:
            name = Markup(f'line <span data-line="{owner.line.line}">{owner.line.line}</span>')
        code = f'<span style="font-family:monospace">{escaped(_code(owner, program))}</span>'
        size = byte_count(owner.sizes[over.peak])
        rows.append(
            '<div style="overflow:hidden;text-overflow:ellipsis;white-space:nowrap">'
            f'<span style="{swatch}"></span> {size} · {name} {code}</div>'
        )
    return f'<div style="font-size:12px;margin:0 0 6px">At the peak: {"".join(rows)}</div>'


def memory_text(programs: Sequence[Program], width: int) -> Iterator[str]:
    """Yield pictures of characters one below another on one scale, with their legends."""
    shown = drawn(programs)
    highest, marks = _highest(shown), _marks(shown, ascii_lowercase)
    for program, over in shown:
        yield ""
        if len(programs) > 1:
            yield _title(program, programs)
        yield from (
            shortened(line.rstrip(), width) for line in _text(program, over, highest, marks)
        )
        if rest := _elsewhere(program):
            yield f"  {rest}"


def _text(
    program: Program, over: MemoryOverProgram, highest: int, marks: dict[SourceLine, str]
) -> Iterator[str]:
    letters = [_mark(owner, marks, "█", "░") for owner in over.owners]
    totals = over.totals
    bounds = [len(totals) * column // _COLUMNS for column in range(_COLUMNS + 1)]
    moments = [
        max(range(begin, max(end, begin + 1)), key=totals.__getitem__)
        for begin, end in itertools.pairwise(bounds)
    ]
    tops = [top for _, top in _stacked(over)]
    yield f"  {sentence(over)}"
    for row in reversed(range(_ROWS)):
        level = (row + 0.5) / _ROWS * highest
        owners = (
            next((each for each, top in zip(letters, tops, strict=True) if top[at] > level), " ")
            for at in moments
        )
        mark = byte_count(highest) if row == _ROWS - 1 else ""
        yield f"  {mark:>9} │{''.join(owners)}"
    peak = moments.index(over.peak)
    yield f"{'0 └':>13}{'─' * peak}┴{'─' * (_COLUMNS - peak - 1)}"
    for letter, owner in zip(letters, over.owners, strict=True):
        size = byte_count(owner.sizes[over.peak])
        yield f"  {size:>9} {letter} {_owner(owner)}  {_code(owner, program)}"
