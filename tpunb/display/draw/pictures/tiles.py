"""A matrix in the tiles in which a core stores it."""

from __future__ import annotations

from collections.abc import Iterator

from tpunb._util.plain_text import plain
from tpunb._util.tables import Markup
from tpunb._util.units import counted
from tpunb.display.describe.tiles import COLUMNS, ROWS, Tiles
from tpunb.display.draw import svg
from tpunb.display.draw.colours import HOST_COLOURS, INK

_WIDTH, _HEIGHT = 150, 44
_LEFT, _TOP = 74, 22


def tiles_title(tiles: Tiles) -> str:
    """Return the title: `"A matrix of 9 × 129 numbers in tiles of 8 × 128"`."""
    return f"A matrix of {tiles.rows} × {tiles.columns} numbers in tiles of {ROWS} × {COLUMNS}"


def tiles_sentence(tiles: Tiles) -> str:
    """Return how many tiles there are, and how much they store."""
    count = tiles.down * tiles.across
    stored = f"{tiles.down * ROWS} × {tiles.across * COLUMNS} numbers"
    if tiles.factor == 1:
        return f"It fills {counted(count, 'tile')} completely: {stored}, without padding."
    times = f"{tiles.factor:.2f} times its size"
    return f"It takes {counted(count, 'tile')}, {stored}: {times}. The rest is padding."


def tiles_text(tiles: Tiles) -> str:
    """Return a matrix's tiles as plain text."""
    return plain(f"{tiles_title(tiles)}\n  {tiles_sentence(tiles)}")


def tiles_html(tiles: Tiles) -> Markup:
    """Return the picture of a matrix's tiles, with its title and a sentence."""
    width = _LEFT + tiles.across * _WIDTH + 2
    height = _TOP + tiles.down * _HEIGHT + 2
    says = f"{tiles_title(tiles)}. {tiles_sentence(tiles)}"
    drawn = svg.picture(_drawn(tiles), width, height, says)
    return svg.titled(tiles_title(tiles), [tiles_sentence(tiles)], drawn)


def _drawn(tiles: Tiles) -> Iterator[str]:
    wide, high = _length(tiles.columns, COLUMNS, _WIDTH), _length(tiles.rows, ROWS, _HEIGHT)
    yield svg.box(_LEFT, _TOP, wide, high, HOST_COLOURS[0])
    yield from _grid(tiles)
    if min(wide, high) > 18:
        middle = _LEFT + wide / 2, _TOP + high / 2
        yield svg.box(middle[0] - 40, middle[1] - 9, 80, 18, HOST_COLOURS[0])
        yield svg.words(*middle, "the matrix", fill="#fff", bold=True)


def _length(numbers: int, in_tile: int, pixels: float) -> float:
    """Return the length of a side. A small part of a last tile can be seen, too."""
    full, rest = divmod(numbers, in_tile)
    return full * pixels + (max(rest / in_tile * pixels, 5) if rest else 0)


def _grid(tiles: Tiles) -> Iterator[str]:
    for across in range(tiles.across):
        x = _LEFT + across * _WIDTH
        yield svg.words(x + _WIDTH / 2, 10, _range(across, COLUMNS, "columns"), size=11)
        for down in range(tiles.down):
            y = _TOP + down * _HEIGHT
            yield svg.box(x, y, _WIDTH, _HEIGHT, edge=INK, dashed=True)
            is_padding = across * COLUMNS + 40 > tiles.columns or down * ROWS + 2 > tiles.rows
            if is_padding:
                yield svg.words(x + _WIDTH / 2 + 4, y + _HEIGHT / 2 + 4, "padding", size=11)
    for down in range(tiles.down):
        middle = _TOP + (down + 0.5) * _HEIGHT
        yield svg.words(_LEFT - 6, middle, _range(down, ROWS, "rows"), size=11, anchor="end")


def _range(number: int, size: int, noun: str) -> str:
    return f"{noun if number == 0 else ''} {number * size}–{(number + 1) * size - 1}".strip()
