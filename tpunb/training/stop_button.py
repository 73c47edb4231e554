"""The stop button in long runs: it ends them at a point where nothing is lost."""

from __future__ import annotations

import _thread
import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

PATIENCE = 0.5
"""Seconds that an interrupt waits for a frame that it can be raised from."""

_HALFWAY = frozenset({"__aenter__", "__aexit__", "__del__", "__enter__", "__exit__"})
_UNHEARD = frozenset({"IPython.core.events", "_weakrefset", "weakref"})


def can_unwind(frame: FrameType | None) -> bool:
    """Return whether an exception raised in a frame reaches its caller and leaves a clean state.

    Some callers drop exceptions: destructors, the callbacks of weak dictionaries, and IPython's
    events before a cell. An exception while a context is entered or left leaves it half entered:
    TensorFlow's stacks of graphs and scopes then keep an old entry for the rest of the thread.

    Args:
        frame: The interrupted frame, with its callers; None if nothing runs.
    """
    while frame is not None:
        if frame.f_code.co_name in _HALFWAY or frame.f_globals.get("__name__") in _UNHEARD:
            return False
        frame = frame.f_back
    return True


_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_TO_END = 1.5
_SECONDS_OF_AN_ECHO = 0.2


class Stopped(KeyboardInterrupt):
    """The stop button ended a run. Everything done so far is kept.

    Like every interrupt, it passes `except Exception` and ends "run all".

    Args:
        message: The state of the run and how to continue, in a sentence or two.
    """

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


@contextlib.contextmanager
def explaining_interrupts(text: str | Callable[[], str]) -> Iterator[None]:
    """Turn an interrupt within a block into a sentence about the state of the run.

    Args:
        text: The sentence after "Stopped", or a function that returns it at the interrupt.

    Raises:
        Stopped: Raised instead of any other interrupt.
    """
    __tracebackhide__ = True
    try:
        yield
    except Stopped:
        raise
    except KeyboardInterrupt:
        raise Stopped(text if isinstance(text, str) else text()) from None


class Overdue(KeyboardInterrupt):
    """A run was asked to end at a good place, and did not reach one in time."""


class StopButton:
    """A record of the first interrupt, so that a run can end between two steps.

        with StopButton() as button:
            while not button.pressed:
                step()

    While it is entered, the first SIGINT only sets `pressed`. A second SIGINT is an
    ordinary `KeyboardInterrupt`. Leaving restores the previous handler. On threads other
    than the main thread, and if interrupts are ignored or not handled by Python, the
    button does nothing.

    With `grace`, `Overdue` ends a run that goes on for that long after the first interrupt.
    It is raised anywhere in the main thread within `work`.

    Args:
        running: Returns whether the run still goes on, given the interrupted frame. If the
            button may not be left properly, this keeps an interrupt from being lost on a run
            that is over.
        grace: Seconds from the first interrupt to `Overdue`; None for no limit.
        may_cut: Returns whether `Overdue` may be raised in a frame. By default, in all frames.
        overdue: Makes the exception to raise instead of `Overdue`.

    Attributes:
        pressed: Whether the run was asked to end.
        is_overdue: Whether `Overdue` was raised.
        at_work: Whether `Overdue` may be raised now, that is, within `work`. A run's own
            bookkeeping must not be cut short.
    """

    def __init__(
        self,
        running: Callable[[FrameType | None], bool] | None = None,
        *,
        grace: float | None = None,
        may_cut: Callable[[FrameType | None], bool] = lambda _: True,
        overdue: Callable[[], BaseException] = Overdue,
    ) -> None:
        self.pressed = self.is_overdue = False
        self.at_work = False
        self._running = running
        self._grace = grace
        self._may_cut = may_cut
        self._overdue = overdue
        self._is_due = False
        self._due = -math.inf
        self._reminded = -math.inf
        self._lock = threading.RLock()  # a second interrupt may come within `leave`
        self._entered = False
        self._entries = 0
        self._former: Any = None

    def __enter__(self) -> StopButton:
        if self._entered or threading.current_thread() is not threading.main_thread():
            return self
        former = signal.getsignal(signal.SIGINT)
        # None means a handler in C, which could not be restored.
        if former is None or former is signal.SIG_IGN or former == self._handle:
            return self
        try:
            signal.signal(signal.SIGINT, self._handle)
        except ValueError:  # the main thread of another interpreter
            return self
        self.pressed = self.is_overdue = self.at_work = self._is_due = False
        self._entries += 1
        self._entered, self._former = True, former
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Restore the former handler. A second call does nothing."""
        with self._lock:
            self._entered = False
        if threading.current_thread() is threading.main_thread():
            # Let the reminder's signal arrive here, not at the next handler.
            deadline = time.monotonic() + 1.0
            while self._is_due and time.monotonic() < deadline:
                time.sleep(0.001)
        # Keep a handler set after ours. It may call ours, which then calls the former one.
        if signal.getsignal(signal.SIGINT) != self._handle:
            return
        try:
            signal.signal(signal.SIGINT, _still_wanted(self._former))
        except ValueError:  # on another thread: keep ours, which calls the former one
            return

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Mark a block that may take long and may be cut short."""
        self.at_work = True
        try:
            yield
        finally:
            self.at_work = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        over = not self._entered or (self._running is not None and not self._running(frame))
        if self._is_due:
            self._is_due = False
            if over:
                self.leave()
                return
            patient = time.monotonic() <= self._due + PATIENCE
            if self.at_work and self._may_cut(frame) and (can_unwind(frame) or not patient):
                self.is_overdue = True
                raise self._overdue()
            return
        if self.pressed and time.monotonic() - self._reminded < _SECONDS_OF_AN_ECHO:
            return  # a reminder that arrived twice, not a second press
        if over:
            self.leave()
            # Do what would have happened without this handler.
            if callable(self._former):
                self._former(number, frame)
            elif self._former == signal.SIG_DFL:
                raise KeyboardInterrupt
        elif self.pressed:
            self.leave()
            raise KeyboardInterrupt
        else:
            self.pressed = True
            if self._grace is not None:
                # Do not use `threading.Thread`: the interrupt may have come within that module,
                # which then holds a lock.
                self._due = time.monotonic() + self._grace
                _thread.start_new_thread(self._remind, (self._due, self._entries))

    def _remind(self, due: float, entry: int) -> None:
        """Interrupt the run again when its time is over, until it has ended."""
        time.sleep(max(0.0, due - time.monotonic()))
        while self._is_within(entry):
            with self._lock:
                # Repeat it if it had no effect: a signal just before the main thread begins to
                # wait for a lock does not end that wait.
                if self._is_within(entry) and self.at_work:
                    self._is_due = True
                    self._reminded = time.monotonic()
                    interrupt_main()
            # A callback from C may have dropped the exception, or the run may be ending by now.
            time.sleep(_SECONDS_TO_END if self.is_overdue else _SECONDS_BETWEEN_LOOKS)

    def _is_within(self, entry: int) -> bool:
        return self._entered and self._entries == entry


def _still_wanted(handler: Any) -> Any:
    """Return a handler, or its predecessor if it belongs to a button that has been left."""
    button = getattr(handler, "__self__", None)
    while isinstance(button, StopButton) and not button._entered:
        handler = button._former
        button = getattr(handler, "__self__", None)
    return handler


def interrupt_main() -> None:
    """Interrupt the main thread, even within a system call if the system allows it."""
    if sys.platform == "win32":
        _thread.interrupt_main(signal.SIGINT)
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
