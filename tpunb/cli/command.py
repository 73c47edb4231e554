"""Parts that the commands share: arguments, safe output streams, and the ways to end."""

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
from tpunb.connection.options import JUDGE_TIMES
from tpunb.errors import TpunbError
from tpunb.machine.framework import FRAMEWORKS

_WORDS = {"SIGINT": "Interrupted", "SIGTERM": "Terminated", "SIGHUP": "Hung up"}


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], None] | None = None,
    **texts: str,
) -> argparse.ArgumentParser:
    """Add a command.

    Args:
        commands: The subparsers to add the command to.
        name: The command's name.
        run: The function to call with the parsed arguments; None for a command that has
            subcommands.
        **texts: The help, description and epilog, as `argparse` takes them.

    Returns:
        The command's parser.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts
    )
    if run is not None:
        parser.set_defaults(command=run, parser=parser)
    return parser


def for_a_terminal(text: object) -> str:
    """Return a text with commands for a shell in place of IPython's magic `%pip`."""
    return str(text).replace("%pip ", "pip ")


def add_keras(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses Keras 2."""
    text = "make tf.keras Keras 2 (tf_keras), for notebooks written for it"
    parser.add_argument("--keras", type=int, choices=(2,), metavar="2", help=text)


def add_framework(parser: argparse.ArgumentParser) -> None:
    """Add the options of virtual TPUs for JAX."""
    parser.add_argument(
        "--framework",
        choices=FRAMEWORKS,
        help="whose devices the virtual TPU has (default: the framework that the notebook imports)",
    )
    parser.add_argument(
        "--judge",
        choices=JUDGE_TIMES,
        default=JUDGE_TIMES[0],
        help="when the TPU's own compiler judges JAX's programs: a call waits for its verdict, the "
        "verdict comes later, or it is off (default: %(default)s)",
    )


def whole_number(kind: str, least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a type for argparse that accepts whole numbers within limits.

    Args:
        kind: The kind of number, for the error message.
        least: The smallest number.
        most: The largest number; None for no limit.
    """
    limits = f"of {least} or more" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind} {limits}")
        return number

    return read


class Failed(Exception):
    """The command ran and the result is negative, or an interrupt ended it. The message says why.

    Attributes:
        code: The exit code; after a signal 128 plus the signal's number, as in shells.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class SignalArrived(KeyboardInterrupt):
    """A signal that ends the process arrived. The message names it.

    Attributes:
        code: The exit code, 128 plus the signal's number, as in shells.
    """

    def __init__(self, number: int) -> None:
        super().__init__(_WORDS[signal.Signals(number).name])
        self.code = 128 + number


class StopSignals:
    """A block in which each signal that would end the process raises `SignalArrived`.

    Signals wait while something is saved. Only Ctrl-C is raised more than once: a program that
    sends another signal sends it again, and this must not end the saving that the first started.
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
            with contextlib.suppress(ValueError):  # raised outside the main thread
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
        """Delay signals within a block. A signal that arrives there is raised at its end."""
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
        raise SignalArrived(number)


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn the error of a file that cannot be written, within a block, into a `TpunbError`."""
    try:
        yield
    except OSError as error:
        raise TpunbError(
            f"Cannot write {os.fspath(path)}: {error.strerror}.",
            fix="Name a file in a folder that exists and that you may write to.",
        ) from error


class OutputError(TpunbError):
    """The output cannot be written."""


class ReaderGone(OutputError):
    """The reader of the output has gone, for example after `| head`."""


class Stream:
    """A text stream that escapes control characters and replaces those it cannot encode.

    Args:
        stream: The stream to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write text of any origin."""
        self.write_control(plain(text))
        return len(text)

    def write_control(self, text: str) -> None:
        """Write text whose control characters take effect."""
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        with _errors_named(self.stream):
            self.stream.write(drawable(text, encoding))

    def flush(self) -> None:
        """Flush the stream."""
        with _errors_named(self.stream):
            self.stream.flush()


@contextlib.contextmanager
def safe_streams() -> Iterator[None]:
    """Replace standard output and standard error with `Stream`s within a block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and Stream(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def _errors_named(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Python flushes the stream when the process ends: let the rest go to the null device.
        with contextlib.suppress(OSError, ValueError):
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, stream.fileno())
            os.close(null_device)
        if isinstance(error, BrokenPipeError):
            raise ReaderGone("The reader of the output has gone.") from error
        raise OutputError(f"Cannot write the output: {error.strerror}.") from error
