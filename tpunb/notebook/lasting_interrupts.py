"""Interrupts that libraries swallow come again.

Keras tries whether a layer can be built, and takes whatever is raised meanwhile for a no, an
interrupt too; one that falls into a destructor is lost as well. The cell would go on.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from tpunb.training.stop_button import interrupt_main

__all__ = ["LastingInterrupts"]

_DELAY = 0.05
"""Seconds until it comes again: who has swallowed it has gone on by then."""

_SWALLOWING = frozenset({"keras", "tensorflow", "tf_keras"})


class _Interrupt(KeyboardInterrupt):
    """An interrupt that knows when nobody has it any more.

    Args:
        swallowed: Called then, if a library caught it.
    """

    def __init__(self, swallowed: Callable[[], object]) -> None:
        super().__init__()
        self._swallowed = swallowed

    def __del__(self) -> None:
        # The outermost frame that it went through is the one that caught it.
        trace = self.__traceback__
        if trace is not None and _is_of_library(trace.tb_frame):
            self._swallowed()


# Everybody is to see an ordinary one.
_Interrupt.__name__ = _Interrupt.__qualname__ = KeyboardInterrupt.__name__
_Interrupt.__module__ = KeyboardInterrupt.__module__


def _is_of_library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _SWALLOWING


class LastingInterrupts:
    """Raises an interrupt again while a cell runs on that was to be ended by it.

    What the user's own code catches is the user's. It takes the place of Python's own
    handler alone: where another one is set it does nothing.
    """

    def __init__(self) -> None:
        self._entries = 0
        self._entered = False

    def __enter__(self) -> LastingInterrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._entries += 1
            self._entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self._entered = False
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> Any:
        entry = self._entries
        # No `threading.Thread`: see `StopButton`.
        raise _Interrupt(lambda: _thread.start_new_thread(self._again, (entry,)))

    def _again(self, entry: int) -> None:
        time.sleep(_DELAY)
        if self._entered and self._entries == entry:
            interrupt_main()
