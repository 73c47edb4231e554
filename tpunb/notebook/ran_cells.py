"""The cells that a shell has run, in their order, and how each of them ended."""

from __future__ import annotations

import dataclasses
from typing import Any

from tpunb.cells.cell_errors import first_line

_NO_ANSWER = NotImplementedError.__name__


@dataclasses.dataclass(frozen=True)
class RanCell:
    """A cell that has run.

    Attributes:
        source: The cell's text, with its magic.
        failure: The error that ended the cell, in one line; empty if none did.
        error: The type of this error.
    """

    source: str
    failure: str = ""
    error: str = ""

    @property
    def is_stub(self) -> bool:
        """True if the cell ended at the line that stands for an answer."""
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
        failed = () if error is None else (first_line(error), type(error).__name__)
        self.cells.append(RanCell(source, *failed))
