"""Standard output and error as commands need them, whatever they lead to."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from tpunb._util.plain_text import drawable, plain
from tpunb.errors import TpunbError


class OutputError(TpunbError):
    """The output cannot be written."""


class ReaderGone(OutputError):
    """The reader of the output has gone, as after `| head`."""


class Stream:
    """A text stream that spells control characters out and has no character it cannot write.

    Args:
        stream: The stream to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Writes a text that may be from anywhere."""
        self.write_control(plain(text))
        return len(text)

    def write_control(self, text: str) -> None:
        """Writes a text in which control characters are meant."""
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        with _said(self.stream):
            self.stream.write(drawable(text, encoding))

    def flush(self) -> None:
        """Sends on what was written."""
        with _said(self.stream):
            self.stream.flush()


@contextlib.contextmanager
def safe_streams() -> Iterator[None]:
    """A block whose standard output and error are `Stream`s."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and Stream(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def _said(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _drop(stream)
        if isinstance(error, BrokenPipeError):
            raise ReaderGone("Nobody reads the output any more.") from error
        raise OutputError(f"Cannot write the output: {error.strerror}.") from error


def _drop(stream: TextIO) -> None:
    """Lets the rest go nowhere: Python writes what is left when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
