"""Signals that end a command, raised where it can still save what it has."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

_WORDS = {"SIGINT": "Interrupted", "SIGTERM": "Terminated", "SIGHUP": "Hung up"}


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
