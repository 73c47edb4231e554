"""Interrupts inside TensorFlow and Keras, shown by the user's own lines.

IPython reads and colours the source of every frame, and of all their modules: for those that lead
through TensorFlow that takes seconds, for which the cell goes on after the stop button.
"""

from __future__ import annotations

import linecache
import traceback
from types import CodeType, FrameType
from typing import Any

from tpunb._util.plain_text import plain, shortened
from tpunb._util.units import grouped
from tpunb._util.user_code import is_users_code

__all__ = ["shorten"]

_LIBRARIES = frozenset({"keras", "tensorflow", "tf_keras", "tpunb"})
_GENERATED = "__autograph_generated_file"
_ENDS = 4
"""Frames that are shown of either end, where there are many."""
_WIDTH = 200


def shorten(error: BaseException, shell: Any) -> None:
    """Makes IPython show an interrupt by the lines of the user's code that led to it.

    One that was not inside a library of ours is shown as IPython shows it, and so is one that
    knows itself how it is shown.

    Args:
        error: What a cell has raised.
        shell: The shell.
    """
    if not isinstance(error, KeyboardInterrupt) or hasattr(error, "_render_traceback_"):
        return
    frames = list(traceback.walk_tb(error.__traceback__))
    if not any(_is_of_library(frame) for frame, _ in frames):
        return
    own = [(frame.f_code, line) for frame, line in frames if _is_users(frame)]
    shown = _text(error, own, shell)
    error._render_traceback_ = lambda: shown  # type: ignore[attr-defined]


def _is_of_library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES


def _is_users(frame: FrameType) -> bool:
    code = frame.f_code
    return _GENERATED not in code.co_filename and is_users_code(code) and not _is_of_library(frame)


def _text(error: BaseException, own: list[tuple[CodeType, int]], shell: Any) -> list[str]:
    lines = ["Traceback (most recent call last; your code alone):"]
    if len(own) > 2 * _ENDS:
        left_out = f"  … {grouped(len(own) - 2 * _ENDS)} more …"
        shown = [_frame(*one, shell) for one in (*own[:_ENDS], *own[-_ENDS:])]
        lines += [*shown[:_ENDS], left_out, *shown[_ENDS:]]
    else:
        lines += [_frame(*one, shell) for one in own]
    lines += traceback.format_exception_only(type(error), error)
    return [plain(line.rstrip("\n")) for line in lines]


def _frame(code: CodeType, line: int, shell: Any) -> str:
    # IPython before 8.4 has no names for cells.
    name_of = getattr(shell.compile, "format_code_name", lambda _: None)
    label = name_of(code.co_filename)
    where = " ".join(label) if label else f'File "{code.co_filename}"'
    text = shortened(linecache.getline(code.co_filename, line).strip(), _WIDTH)
    return f"  {where}, line {line}, in {code.co_name}\n    {text}"
