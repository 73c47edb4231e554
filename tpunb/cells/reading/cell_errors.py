"""Errors of a cell, traced back to the cell's lines that caused them."""

from __future__ import annotations

import re
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from tpunb._util.plain_text import plain
from tpunb.cells.reading.source import StepSource
from tpunb.errors import CellError
from tpunb.errors.code_problems import SourceLine, innermost, refusal_in_short

_NODE = re.compile(
    r"(?:{{node |\b(?:AllToAll|CollectivePermute|CrossReplicaSum) `)([^}`]+?)(?:/replica_\d+)?[}`]"
)
_REPLICA = re.compile(r"{{node [^}]+?/replica_(\d+)}}")
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')


def mark(error: BaseException, cell: StepSource, graph: Any = None) -> None:
    """Mark an error with the lines of the cell that it came from, outermost call first.

    Set `tpunb_lines`, and `tpunb_replicas` if the message names replicas, and add a note if Python
    supports notes (3.11). Set `code` to the rule of strictness if a real TPU refuses the cell. A
    message may name only nodes. The replica function's graph tells where these nodes came from.
    """
    if hasattr(error, "tpunb_lines"):
        return
    lines = [line for name, line in _places(error) if name == cell.filename]
    lines = lines or _node_lines(error, graph, cell.filename)
    inside = range(2, len(cell.lines) + 1)  # without the generated lines around the body
    numbers = list(dict.fromkeys(cell.first_line(line) for line in lines if line in inside))
    error.tpunb_lines = numbers  # type: ignore[attr-defined]
    # Replica 0's nodes have plain names, and so have all nodes inside functions.
    replicas = {int(number) for number in _REPLICA.findall(str(error))}
    error.tpunb_replicas = sorted(replicas)  # type: ignore[attr-defined]
    if not hasattr(error, "code"):
        from tpunb.errors.explain import explain  # loads the catalogue, which is large

        known = explain(error)
        if known is not None and known.rule:
            error.code = known.rule  # type: ignore[attr-defined]
    if numbers and hasattr(error, "add_note"):
        number = numbers[-1]
        error.add_note(f"line {number} of the cell: {cell.lines[number - 1].strip()}")


def mark_step(error: BaseException, done: int, batch: str) -> None:
    """Add the number of the failed step, and a description of its batch, to an error."""
    where = f"At step {done + 1}" if done else "In the first step"
    where += f", with a batch of {batch}." if batch else "."
    error.tpunb_step = done + 1  # type: ignore[attr-defined]
    error.tpunb_where = where  # type: ignore[attr-defined]
    if hasattr(error, "add_note"):
        error.add_note(where)


def _places(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield the places in the code that an error refers to, the most reliable source first."""
    # AutoGraph's frames belong to generated files. The metadata has the original places, innermost
    # first.
    metadata = getattr(error, "ag_error_metadata", None)
    stack = getattr(metadata, "translated_stack", ())
    yield from ((frame.filename, frame.lineno) for frame in reversed(stack))
    frames = traceback.extract_tb(error.__traceback__)
    yield from ((frame.filename, frame.lineno or 0) for frame in frames)
    # Errors of graphs carry the traceback of the op, and repeat it in their message.
    op = getattr(error, "op", None)
    yield from ((frame.filename, frame.lineno) for frame in getattr(op, "traceback", None) or ())
    yield from ((name, int(line)) for name, line in _FRAME.findall(str(error)))
    if error.__cause__ is not None:
        yield from _places(error.__cause__)


def _node_lines(error: BaseException, graph: Any, filename: str) -> list[int]:
    """Return the lines of the nodes that an error's message names."""
    lines: list[int] = []
    for name in dict.fromkeys(_NODE.findall(str(error))) if graph is not None else ():
        while name:
            try:
                frames = graph.get_operation_by_name(name).traceback or ()
            except (KeyError, ValueError):
                name = name.rpartition("/")[0]  # the loop or branch that contains it
                continue
            lines += [frame.lineno for frame in frames if frame.filename == filename]
            break
    return lines


def line_in(cell: StepSource, places: Sequence[SourceLine]) -> tuple[str, int] | None:
    """Return the innermost line of the cell that led to a place, or else the place itself."""
    inside = range(2, len(cell.lines) + 1)
    for place in places:
        if place.file == cell.filename and place.line in inside:
            return "", cell.first_line(place.line)
    return innermost(places)


def line_of_user(cell: StepSource, places: Sequence[SourceLine]) -> tuple[str, int] | None:
    """Return the innermost line that led to a place, in the cell or in a function it calls."""
    return line_in(cell, places[:1])


def original(error: Exception, failure: BaseException | None) -> BaseException:
    """Return the cell's own exception if AutoGraph could not keep its type."""
    if type(error).__name__ == "StagingError" and failure is not None:
        return failure
    return error


_USER_CODE = "in user code:"
_GRAPH_ERROR = "Graph execution error:"
_HEAD = re.compile(
    rf'{_GRAPH_ERROR}|Detected at node |  File ".*", line \d+, in |<stack traces unavailable>'
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NODE_IN_FULL = re.compile(r"'{{node [^}]*}} = (\w+)\[[^\n]*?\]\([^)\n]*\)'")
_KERAS_CALL = re.compile(
    r"Exception encountered when calling ([\w.]+\(\))\.\s+(.*?)\s+Arguments received by ", re.DOTALL
)
_ROOT = re.compile(r"^  \(\d+\) (?=[A-Z_]+:)", re.MULTILINE)
_TAIL = re.compile(r"^\t \[\[|^Traceback \(most recent call last\):| \[Op:\w+\]\Z", re.MULTILINE)
_CONTEXT = 2


def first_line(error: BaseException) -> str:
    """Return an error as one line: its type and its message's first line."""
    return _message(error)[0]


def essence(error: BaseException) -> str:
    """Return an error's message without the traces that TensorFlow puts into it."""
    text = _NODE_IN_FULL.sub(r"\1", _COLOUR.sub("", str(error).strip()))
    if text.startswith(_USER_CODE):
        text = textwrap.dedent(text.rpartition("\n\n")[2]).strip()
        text = text.removeprefix(f"{type(error).__name__}:").strip()
    if by_keras := _KERAS_CALL.match(text):
        return f"{by_keras[2]} (in {by_keras[1]})"
    if text.startswith(_GRAPH_ERROR):
        lines = text.split("\n")
        begin = next((i for i, line in enumerate(lines) if line and not _HEAD.match(line)), 0)
        message = "\n".join(lines[begin:])
        # When one replica fails, the others are cancelled. Take the first error that is a cause.
        roots = [part for part in _ROOT.split(message)[1:] if not part.startswith("CANCELLED:")]
        if roots:
            message = roots[0].partition(":")[2]
        return _TAIL.split(message, maxsplit=1)[0].strip()
    return text


def show_shortly(error: BaseException, source: str) -> None:
    """Make IPython show an error by the lines of its cell, whose body begins on line 2."""
    lines = getattr(error, "tpunb_lines", None)
    if not lines:
        return
    replicas = list(getattr(error, "tpunb_replicas", ()))
    where = [
        f"On {replicas_text(replicas)}." if replicas else "",
        getattr(error, "tpunb_where", ""),
    ]
    number, rows = lines[-1], ["", *source.split("\n")]  # the magic's own line comes first
    around = range(max(2, number - _CONTEXT), min(len(rows), number + _CONTEXT) + 1)
    excerpt = [
        f"{'---->' if line == number else '     '} {line:>3} {rows[line - 1]}"
        for line in around
        if rows[line - 1].strip() or line == number
    ]
    text = [f"In the cell, line {number}:", "", *excerpt, "", *_message(error)]
    text += filter(None, where)
    shown = [plain(line) for line in text]
    error._render_traceback_ = lambda: shown  # type: ignore[attr-defined]


def replicas_text(replicas: Sequence[int]) -> str:
    """Return replicas as text, with at most four of their numbers."""
    named = ", ".join(map(str, replicas[:4]))
    more = f" and {len(replicas) - 4} more" if len(replicas) > 4 else ""
    return f"replica{'s' if len(replicas) > 1 else ''} {named}{more}"


def syntax_error(error: SyntaxError) -> CellError:
    """Return a cell's syntax error with its place, but without the traceback."""
    place = "".join(traceback.format_exception_only(error)).rstrip().split("\n")[1:-1]
    message = "\n".join([f"Line {error.lineno}: {error.msg}", *place])
    fix = "Fix the line; the magic's own line is line 1."
    if "keyword argument" in str(error.msg):
        fix = f"To compare two values, write `==`. {fix}"
    return CellError(message, fix=fix)


def _message(error: BaseException) -> list[str]:
    name, message = type(error).__name__, essence(error)
    message = refusal_in_short(message) or message
    return f"{name}: {message}".split("\n") if message else [name]
