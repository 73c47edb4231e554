"""Interrupts of a notebook's cells, and the short traceback of an interrupt or a refusal."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tpunb._util.interrupts import Interruptible, is_of
from tpunb._util.plain_text import plain, shortened
from tpunb._util.units import grouped
from tpunb._util.user_code import is_users_code
from tpunb.errors.code_problems import refusal_in_short

_LIBRARIES = frozenset({"keras", "tensorflow", "tf_keras", "tpunb"})
_GENERATED = "__autograph_generated_file"
_ENDS = 4
"""The number of frames that are shown at either end of a long traceback."""
_WIDTH = 200
_PLACE = re.compile(r'^ *File "([^"\n]+)", line (\d+)$', re.MULTILINE)


def shorten(error: BaseException, shell: Any) -> None:
    """Make IPython show an interrupt, or a TPU's refusal, by the lines of the user's code.

    An interrupt outside libraries is shown as IPython shows it. So is an error that renders itself.
    """
    message = str(error) if isinstance(error, Exception) else ""
    refused = refusal_in_short(message)
    if not isinstance(error, KeyboardInterrupt) and refused is None:
        return
    if hasattr(error, "_render_traceback_"):
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
            own.append((code.co_filename, line, f", in {code.co_name}"))
    # The refusal of a traced function names the lines that the function came from.
    own += [(file, int(line), "") for file, line in _PLACE.findall(message)]
    entries = [_entry(file, line, function, name_of(file)) for file, line, function in own]
    if len(entries) > 2 * _ENDS:
        entries[_ENDS:-_ENDS] = [f"  … {grouped(len(entries) - 2 * _ENDS)} more …"]
    lines = ["Traceback (most recent call last; your code alone):", *entries]
    if refused is None:
        lines += traceback.format_exception_only(type(error), error)
    else:
        lines.append(f"{type(error).__name__}: {refused}")
    shown = [plain(line.rstrip("\n")) for line in lines]
    error._render_traceback_ = lambda: shown  # type: ignore[attr-defined]


def _entry(file: str, line: int, function: str, label: tuple[str, ...] | None) -> str:
    """Return the lines of a short traceback for one line of code.

    Args:
        file: The file of the code.
        line: The line's number.
        function: The function's name as the end of a sentence; may be empty.
        label: IPython's words for the file, if the file is a cell.
    """
    where = " ".join(label) if label else f'File "{file}"'
    text = shortened(linecache.getline(file, line).strip(), _WIDTH)
    return f"  {where}, line {line}{function}\n    {text}"


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
