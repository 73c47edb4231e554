"""The parts that commands share: how they parse their arguments, and how they end."""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

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


class Failed(Exception):
    """The command ran and the result is negative; the message says why. Exit code 1."""


class Interrupted(Exception):
    """The user interrupted the command; the message says where.

    Attributes:
        code: The exit code, 128 plus the number of the signal, as in shells.
    """

    def __init__(self, message: str, code: int = 130) -> None:
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
