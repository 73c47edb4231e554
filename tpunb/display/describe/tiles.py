"""The tiles in which a core stores a matrix of 32-bit numbers. The last tiles are filled up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tpunb.errors import TpunbError

ROWS, COLUMNS = 8, 128
"""A tile of 32-bit numbers."""

MOST_DOWN, MOST_ACROSS = 12, 6
"""The most tiles that a picture has room for."""

_SMALLEST = 5


@dataclass(frozen=True, slots=True)
class Tiles:
    """A matrix of 32-bit numbers in tiles of 8 × 128.

    Attributes:
        rows: The rows of the matrix.
        columns: The columns of the matrix.
    """

    rows: int
    columns: int

    @property
    def down(self) -> int:
        """The tiles from top to bottom."""
        return -(-self.rows // ROWS)

    @property
    def across(self) -> int:
        """The tiles from left to right."""
        return -(-self.columns // COLUMNS)

    @property
    def factor(self) -> float:
        """The stored numbers by the numbers of the matrix."""
        return self.down * ROWS * self.across * COLUMNS / (self.rows * self.columns)


def tiles_of(rows: Any, columns: Any) -> Tiles:
    """Return the tiles of a matrix.

    Raises:
        TpunbError: A side is not a number, is so small that tiles are smaller too, or is too large
            for a picture.
    """
    for side in (rows, columns):
        if isinstance(side, bool) or not isinstance(side, int) or side < _SMALLEST:
            raise TpunbError(
                f"The sides of a matrix are numbers of {_SMALLEST} or more, not {side!r}. Smaller "
                "matrices have smaller tiles.",
                fix="Such as tpunb.draw.tiles(9, 129).",
            )
    tiles = Tiles(rows, columns)
    if tiles.down > MOST_DOWN or tiles.across > MOST_ACROSS:
        raise TpunbError(
            f"A picture has room for {MOST_DOWN} × {MOST_ACROSS} tiles, and this matrix takes "
            f"{tiles.down} × {tiles.across}.",
            fix=f"Choose at most {MOST_DOWN * ROWS} rows and {MOST_ACROSS * COLUMNS} columns.",
        )
    return tiles
