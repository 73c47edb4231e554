"""Errors of a cell, shown by the cell's own lines.

TensorFlow's tracebacks lead through generated code, the strategy and the
runtime. What the author of a cell needs is the line and the message.
"""

from __future__ import annotations

import re
import textwrap
import traceback

from tpunb.errors import CellError

__all__ = ["essence", "first_line", "show_shortly", "syntax_error"]

_USER_CODE = "in user code:"
_GRAPH_ERROR = "Graph execution error:"
_CONTEXT = 2


def first_line(error: BaseException) -> str:
    """An error in a line: its type and what it says first."""
    said = essence(error).split("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def essence(error: BaseException) -> str:
    """What an error says, without the traces that TensorFlow puts into its message."""
    text = str(error).strip()
    if text.startswith(_USER_CODE):
        last = textwrap.dedent(text.rpartition("\n\n")[2]).strip()
        return last.removeprefix(f"{type(error).__name__}: ")
    if text.startswith(_GRAPH_ERROR):
        return _runtime_message(text)
    return text


def _runtime_message(text: str) -> str:
    """The first of the messages of an error at run time."""
    lines = [line for line in text.split("\n") if not line.startswith("Detected at node")]
    roots = [match for line in lines if (match := re.match(r"\s*\(0\) [A-Z_]+:\s*(.*)", line))]
    if roots:
        return roots[0].group(1).strip()
    kept = [
        line
        for line in lines[1:]
        if line.strip() and not line.lstrip().startswith(("File ", "<stack traces", "[[{{node"))
    ]
    return re.sub(r" \[Op:\w+\]$", "", "\n".join(kept).strip())


def show_shortly(error: BaseException, source: str) -> None:
    """Makes IPython show an error by the lines of its cell.

    Args:
        error: An error raised by a cell; `tpunb_lines` says where in it.
        source: The cell's body, whose first line is line 2 of the cell.
    """
    lines = getattr(error, "tpunb_lines", None)
    if not lines:
        return
    shown = [*_excerpt(lines[-1], source), "", *_said(error)]
    error._render_traceback_ = lambda: shown  # type: ignore[attr-defined]


def syntax_error(error: SyntaxError) -> CellError:
    """A cell's syntax error, with the place and without the way there."""
    place = "".join(traceback.format_exception_only(error)).rstrip().split("\n")[1:-1]
    message = "\n".join([f"Line {error.lineno}: {error.msg}", *place])
    return CellError(message, mend="Mend the line; the magic's own line is line 1.")


def _said(error: BaseException) -> list[str]:
    return f"{type(error).__name__}: {essence(error)}".split("\n")


def _excerpt(number: int, source: str) -> list[str]:
    """The lines around a line of the cell, which is marked."""
    lines = ["", *source.split("\n")]  # the magic's own line comes first
    first, last = max(2, number - _CONTEXT), min(len(lines), number + _CONTEXT)
    return [f"In the cell, line {number}:", ""] + [
        f"{'---->' if line == number else '     '} {line:>3} {lines[line - 1]}"
        for line in range(first, last + 1)
        if lines[line - 1].strip() or line == number
    ]
