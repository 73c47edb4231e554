"""Texts of cells in Python's `linecache`, kept while code shows or converts them.

Tracebacks and AutoGraph read the text of a function there, by the file name of its code. A function
that a cell defines may live longer than the cell and its connection.
"""

from __future__ import annotations

import contextlib
import linecache
import weakref
from collections.abc import Iterator
from types import CodeType

from tpunb._util.functions import nested_codes
from tpunb.cells.reading.source import StepSource

_texts: weakref.WeakValueDictionary[str, _Text] = weakref.WeakValueDictionary()


class _Text:
    """The text of one file name, which stays in `linecache` until nothing holds this object."""

    def __init__(self, filename: str, text: str) -> None:
        self.text = text
        weakref.finalize(self, linecache.cache.pop, filename, None).atexit = False

    def release(self) -> None:
        """Do nothing: a finalizer that would call this method holds the text until then."""


def keep_text(cell: StepSource, *codes: CodeType) -> None:
    """Keep a cell's text for as long as the cell, or code that was compiled from it, lives."""
    text = _texts.get(cell.filename)
    if text is None:
        text = _texts[cell.filename] = _Text(cell.filename, "\n".join(cell.lines))
    inner = [nested for code in codes for nested in nested_codes(code)]
    for holder in (cell, *inner):
        weakref.finalize(holder, text.release).atexit = False


@contextlib.contextmanager
def shown_as(text: str, cell: StepSource) -> Iterator[None]:
    """Let `inspect` and AutoGraph find a generated text instead of the cell's own."""
    _register(cell.filename, text)
    try:
        yield
    finally:
        own = _texts.get(cell.filename)
        _register(cell.filename, own.text if own is not None else "\n".join(cell.lines))


def _register(filename: str, text: str) -> None:
    # `linecache.checkcache` keeps entries that have no modification time.
    lines = [f"{line}\n" for line in text.split("\n")]
    linecache.cache[filename] = (len(text), None, lines, filename)
