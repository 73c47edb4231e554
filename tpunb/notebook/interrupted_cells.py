"""Interrupts of a notebook's cells: what they end, and the short traceback that they show."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tpunb._util.interrupts import Interruptible, is_of
from tpunb._util.plain_text import plain, shortened
from tpunb._util.units import grouped
from tpunb._util.user_code import is_users_code

_LIBRARIES = frozenset({"keras", "tensorflow", "tf_keras", "tpunb"})
_GENERATED = "__autograph_generated_file"
_ENDS = 4
"""The number of frames that are shown at either end of a long traceback."""
_WIDTH = 200


def shorten(error: BaseException, shell: Any) -> None:
    """Make IPython show an interrupt by the lines of the user's code that led to it.

    An interrupt outside libraries is shown as IPython shows it. So is an interrupt that renders
    itself.
    """
    if not isinstance(error, KeyboardInterrupt) or hasattr(error, "_render_traceback_"):
        return
    frames = list(traceback.walk_tb(error.__traceback__))
    if not any(is_of(frame, _LIBRARIES) for frame, _ in frames):
        return
    # IPython before 8.4 has no names for cells.
    name_of = getattr(shell.compile, "format_code_name", lambda _: None)
    own = []
    for frame, line in frames:
        code = frame.f_code
        is_users = is_users_code(code) and not is_of(frame, _LIBRARIES)
        if is_users and _GENERATED not in code.co_filename:
            label = name_of(code.co_filename)
            where = " ".join(label) if label else f'File "{code.co_filename}"'
            text = shortened(linecache.getline(code.co_filename, line).strip(), _WIDTH)
            own.append(f"  {where}, line {line}, in {code.co_name}\n    {text}")
    if len(own) > 2 * _ENDS:
        own[_ENDS:-_ENDS] = [f"  … {grouped(len(own) - 2 * _ENDS)} more …"]
    lines = ["Traceback (most recent call last; your code alone):", *own]
    lines += traceback.format_exception_only(type(error), error)
    shown = [plain(line.rstrip("\n")) for line in lines]
    error._render_traceback_ = lambda: shown  # type: ignore[attr-defined]


class InterruptibleCells:
    """The blocks of a shell's cells in which interrupts work.

    In each cell, an interrupt leaves no context half entered. While there is a connection, it also
    ends the function that TensorFlow runs, such as a training step of Keras's `fit`. Otherwise the
    interrupt would wait until TensorFlow returns.

    Args:
        shell: An IPython shell.
        calls: Returns the context that makes function calls stoppable; None without a connection.
    """

    def __init__(self, shell: Any, calls: Callable[[], AbstractContextManager[Any] | None]) -> None:
        self._events = shell.events
        self._calls = calls
        self._entered: AbstractContextManager[Any] | None = None
        self._interruptible = Interruptible()
        self._depth = 0

    def install(self) -> None:
        """Begin with the next cell."""
        self._events.register("pre_run_cell", self._cell_begins)
        self._events.register("post_run_cell", self._cell_ends)

    def remove(self) -> None:
        """End at once."""
        self._events.unregister("pre_run_cell", self._cell_begins)
        self._events.unregister("post_run_cell", self._cell_ends)
        self._leave()

    def _cell_begins(self, _: Any = None) -> None:
        self._depth += 1  # a cell may run another cell
        if self._depth > 1:
            return
        self._interruptible.__enter__()
        if (calls := self._calls()) is not None:
            calls.__enter__()
            self._entered = calls

    def _cell_ends(self, _: Any = None) -> None:
        # For the cell that loads the extension, only the end is reported.
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._leave()

    def _leave(self) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.__exit__(None, None, None)
        self._interruptible.leave()
