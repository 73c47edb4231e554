"""Interrupts end the TensorFlow functions that ordinary cells call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tpunb.notebook.lasting_interrupts import LastingInterrupts

__all__ = ["StoppableCells"]


class StoppableCells:
    """Makes the functions that a shell's cells call stoppable, while there is a connection.

    An interrupt that is lost comes again with and without one. `%%tpu_run` sees to its own. A
    training step in an ordinary cell, or Keras's `fit`, would keep an interrupt waiting until
    TensorFlow returns.

    Args:
        shell: An IPython shell.
        calls: Returns what makes the calls of functions stoppable; None without a connection.
    """

    def __init__(self, shell: Any, calls: Callable[[], AbstractContextManager[Any] | None]) -> None:
        self._events = shell.events
        self._calls = calls
        self._entered: AbstractContextManager[Any] | None = None
        self._lasting = LastingInterrupts()
        self._depth = 0

    def install(self) -> None:
        """Begins with the next cell."""
        self._events.register("pre_run_cell", self._cell_begins)
        self._events.register("post_run_cell", self._cell_ends)

    def remove(self) -> None:
        """Ends at once."""
        self._events.unregister("pre_run_cell", self._cell_begins)
        self._events.unregister("post_run_cell", self._cell_ends)
        self._leave()

    def _cell_begins(self, _: Any = None) -> None:
        self._depth += 1  # a cell may run another one
        if self._depth > 1:
            return
        self._lasting.__enter__()
        if (calls := self._calls()) is not None:
            calls.__enter__()
            self._entered = calls

    def _cell_ends(self, _: Any = None) -> None:
        # The cell that loads the extension only ends.
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._leave()

    def _leave(self) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.__exit__(None, None, None)
        self._lasting.__exit__()
