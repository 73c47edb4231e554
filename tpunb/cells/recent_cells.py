"""Parsed cells of one connection that are still in use."""

from __future__ import annotations

import collections
import weakref

from tpunb.cells.reading.source import CellSource, parse_cell

_MOST_RECENT = 32


class RecentCells:
    """A parser of cells that remembers the latest cells, and cells that are traced or running.

    A traced cell belongs to the object that its text was parsed to. The weak references find that
    object again for as long as the traced cell lives.
    """

    def __init__(self) -> None:
        self._alive: weakref.WeakValueDictionary[str, CellSource] = weakref.WeakValueDictionary()
        self._recent: collections.OrderedDict[str, CellSource] = collections.OrderedDict()

    def parsed(self, text: str) -> CellSource:
        """Return a parsed cell's body: the same object as before if it is still in use.

        Raises:
            SyntaxError: The text is not Python.
            CellError: The text is Python that cannot be a replica function's body.
        """
        cell = self._alive.get(text)
        if cell is None:
            cell = self._alive[text] = parse_cell(text)
        self._recent[text] = cell
        self._recent.move_to_end(text)
        if len(self._recent) > _MOST_RECENT:
            self._recent.popitem(last=False)
        return cell

    def clear(self) -> None:
        """Forget the cells."""
        self._alive.clear()
        self._recent.clear()
