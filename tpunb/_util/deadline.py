"""Time limits: one that several steps share, and a blocking call that ends in time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

# A signal that another thread gets interrupts no wait: it is seen between two.
_SECONDS_BETWEEN_LOOKS = 0.5
_LEAST = 0.05  # seconds: an answer that is there already is not missed

_Value = TypeVar("_Value")


class Deadline:
    """A time limit that several steps share.

    Args:
        seconds: How long they may take together, from now on.

    Attributes:
        seconds: The same.
        end: When they have to be done, by `time.monotonic`.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left; a twentieth at least, so that a last step can take what is there."""
        return max(_LEAST, self.end - time.monotonic())

    @property
    def has_passed(self) -> bool:
        """True if the time is over."""
        return time.monotonic() >= self.end

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time of its block."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.end += time.monotonic() - begin


class Running(Generic[_Value]):
    """A call in its own daemon thread: nothing waits for it, not even the exit of the process.

    `Running(call).result(deadline)` is a call that is abandoned if the deadline passes.

    Args:
        call: What to call.
    """

    def __init__(self, call: Callable[[], _Value]) -> None:
        self._values: list[_Value] = []
        self._errors: list[BaseException] = []
        self._done = threading.Event()  # an interrupted `Thread.join` marks the thread as ended

        def run() -> None:
            try:
                self._values.append(call())
            except BaseException as error:
                self._errors.append(error)
            finally:
                self._done.set()

        threading.Thread(target=run, name="tpunb", daemon=True).start()

    def wait(self, deadline: float, look: Callable[[], object] = lambda: None) -> bool:
        """Waits until the call ends or the deadline passes; returns whether it has ended.

        Args:
            deadline: By `time.monotonic`.
            look: Is called now and then.
        """
        while (left := deadline - time.monotonic()) > 0:
            if self._done.wait(min(_SECONDS_BETWEEN_LOOKS, left)):
                break
            look()
        return self._done.is_set()

    def result(self, deadline: float, look: Callable[[], object] = lambda: None) -> _Value:
        """Waits for the call and returns its result.

        Args:
            deadline: By `time.monotonic`.
            look: Is called now and then.

        Raises:
            TimeoutError: The deadline has passed.
            BaseException: What the call raises.
        """
        self.wait(max(deadline, time.monotonic() + _LEAST), look)
        if self._errors:
            raise self._errors[0]
        if not self._values:
            raise TimeoutError("it does not answer in time")
        return self._values[0]
