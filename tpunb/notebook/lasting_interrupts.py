"""Interrupts that are lost come again.

Keras tries whether a layer can be built, and takes whatever is raised meanwhile for a no, an
interrupt too. One that falls into a destructor, or into what tells a weak dictionary that its key
is gone, is reported as ignored: where thousands of operations are traced, one in ten does. The
cell would go on.
"""

from __future__ import annotations

import _thread
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from tpunb.training.stop_button import interrupt_main
from tpunb.training.unwinding import PATIENCE, can_unwind

__all__ = ["LastingInterrupts"]

_DELAY = 0.05
"""Seconds until it comes again: who has swallowed it has gone on by then."""

_SHORTLY = 0.002
"""Seconds until it is looked again whether it can be raised."""

_SWALLOWING = frozenset({"keras", "tensorflow", "tf_keras"})


class _Interrupt(KeyboardInterrupt):
    """An interrupt that knows when nobody has it any more.

    Args:
        again: Called once if it was lost.
    """

    def __init__(self, again: Callable[[], object]) -> None:
        super().__init__()
        self._again: Callable[[], object] | None = again

    def is_lost(self) -> None:
        """Neither ends what it has interrupted nor was caught by the user's code."""
        again, self._again = self._again, None
        if again is not None:
            again()

    def __del__(self) -> None:
        # The outermost frame that it went through is the one that caught it.
        trace = self.__traceback__
        if trace is not None and (trace.tb_next is None or _is_of_library(trace.tb_frame)):
            self.is_lost()  # without any frame but the handler's it was lost in C


# Everybody is to see an ordinary one.
_Interrupt.__name__ = _Interrupt.__qualname__ = KeyboardInterrupt.__name__
_Interrupt.__module__ = KeyboardInterrupt.__module__


def _is_of_library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _SWALLOWING


def _unraisable(former: Callable[[Any], object], what: Any) -> None:
    """Stands for the hook that reports an exception which cannot be raised."""
    if isinstance(what.exc_value, _Interrupt):
        what.exc_value.is_lost()
    else:
        former(what)


class LastingInterrupts:
    """Raises an interrupt again while a cell runs on that was to be ended by it.

    What the user's own code catches is the user's. It takes the place of Python's own
    handler alone: where another one is set it does nothing.
    """

    def __init__(self) -> None:
        self._entries = 0
        self._entered = False
        self._waits_since: float | None = None
        self._hook: Callable[[Any], object] | None = None
        self._former_hook: Callable[[Any], object] = sys.__unraisablehook__

    def __enter__(self) -> LastingInterrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._former_hook = sys.unraisablehook
            # One for each cell: a hook set above it calls that one.
            self._hook = sys.unraisablehook = functools.partial(_unraisable, self._former_hook)
            self._entries += 1
            self._entered = True
            self._waits_since = None
        return self

    def __exit__(self, *_: object) -> None:
        self._entered = False
        if sys.unraisablehook is self._hook:
            sys.unraisablehook = self._former_hook
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        entry, now = self._entries, time.monotonic()
        if can_unwind(frame):
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now
        # No `threading.Thread`: see `StopButton`.
        if self._waits_since is not None and now < self._waits_since + PATIENCE:
            _thread.start_new_thread(self._again, (entry, _SHORTLY))
            return
        self._waits_since = None
        raise _Interrupt(lambda: _thread.start_new_thread(self._again, (entry, _DELAY)))

    def _again(self, entry: int, delay: float) -> None:
        time.sleep(delay)
        if self._entered and self._entries == entry:
            interrupt_main()
