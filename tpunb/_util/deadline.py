"""Time limits: a limit shared by several steps, and a blocking call that ends in time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

# A signal that reaches another thread does not interrupt a wait, so waits are short.
_SECONDS_BETWEEN_LOOKS = 0.5
_LEAST = 0.05  # seconds, so that an answer that has already arrived is not missed

_Value = TypeVar("_Value")


class Deadline:
    """A time limit that several steps share.

    Args:
        seconds: The time for all steps together, from now on.

    Attributes:
        seconds: The same number of seconds.
        end: The end of that time, by `time.monotonic`.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """The seconds left, but at least a twentieth, so that a last step can read its answer."""
        return max(_LEAST, self.end - time.monotonic())

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of a block from the limit."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.end += time.monotonic() - begin


class Running(Generic[_Value]):
    """A call in its own daemon thread. Nothing waits for it, not even the exit of the process.

    `Running(call).result(deadline)` is a call that is abandoned if the deadline passes.

    Args:
        call: The function to call.
    """

    def __init__(self, call: Callable[[], _Value]) -> None:
        self._values: list[_Value] = []
        self._errors: list[BaseException] = []
        self._done = threading.Event()  # `Thread.join` cannot be used again once interrupted

        def run() -> None:
            try:
                self._values.append(call())
            except BaseException as error:
                self._errors.append(error)
            finally:
                self._done.set()

        threading.Thread(target=run, name="tpunb", daemon=True).start()

    def wait(self, deadline: float, look: Callable[[], object] = lambda: None) -> bool:
        """Wait until the call ends or the deadline passes, and return whether it has ended.

        Args:
            deadline: The deadline, by `time.monotonic`.
            look: Called now and then.
        """
        while (left := deadline - time.monotonic()) > 0:
            if self._done.wait(min(_SECONDS_BETWEEN_LOOKS, left)):
                break
            look()
        return self._done.is_set()

    def result(self, deadline: float, look: Callable[[], object] = lambda: None) -> _Value:
        """Wait for the call and return its result.

        Args:
            deadline: The deadline, by `time.monotonic`.
            look: Called now and then.

        Raises:
            TimeoutError: The deadline has passed.
            BaseException: The call's own exception.
        """
        self.wait(max(deadline, time.monotonic() + _LEAST), look)
        if self._errors:
            raise self._errors[0]
        if not self._values:
            raise TimeoutError("it does not answer in time")
        return self._values[0]
