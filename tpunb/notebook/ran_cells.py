"""The cells that a shell has run, in their order, and how each of them ended."""

from __future__ import annotations

import dataclasses
from typing import Any

_NO_ANSWER = NotImplementedError.__name__


@dataclasses.dataclass(frozen=True)
class RanCell:
    """A cell that has run.

    Attributes:
        source: The cell's text, with its magic.
        error: The type of the error that ended the cell; empty if none did.
    """

    source: str
    error: str = ""

    @property
    def is_stub(self) -> bool:
        """True if the cell ended at the line that a student replaces by an answer."""
        return self.error == _NO_ANSWER


class RanCells:
    """A record of the cells that a shell runs. It keeps texts, and no values.

    Args:
        shell: An IPython shell.

    Attributes:
        cells: The cells, the latest at the end.
    """

    def __init__(self, shell: Any) -> None:
        self._events = shell.events
        self.cells: list[RanCell] = []

    def install(self) -> None:
        """Begin with the cell that runs now."""
        self._events.register("post_run_cell", self._add)

    def remove(self) -> None:
        """End the record."""
        self._events.unregister("post_run_cell", self._add)

    def _add(self, result: Any) -> None:
        error = result.error_before_exec or result.error_in_exec
        source = str(result.info.raw_cell or "")
        self.cells.append(RanCell(source, "" if error is None else type(error).__name__))
