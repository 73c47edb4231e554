"""Calls that know no time limit of their own, with one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Running", "bounded"]

# Where another thread gets the signal, an interrupt is seen between two waits and not in one.
_SECONDS_BETWEEN_LOOKS = 0.5

_Value = TypeVar("_Value")


class Running(Generic[_Value]):
    """A call in a thread of its own, which nobody has to wait for, not even at exit.

    Args:
        call: What to call.
    """

    def __init__(self, call: Callable[[], _Value]) -> None:
        self._values: list[_Value] = []
        self._errors: list[BaseException] = []
        self._done = threading.Event()  # an interrupt of a thread's own join takes it for ended
        threading.Thread(target=self._run, args=(call,), name="tpunb", daemon=True).start()

    def _run(self, call: Callable[[], _Value]) -> None:
        try:
            self._values.append(call())
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._done.set()

    def wait(self, deadline: float) -> bool:
        """Waits for the end of the call; says whether it has ended.

        Args:
            deadline: By `time.monotonic`.
        """
        while (left := deadline - time.monotonic()) > 0:
            if self._done.wait(min(_SECONDS_BETWEEN_LOOKS, left)):
                break
        return self._done.is_set()

    def result(self, deadline: float) -> _Value:
        """What the call returns.

        Args:
            deadline: By `time.monotonic`.

        Raises:
            TimeoutError: It took too long.
            BaseException: What the call raises.
        """
        self.wait(max(deadline, time.monotonic() + 0.05))
        if self._errors:
            raise self._errors[0]
        if not self._values:
            raise TimeoutError("it does not answer in time")
        return self._values[0]


def bounded(call: Callable[[], _Value], deadline: float) -> _Value:
    """Calls something that may take too long, in a thread that is left behind if it does.

    Args:
        call: What to call.
        deadline: By `time.monotonic`.

    Raises:
        TimeoutError: It took too long.
        BaseException: What the call raises.
    """
    return Running(call).result(deadline)
