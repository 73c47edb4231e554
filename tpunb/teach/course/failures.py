"""Errors of the functions that a check calls, shown by the student's line."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from types import TracebackType

from tpunb._util.plain_text import plain
from tpunb._util.user_code import is_users_code

_ROOM = str(Path(__file__).parent)
_MOST_LINES = 16
"""The largest number of lines of an error's message that is shown."""


def in_library(frames: TracebackType | None) -> bool:
    """Return whether an error was raised in the code of a library, and not in a notebook's."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(frames)]
    return bool(codes) and not (is_users_code(codes[-1]) or codes[-1].co_filename.startswith(_ROOM))


def show_users_line(error: BaseException, frames: TracebackType | None) -> bool:
    """Make IPython show an error by the innermost line outside the check, without a traceback.

    Args:
        error: The error.
        frames: Its traceback, which begins in the check.

    Returns:
        Whether there is such a line.
    """
    places = [(frame.f_code, line) for frame, line in traceback.walk_tb(frames)]
    check = places[0][0].co_filename if places else ""
    lines = [
        linecache.getline(code.co_filename, line).strip()
        for code, line in places
        if is_users_code(code) and code.co_filename != check
    ]
    if not lines:
        return False
    said = str(error).strip() or "There is no message. Look at the names and shapes in this line."
    message = f"{type(error).__name__}: {said}".split("\n")
    shown = ["Not yet: your code stopped with an error at", f"    {lines[-1]}", *message]
    kept = [plain(line) for line in shown[:_MOST_LINES]]
    error._render_traceback_ = lambda: kept  # type: ignore[attr-defined]
    return True
