"""What both pictures of a topology measure alike: the header, and the planes below it."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["MARGIN", "WIDTH", "PlaneGrid", "header_height", "header_tops", "header_width"]

WIDTH = 900
MARGIN = 18

_TITLE_TOP = MARGIN - 4
_LINES_TOP = MARGIN + 25
_LINE = 18


def header_tops(header: list[str]) -> list[int]:
    """Where the header's lines begin, the title first."""
    return [_TITLE_TOP, *(_LINES_TOP + _LINE * number for number in range(len(header) - 1))]


def header_height(header: list[str]) -> int:
    """The height of a header with the margin above and the gap below it."""
    return MARGIN + 27 + _LINE * (len(header) - 1) + 8


def header_width(header: list[str]) -> float:
    """The width of a page that has room for its header."""
    return 2 * MARGIN + max(7.0 * len(line) for line in header)


@dataclass(frozen=True, slots=True)
class PlaneGrid:
    """The planes of a mesh beside each other, in rows, by z.

    Attributes:
        depth: How many planes there are.
        columns: How many are beside each other.
        step: From one plane to the next, across and down.
        gap: How much of that is between the planes.
        inset: From a plane's corner to that of its first chip.
        top: Where the planes begin.
    """

    depth: int
    columns: int
    step: tuple[float, float]
    gap: tuple[float, float]
    inset: tuple[float, float]
    top: float

    @property
    def rows(self) -> int:
        """How many planes there are below each other."""
        return math.ceil(self.depth / self.columns)

    @property
    def width(self) -> float:
        """The width of the page."""
        return 2 * MARGIN + self.columns * self.step[0] - self.gap[0]

    @property
    def height(self) -> float:
        """The height of the page."""
        return self.top + self.rows * self.step[1] - self.gap[1] + MARGIN

    def origin(self, z: int) -> tuple[float, float]:
        """The top left corner of a plane's first chip."""
        down, across = divmod(z, self.columns)
        return (
            MARGIN + self.inset[0] + across * self.step[0],
            self.top + self.inset[1] + down * self.step[1],
        )
