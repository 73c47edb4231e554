"""From an error to the lines of the cell that it came from."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors.code_problems import SourceLine, innermost
from .source import StepSource, is_cell_filename

__all__ = ["cell_lines", "line_in", "mark", "mark_step", "original"]

_NODE = re.compile(r"{{node ([^}]+?)(?:/replica_\d+)?}}")
_REPLICA = re.compile(r"{{node [^}]+?/replica_(\d+)}}")
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')


def cell_lines(error: BaseException, filename: str | None = None) -> list[int]:
    """The lines of a cell that an error came from, outermost call first.

    Args:
        error: An error raised while a cell was traced or run.
        filename: The cell's name in tracebacks; by default, any name that
            cells are given by themselves.

    Returns:
        Line numbers, the magic's line being 1; empty if none is known.
    """
    marked = getattr(error, "tpunb_lines", None)
    if marked is not None and filename is None:
        return list(marked)
    belongs: Callable[[str], Any] = filename.__eq__ if filename else is_cell_filename
    found = (line for name, line in _places(error) if belongs(name))
    return list(dict.fromkeys(found))


def mark(error: BaseException, cell: StepSource, graph: Any = None) -> None:
    """Marks an error with the line of the cell that it came from.

    Sets `tpunb_lines`, and `tpunb_replicas` where the message names them, and adds
    a note where Python has notes (3.11).

    Args:
        error: The error.
        cell: The cell.
        graph: The replica function's graph, if there is one: it knows where the
            nodes came from that a message only names.
    """
    if hasattr(error, "tpunb_lines"):
        return
    found = cell_lines(error, cell.filename) or _node_lines(error, graph, cell.filename)
    inside = range(2, len(cell.lines) + 1)  # without what is generated around the body
    numbers = list(dict.fromkeys(cell.first_line(line) for line in found if line in inside))
    error.tpunb_lines = numbers  # type: ignore[attr-defined]
    # Replica 0's nodes have the plain names, and so has all that is inside of functions.
    replicas = {int(number) for number in _REPLICA.findall(str(error))}
    error.tpunb_replicas = sorted(replicas)  # type: ignore[attr-defined]
    if numbers and hasattr(error, "add_note"):
        number = numbers[-1]
        error.add_note(f"line {number} of the cell: {cell.line(number)}")


def mark_step(error: BaseException, done: int, batch: str) -> None:
    """Adds to an error at which of many steps it came, and with which batch.

    Args:
        error: The error.
        done: The steps that were made before.
        batch: The dtypes and shapes of the step's batch; empty without one.
    """
    where = f"At step {done + 1}" if done else "In the first step"
    where += f", with a batch of {batch}." if batch else "."
    error.tpunb_step = done + 1  # type: ignore[attr-defined]
    error.tpunb_where = where  # type: ignore[attr-defined]
    if hasattr(error, "add_note"):
        error.add_note(where)


def _places(error: BaseException) -> Iterator[tuple[str, int]]:
    """The places in the code that an error refers to, best source first."""
    for found in _sources(error):
        if found:
            yield from found
    if error.__cause__ is not None:
        yield from _places(error.__cause__)


def _sources(error: BaseException) -> Iterator[list[tuple[str, int]]]:
    # AutoGraph's frames belong to generated files; it keeps where they came from,
    # innermost first.
    metadata = getattr(error, "ag_error_metadata", None)
    stack = getattr(metadata, "translated_stack", ())
    yield [(frame.filename, frame.lineno) for frame in reversed(stack)]
    frames = traceback.extract_tb(error.__traceback__)
    yield [(frame.filename, frame.lineno or 0) for frame in frames]
    # Errors of graphs carry the traceback of the op, and repeat it in their message.
    op = getattr(error, "op", None)
    yield [(frame.filename, frame.lineno) for frame in getattr(op, "traceback", None) or ()]
    yield [(name, int(line)) for name, line in _FRAME.findall(str(error))]


def _node_lines(error: BaseException, graph: Any, filename: str) -> list[int]:
    """The lines of the nodes that an error's message names."""
    lines: list[int] = []
    for name in dict.fromkeys(_NODE.findall(str(error))) if graph is not None else ():
        operation = _operation(graph, name)
        frames = operation.traceback if operation is not None else ()
        lines += [frame.lineno for frame in frames or () if frame.filename == filename]
    return lines


def _operation(graph: Any, name: str) -> Any:
    """A graph's operation; for one inside of a loop or a branch, that loop or branch."""
    while name:
        try:
            return graph.get_operation_by_name(name)
        except (KeyError, ValueError):
            name = name.rpartition("/")[0]
    return None


def line_in(cell: StepSource, places: Sequence[SourceLine]) -> tuple[str, int] | None:
    """The innermost line of the cell that led to a place; else the place itself."""
    inside = range(2, len(cell.lines) + 1)
    for place in places:
        if place.file == cell.filename and place.line in inside:
            return "", cell.first_line(place.line)
    return innermost(places)


def original(error: Exception, failure: BaseException | None) -> BaseException:
    """The cell's own exception, where AutoGraph could not keep its type."""
    if type(error).__name__ == "StagingError" and failure is not None:
        return failure
    return error
