"""The parts that commands share: arguments, safe streams for what they print, and how they end."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, TextIO

from tpunb._util.plain_text import drawable, plain
from tpunb.errors import TpunbError

_WORDS = {"SIGINT": "Interrupted", "SIGTERM": "Terminated", "SIGHUP": "Hung up"}


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], None] | None = None,
    **texts: str,
) -> argparse.ArgumentParser:
    """Adds a command.

    Args:
        commands: The commands of the parser above it.
        name: Its name.
        run: Is called with its arguments; None for a command that has its own commands.
        **texts: Its help, description and epilog, as `argparse` takes them.

    Returns:
        Its parser.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts
    )
    if run is not None:
        parser.set_defaults(command=run)
    return parser


def whole_number(what: str, least: int, most: int | None = None) -> Callable[[str], int]:
    """A type for argparse: a whole number within limits.

    Args:
        what: What it is, in the message of an error.
        least: The smallest.
        most: The largest; None for any.
    """
    limits = f"of {least} or more" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} {limits}")
        return number

    return read


class Failed(Exception):
    """The command ran and the result is negative; the message says why. Exit code 1."""


class Interrupted(Exception):
    """The user interrupted the command; the message says where.

    Attributes:
        code: The exit code, 128 plus the number of the signal, as in shells.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Stopped(KeyboardInterrupt):
    """A signal has come; the message says what it does.

    Attributes:
        code: The exit code, 128 and the signal's number, as shells have it.
    """

    def __init__(self, number: int) -> None:
        super().__init__(_WORDS[signal.Signals(number).name])
        self.code = 128 + number


class StopSignals:
    """Raises `Stopped` in a block, for each signal that would end the process.

    While something is saved they wait, and only Ctrl-C is raised more than once: what sends
    the others sends them again, which must not end the saving that the first has led to.
    Signals that the process ignores, as under nohup, stay ignored.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._holding = False
        self._pending: int | None = None
        self._raised = False

    def __enter__(self) -> StopSignals:
        for name in _WORDS:
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is None or signal.getsignal(number) in (signal.SIG_IGN, None):
                continue
            with contextlib.suppress(ValueError):  # in another thread than the main one
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A block in which no signal is raised; one that has come is raised at its end."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._pending is not None and not self._raised:
            self._take(self._pending, None)

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._holding:
            self._pending = number
            return
        if self._raised and number != signal.SIGINT:
            return
        self._raised = True
        raise Stopped(number)


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
        # The rest goes nowhere: Python writes what is left when the process ends.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        if isinstance(error, BrokenPipeError):
            raise ReaderGone("Nobody reads the output any more.") from error
        raise OutputError(f"Cannot write the output: {error.strerror}.") from error
