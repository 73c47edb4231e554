"""Errors of a cell, shown by the cell's own lines.

TensorFlow's tracebacks lead through generated code, the strategy and the
runtime. What the author of a cell needs is the line and the message.
"""

from __future__ import annotations

import re
import textwrap
import traceback
from collections.abc import Sequence

from tpunb._util.plain_text import plain
from tpunb.errors import CellError
from tpunb.errors.code_problems import refusal_in_short

__all__ = ["essence", "first_line", "show_shortly", "syntax_error"]

_USER_CODE = "in user code:"
_GRAPH_ERROR = "Graph execution error:"
_HEAD = re.compile(
    rf'{_GRAPH_ERROR}|Detected at node |  File ".*", line \d+, in |<stack traces unavailable>'
)
_ROOT = re.compile(r"^  \(\d+\) (?=[A-Z_]+:)", re.MULTILINE)
_TAIL = re.compile(r"^\t \[\[|^Traceback \(most recent call last\):| \[Op:\w+\]\Z", re.MULTILINE)
_CONTEXT = 2


def first_line(error: BaseException) -> str:
    """An error in a line: its type and its message's first line."""
    return _message(error)[0]


def essence(error: BaseException) -> str:
    """An error's message, without the traces that TensorFlow puts into it."""
    text = str(error).strip()
    if text.startswith(_USER_CODE):
        message = textwrap.dedent(text.rpartition("\n\n")[2]).strip()
        return message.removeprefix(f"{type(error).__name__}:").strip()
    if text.startswith(_GRAPH_ERROR):
        return _runtime_message(text)
    return text


def _runtime_message(text: str) -> str:
    """The message of an error at run time; of several, the first that is a cause."""
    lines = text.split("\n")
    begin = next((i for i, line in enumerate(lines) if line and not _HEAD.match(line)), 0)
    message = "\n".join(lines[begin:])
    # Where one replica fails, others are cancelled.
    roots = [part for part in _ROOT.split(message)[1:] if not part.startswith("CANCELLED:")]
    if roots:
        message = roots[0].partition(":")[2]
    return _TAIL.split(message, maxsplit=1)[0].strip()


def show_shortly(error: BaseException, source: str) -> None:
    """Makes IPython show an error by the lines of its cell.

    Args:
        error: An error raised by a cell; `tpunb_lines` is where in it, `tpunb_replicas`
            on which replicas, if known, and `tpunb_where` in which of many steps.
        source: The cell's body, whose first line is line 2 of the cell.
    """
    lines = getattr(error, "tpunb_lines", None)
    if not lines:
        return
    where = [_on(getattr(error, "tpunb_replicas", ())), getattr(error, "tpunb_where", "")]
    text = [*_excerpt(lines[-1], source), "", *_message(error), *filter(None, where)]
    shown = [plain(line) for line in text]
    error._render_traceback_ = lambda: shown  # type: ignore[attr-defined]


def _on(replicas: Sequence[int]) -> str:
    """The replicas that failed, at most four of them by name."""
    if not replicas:
        return ""
    named = ", ".join(map(str, replicas[:4]))
    more = f" and {len(replicas) - 4} more" if len(replicas) > 4 else ""
    return f"On replica{'s' if len(replicas) > 1 else ''} {named}{more}."


def syntax_error(error: SyntaxError) -> CellError:
    """A cell's syntax error, with the place and without the way there."""
    place = "".join(traceback.format_exception_only(error)).rstrip().split("\n")[1:-1]
    message = "\n".join([f"Line {error.lineno}: {error.msg}", *place])
    return CellError(message, fix="Fix the line; the magic's own line is line 1.")


def _message(error: BaseException) -> list[str]:
    name, message = type(error).__name__, essence(error)
    message = refusal_in_short(message) or message
    return f"{name}: {message}".split("\n") if message else [name]


def _excerpt(number: int, source: str) -> list[str]:
    """The lines around a line of the cell, which is marked."""
    lines = ["", *source.split("\n")]  # the magic's own line comes first
    first, last = max(2, number - _CONTEXT), min(len(lines), number + _CONTEXT)
    return [f"In the cell, line {number}:", ""] + [
        f"{'---->' if line == number else '     '} {line:>3} {lines[line - 1]}"
        for line in range(first, last + 1)
        if lines[line - 1].strip() or line == number
    ]
