"""Explanations of known errors: the catalogue's entry, with the cause and the fix."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator

from tpunb.errors.catalogue import ENTRIES, Clue, Explanation
from tpunb.errors.jax_advice import with_advice

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TRACEBACK = "Traceback (most recent call last)"
_REACH = 20_000  # characters before a message that are searched for its traceback
_TRIES = 32  # matches of a clue that are checked for a traceback
_MOST_ERRORS = 64
_MOST_FRAMES = 300


def explain(error_or_text: object) -> Explanation | None:
    """Explain an error that users of TPUs are known to meet.

    Example:
        >>> error = RuntimeError("TPU is already in use by process 123")
        >>> explanation = tpunb.explain(error)
        >>> explanation.code, explanation.title
        ('9', 'The TPU is in use')
        >>> tpunb.explain("an error of something else") is None
        True

    Args:
        error_or_text: An exception, whose causes, notes and group members count too. Or text: a
            message, a pasted traceback or a log. Or the number of a catalogue entry: `24`,
            `"24"` or `"P5"`.

    Returns:
        The cause and the fix, or None if the error is unknown. This function never
        raises, and its time grows only with the length of the text.
    """
    try:
        return _find(error_or_text)
    except Exception:  # an exception of another package may raise when its text is read
        return None


def _find(error_or_text: object) -> Explanation | None:
    if isinstance(error_or_text, BaseException):
        return _first_of(map(_report, _related(error_or_text)))
    if isinstance(error_or_text, bytes | bytearray):
        error_or_text = error_or_text.decode("utf-8", errors="replace")
    if isinstance(error_or_text, str):
        entry = ENTRIES.get(error_or_text.strip())
        return entry or _first_of([(_COLOURS.sub("", error_or_text), None)])
    return ENTRIES.get(str(error_or_text)) if type(error_or_text) is int else None


def _first_of(reports: Iterable[tuple[str, str | None]]) -> Explanation | None:
    """Return the entry of the lowest rank for messages and their tracebacks.

    The first of several equal ranks wins, because an error precedes its causes.
    """
    entries = (entry for message, trace in reports if (entry := _match(message, trace)))
    return min(entries, key=lambda entry: entry.rank, default=None)


def _match(message: str, trace: str | None) -> Explanation | None:
    """Return the entry for a message. Among entries of equal rank, the first clue wins."""
    places = [
        (entry.rank, place, entry.code)
        for entry, pattern, where in _clues()
        if (place := _place(pattern, where, message, trace)) is not None
    ]
    return with_advice(ENTRIES[min(places)[2]], message) if places else None


def _place(
    pattern: re.Pattern[str], where: re.Pattern[str] | None, message: str, trace: str | None
) -> int | None:
    """Return the position of a clue in a message, or None."""
    if where is None:
        match = pattern.search(message)
        return match.start() if match else None
    if trace is not None:
        match = pattern.search(message)
        return match.start() if match and (where.search(message) or where.search(trace)) else None
    # In a log, the traceback is before the message, and other lines are after it.
    for match in itertools.islice(pattern.finditer(message), _TRIES):
        earliest = max(0, match.start() - _REACH)
        begin = message.rfind(_TRACEBACK, earliest, match.start())
        if where.search(message[begin if begin >= 0 else earliest : match.end() + 1_000]):
            return match.start()
    return None


@functools.cache
def _clues() -> tuple[tuple[Explanation, re.Pattern[str], re.Pattern[str] | None], ...]:
    """Return all clues with compiled patterns. The first explanation compiles them."""
    return tuple(
        (entry, re.compile(clue.message), re.compile(clue.where) if clue.where else None)
        for entry in ENTRIES.values()
        for clue in (each if isinstance(each, Clue) else Clue(each) for each in entry.clues)
    )


def _related(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then the errors of its group, its causes and its contexts."""
    waiting: list[BaseException] = [error]
    visited: set[int] = set()
    while waiting and len(visited) < _MOST_ERRORS:
        current = waiting.pop(0)
        if id(current) in visited:
            continue
        visited.add(id(current))
        yield current
        parts = getattr(current, "exceptions", None)  # an exception group has them
        behind = list(parts[:_MOST_ERRORS]) if isinstance(parts, tuple | list) else []
        behind.append(current.__cause__)
        if not current.__suppress_context__:
            behind.append(current.__context__)
        waiting += [other for other in behind if isinstance(other, BaseException)]


def _report(error: BaseException) -> tuple[str, str]:
    """Return an error's message with its notes, and its traceback's files and functions.

    The traceback has Python's format without source lines, so no source is read.
    """
    try:
        text = str(error)
    except Exception:  # a broken `__str__` still leaves the type and the traceback
        text = ""
    notes = getattr(error, "__notes__", None)
    lines = [str(note) for note in notes] if isinstance(notes, list | tuple) else []
    message = "\n".join([f"{type(error).__name__}: {text}", *lines])
    frames: list[str] = []
    traceback = error.__traceback__
    while traceback is not None and len(frames) < _MOST_FRAMES:
        code = traceback.tb_frame.f_code
        frames.append(f'File "{code.co_filename}", line {traceback.tb_lineno}, in {code.co_name}')
        traceback = traceback.tb_next
    return _COLOURS.sub("", message), "\n".join(frames)
