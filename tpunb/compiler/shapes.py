"""Shapes in XLA's text, and what they take of a core's memory with their tiles filled up."""

from __future__ import annotations

import dataclasses
import functools
import math
import re

__all__ = ["Shape", "leaves", "parsed"]

_BITS = {
    "pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16,
    "s32": 32, "u32": 32, "s64": 64, "u64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64,
    "c64": 64, "c128": 128,
}  # fmt: skip
_ARRAY = re.compile(
    r"(?P<dtype>[a-z]\w*)\[(?P<sizes>[^\]]*)\](?:\{(?P<order>[\d,]*)(?::(?P<layout>[^}]*))?\})?"
)
_TILE = re.compile(r"T((?:\([\d,*-]+\))+)")
_SPACE = re.compile(r"S\((\d+)\)")
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """An array in a program.

    Attributes:
        dtype: XLA's name of its type.
        sizes: Its sizes; bounds where a size depends on data.
        order: Its axes, the one whose neighbours lie side by side first.
        tiles: The tiles into which it is cut, the outermost first.
        space: The memory space: 0 is HBM.
        text: The layout's text.
    """

    dtype: str
    sizes: tuple[int, ...]
    order: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    space: int = 0
    text: str = ""

    @property
    def unpadded(self) -> int:
        """What its numbers take, in bytes."""
        return math.ceil(math.prod(self.sizes) * _BITS.get(self.dtype, 0) / 8)

    @property
    def padded(self) -> int:
        """What it takes with its outermost tile filled up, in bytes."""
        sizes = [self.sizes[axis] for axis in reversed(self.order)] or list(self.sizes)
        if self.tiles:
            tile = self.tiles[0]
            sizes = [1] * (len(tile) - len(sizes)) + sizes
            first = len(sizes) - len(tile)
            for place, size in enumerate(tile, start=first):
                sizes[place] = -(-sizes[place] // size) * size
        return math.ceil(math.prod(sizes) * _BITS.get(self.dtype, 0) / 8)


@functools.lru_cache(maxsize=4096)
def leaves(text: str) -> tuple[Shape, ...]:
    """The arrays of a shape, which may be a tuple of tuples, in order."""
    return tuple(map(_shape, _ARRAY.finditer(_COMMENT.sub("", text))))


def parsed(text: str) -> Shape | None:
    """The only array of a shape, or None for a tuple or a token."""
    found = leaves(text)
    return found[0] if len(found) == 1 and not text.startswith("(") else None


def _shape(match: re.Match[str]) -> Shape:
    sizes = tuple(int(size.strip("<= ?") or 0) for size in match["sizes"].split(",") if size)
    order = tuple(int(axis) for axis in (match["order"] or "").split(",") if axis)
    layout = match["layout"] or ""
    tiles = _TILE.search(layout)
    space = _SPACE.search(layout)
    return Shape(
        match["dtype"],
        sizes,
        order,
        tuple(map(_tile, tiles[1][1:-1].split(")("))) if tiles else (),
        int(space[1]) if space else 0,
        match[0].partition("]")[2],
    )


def _tile(text: str) -> tuple[int, ...]:
    # `*` joins an axis to the next one.
    return tuple(1 if size in ("*", "-1") else int(size) for size in text.split(","))
