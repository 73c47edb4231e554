"""Explains known errors: finds the entry of the catalogue, with the cause and the fix."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator

from tpunb.errors.catalogue import ENTRIES, Clue, Explanation

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TRACEBACK = "Traceback (most recent call last)"
_REACH = 20_000  # characters before a message in which its traceback is looked for
_TRIES = 32  # matches of a clue whose traceback is looked at
_MOST_ERRORS = 64
_MOST_FRAMES = 300


def explain(error_or_text: object) -> Explanation | None:
    """Explains an error that users of TPUs are known to meet.

    Args:
        error_or_text: An exception, with what caused it, its notes and the
            exceptions of a group; or text: a message, a pasted traceback, a log;
            or the number of an entry in the catalogue, `24`, `"24"` or `"P5"`.

    Returns:
        The cause and the fix, or None if the error is not a known one. It
        raises nothing, whatever it is given; the time grows with the length of
        the text.
    """
    try:
        return _find(error_or_text)
    except Exception:  # an exception of someone else's may raise when it is looked at
        return None


def _find(error_or_text: object) -> Explanation | None:
    reports: Iterator[tuple[str, str | None]]
    if isinstance(error_or_text, BaseException):
        reports = map(_report, _related(error_or_text))
    elif isinstance(error_or_text, str) and error_or_text.strip() in ENTRIES:
        return ENTRIES[error_or_text.strip()]
    elif isinstance(error_or_text, str):
        reports = iter([(_COLOURS.sub("", error_or_text), None)])
    elif isinstance(error_or_text, bytes | bytearray):
        return _find(error_or_text.decode("utf-8", errors="replace"))
    else:
        return ENTRIES.get(str(error_or_text)) if type(error_or_text) is int else None
    found = (entry for message, trace in reports if (entry := _match(message, trace)))
    # min keeps the first of equal ones: the error itself before what caused it.
    return min(found, key=lambda entry: entry.rank, default=None)


def _match(message: str, trace: str | None) -> Explanation | None:
    """The entry for a message; of several equal ones, that which stands first."""
    places = [
        (entry.rank, place, entry.code)
        for entry, pattern, where in _clues()
        if (place := _place(pattern, where, message, trace)) is not None
    ]
    return ENTRIES[min(places)[2]] if places else None


def _place(
    pattern: re.Pattern[str], where: re.Pattern[str] | None, message: str, trace: str | None
) -> int | None:
    """Return the position of a clue in a message, or None."""
    if where is None:
        found = pattern.search(message)
        return found.start() if found else None
    if trace is not None:
        found = pattern.search(message)
        return found.start() if found and (where.search(message) or where.search(trace)) else None
    # In a log, the traceback is before the message, and other lines are after it.
    for found in itertools.islice(pattern.finditer(message), _TRIES):
        earliest = max(0, found.start() - _REACH)
        begin = message.rfind(_TRACEBACK, earliest, found.start())
        if where.search(message[begin if begin >= 0 else earliest : found.end() + 1_000]):
            return found.start()
    return None


@functools.cache
def _clues() -> tuple[tuple[Explanation, re.Pattern[str], re.Pattern[str] | None], ...]:
    """All clues, compiled when the first error is explained."""
    return tuple(
        (entry, re.compile(clue.message), re.compile(clue.where) if clue.where else None)
        for entry in ENTRIES.values()
        for clue in (each if isinstance(each, Clue) else Clue(each) for each in entry.clues)
    )


def _related(error: BaseException) -> Iterator[BaseException]:
    """An error, then what is behind it: the group's errors, causes and contexts."""
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_ERRORS:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        parts = getattr(current, "exceptions", None)  # of a group
        behind = list(parts[:_MOST_ERRORS]) if isinstance(parts, tuple | list) else []
        behind.append(current.__cause__)
        if not current.__suppress_context__:
            behind.append(current.__context__)
        waiting += [other for other in behind if isinstance(other, BaseException)]


def _report(error: BaseException) -> tuple[str, str]:
    """An error's message with its notes, and the files and functions that it came through.

    They are written as Python writes them; no source is read.
    """
    try:
        said = str(error)
    except Exception:  # the error's own fault: its type and its traceback are left
        said = ""
    notes = getattr(error, "__notes__", None)
    lines = [str(note) for note in notes] if isinstance(notes, list | tuple) else []
    message = "\n".join([f"{type(error).__name__}: {said}", *lines])
    frames: list[str] = []
    traceback = error.__traceback__
    while traceback is not None and len(frames) < _MOST_FRAMES:
        code = traceback.tb_frame.f_code
        frames.append(f'File "{code.co_filename}", line {traceback.tb_lineno}, in {code.co_name}')
        traceback = traceback.tb_next
    return _COLOURS.sub("", message), "\n".join(frames)
