"""A picture of a collective: the values before, arrows, and the values after.

An element has the colour of the core that it comes from; an element that several cores have made is
grey. White letters are readable on all of these colours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tpunb._util.tables import Markup
from tpunb.display.describe.collective_effect import (
    COMBINED,
    NOTHING,
    CollectiveEffect,
    Held,
)
from tpunb.display.draw import svg
from tpunb.display.draw.colours import FRAME, INK
from tpunb.display.draw.pictures.collective_words import (
    effect_says,
    effect_sentence,
    effect_title,
    is_drawn_in_full,
    number,
)

_CELL_HEIGHT, _LEAST_CELL = 20, 26
_GAP = 14
_LEFT, _TOP = 54, 20
_BETWEEN = 84
_WIDEST = 1_100
_FAINT = 0.35
_PILL = 52, 22
_LABEL = -3
"""The origin of a cell that is a label, and not an element."""
_FOCUS = 0
"""The core whose arrows are strong, if every core sends to every core."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A part of a value's picture, in rows and columns."""

    text: str
    origin: int


_Grid = list[list[_Cell]]


def effect_html(effect: CollectiveEffect) -> Markup:
    """Return the picture of a collective's effect, with its title and a sentence."""
    sentences = [effect_sentence(effect)]
    if _has_focus(effect):
        sentences.append("Strong arrows lead to core 0. The other cores receive in the same way.")
    return svg.titled(effect_title(effect), sentences, _Drawing(effect).picture())


def _has_focus(effect: CollectiveEffect) -> bool:
    return effect.operation in ("all_gather", "reduce_scatter", "all_to_all")


class _Drawing:
    """The picture of one collective.

    Args:
        effect: The values before and after.
    """

    def __init__(self, effect: CollectiveEffect) -> None:
        self._effect = effect
        helds = [*effect.before, *effect.after]
        in_full = all(map(is_drawn_in_full, helds))
        grids = [_grid(held) for held in helds] if in_full else []
        if not in_full or self._too_wide(grids):
            grids = [_stripes(held) for held in helds]
        self._before, self._after = grids[: len(effect.before)], grids[len(effect.before) :]
        self._cell = _cell_width(grids)
        self._pitch = self._cell * max(len(grid[0]) for grid in grids) + _GAP
        self._pitch = max(self._pitch, _PILL[0] + 6)

    def _too_wide(self, grids: list[_Grid]) -> bool:
        columns = max(len(grid[0]) for grid in grids) if grids else 0
        pitch = _cell_width(grids) * columns + _GAP
        return pitch * len(self._effect.before) > _WIDEST

    def picture(self) -> Markup:
        """Return the picture."""
        above = _height(self._before)
        below = _TOP + above + _BETWEEN
        width = _LEFT + self._pitch * len(self._before)
        height = below + _height(self._after) + 20
        parts = [
            svg.words(4, _TOP + above / 2, "before", anchor="start"),
            svg.words(4, below + _height(self._after) / 2, "after", anchor="start"),
            *self._arrows(_TOP + above + 4, below - 4),
            *self._row(self._before, _TOP, align_below=True),
            *self._row(self._after, below, align_below=False),
            *self._names(8),
            *self._names(height - 9),
        ]
        return svg.picture(parts, width, height, effect_says(self._effect))

    def _middle(self, core: int) -> float:
        return _LEFT + self._pitch * (core + 0.5)

    def _names(self, y: float) -> Iterator[str]:
        for core in range(len(self._before)):
            yield svg.words(self._middle(core), y, f"core {core}", size=11)

    def _row(self, grids: list[_Grid], top: float, *, align_below: bool) -> Iterator[str]:
        height = _height(grids)
        for core, grid in enumerate(grids):
            left = self._middle(core) - self._cell * len(grid[0]) / 2
            above = top + (height - _CELL_HEIGHT * len(grid) if align_below else 0)
            for row, cells in enumerate(grid):
                for column, cell in enumerate(cells):
                    at = left + column * self._cell, above + row * _CELL_HEIGHT
                    yield _drawn(cell, at, self._cell)

    def _arrows(self, begin: float, end: float) -> Iterator[str]:
        if self._effect.operation == "all_reduce":
            yield from self._through_middle(begin, end)
            return
        # Strong arrows come last, so that faint arrows do not cross them.
        sends = sorted(self._effect.sends, key=lambda pair: pair[1] == _FOCUS)
        end -= _PILL[1] + 12 if self._effect.reduction else 0
        for source, target in sends:
            is_faint = _has_focus(self._effect) and target != _FOCUS
            yield svg.arrow(
                (self._middle(source), begin),
                (self._middle(target), end),
                INK if is_faint else svg.core_colour(source),
                width=1.2 if is_faint else 2,
                opacity=_FAINT if is_faint else 1,
            )
        if self._effect.reduction:
            yield from self._combined_for_each(end)

    def _combined_for_each(self, top: float) -> Iterator[str]:
        for core in range(len(self._after)):
            x = self._middle(core)
            yield from self._pill(x, top + _PILL[1] / 2)
            yield svg.arrow((x, top + _PILL[1]), (x, top + _PILL[1] + 12), INK, width=1.5)

    def _pill(self, x: float, y: float) -> Iterator[str]:
        width, height = _PILL
        yield svg.box(x - width / 2, y - height / 2, width, height, svg.NEUTRAL)
        yield svg.words(x, y, self._effect.reduction, fill="#fff", bold=True)

    def _through_middle(self, begin: float, end: float) -> Iterator[str]:
        """Yield arrows from all values to one result, and from there to all cores."""
        cores = range(len(self._before))
        middle = self._middle(0) / 2 + self._middle(len(self._before) - 1) / 2, (begin + end) / 2
        for core in cores:
            yield svg.line(
                [(self._middle(core), begin), (middle[0], middle[1] - 10)], svg.core_colour(core)
            )
        for core in cores:
            yield svg.arrow((middle[0], middle[1] + 10), (self._middle(core), end), INK)
        yield from self._pill(*middle)


def _grid(held: Held) -> _Grid:
    """Return a cell for each element; a vector is a column."""
    shape = held.values.shape
    sides = (shape[0], shape[1]) if len(shape) == 2 else (held.values.size, 1)
    values, origins = held.values.reshape(sides), held.origins.reshape(sides)
    return [
        [_Cell(number(value), int(origin)) for value, origin in zip(*pair, strict=True)]
        for pair in zip(values, origins, strict=True)
    ] or [[_Cell("empty", NOTHING)]]


def _stripes(held: Held) -> _Grid:
    """Return the shape of a large value; below it a row for each core whose elements it has."""
    shape = "×".join(map(str, held.values.shape)) or "empty"
    flat = held.origins.ravel()
    if not flat.size or (flat == flat[0]).all():
        return [[_Cell(shape, int(flat[0]) if flat.size else NOTHING)]]
    order = flat[np.sort(np.unique(flat, return_index=True)[1])]
    return [[_Cell(shape, _LABEL)], *([_Cell(f"from {core}", int(core))] for core in order)]


def _cell_width(grids: list[_Grid]) -> float:
    longest = max(len(cell.text) for grid in grids for row in grid for cell in row)
    return max(_LEAST_CELL, 12 * svg.LETTER * longest + 8)


def _height(grids: list[_Grid]) -> float:
    return _CELL_HEIGHT * max(map(len, grids))


def _drawn(cell: _Cell, at: svg.Point, width: float) -> str:
    left, top = at
    middle = left + width / 2, top + _CELL_HEIGHT / 2
    if cell.origin == _LABEL:
        return svg.words(*middle, cell.text)
    if cell.origin == NOTHING:
        ground = svg.box(left + 1, top + 1, width - 2, _CELL_HEIGHT - 2, edge=FRAME, dashed=True)
        return ground + svg.words(*middle, cell.text, fill=INK)
    fill = svg.NEUTRAL if cell.origin == COMBINED else svg.core_colour(cell.origin)
    ground = svg.box(left + 0.5, top + 0.5, width - 1, _CELL_HEIGHT - 1, fill)
    return ground + svg.words(*middle, cell.text, fill="#fff", bold=True)
