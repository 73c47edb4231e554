"""The stop button in long runs: ends them at a point where nothing is lost."""

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
"""Seconds that an interrupt waits for a frame from which it can be raised."""

_HALFWAY = frozenset({"__aenter__", "__aexit__", "__del__", "__enter__", "__exit__"})
_UNHEARD = frozenset({"IPython.core.events", "_weakrefset", "weakref"})


def can_unwind(frame: FrameType | None) -> bool:
    """Returns whether what a frame raises reaches its caller, with everything set put back.

    What is raised in a destructor, where a weak dictionary is told that a key is gone, or in what
    IPython calls before a cell is printed, and all goes on. What is raised while a context is
    entered or left leaves it half entered: TensorFlow's stacks of graphs and scopes then hold for
    the rest of the thread what should have gone.

    Args:
        frame: The frame that is interrupted, with its callers; None where nothing runs.
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
    """The stop button has ended a run; everything done so far is kept.

    Like every interrupt it passes `except Exception` and ends "run all".

    Args:
        message: What was done and how to continue, in a sentence or two.
    """

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


@contextlib.contextmanager
def explaining_interrupts(text: str | Callable[[], str]) -> Iterator[None]:
    """Turns an interrupt into a sentence about what was done.

    Args:
        text: The sentence after "Stopped", or what gives it at the time of the interrupt.

    Raises:
        Stopped: In place of any other interrupt.
    """
    __tracebackhide__ = True
    try:
        yield
    except Stopped:
        raise
    except KeyboardInterrupt:
        raise Stopped(text if isinstance(text, str) else text()) from None


class Overdue(KeyboardInterrupt):
    """A run was asked to end at a good place, and has not come to one in time."""


class StopButton:
    """Records the first interrupt, so that a run can end between two steps.

        with StopButton() as button:
            while not button.pressed:
                step()

    While it is entered, the first SIGINT sets `pressed` and does nothing else; a
    second one is an ordinary `KeyboardInterrupt`. Leaving restores the previous
    handler. On other threads than the main one, and where interrupts are ignored
    or not Python's, it does nothing.

    With `grace`, a run that goes on for so long after the first interrupt is ended by
    `Overdue`, raised wherever the main thread is within `work`.

    Args:
        running: Whether the run still goes on, given the frame that was interrupted.
            Where leaving cannot be relied on, this keeps an interrupt from being
            lost on a run that is over.
        grace: Seconds from the first interrupt to `Overdue`; None for no such end.
        may_cut: Whether `Overdue` may be raised in a frame; by default in all.
        overdue: Makes what is raised in its place.

    Attributes:
        pressed: Whether the run was asked to end.
        is_overdue: Whether `Overdue` was raised.
        at_work: Whether `Overdue` may be raised now, which is so within `work`: what a run
            does for its own accounts must not be cut short.
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
        # None: a handler in C, which could not be restored.
        if former is None or former is signal.SIG_IGN or former == self._handle:
            return self
        try:
            signal.signal(signal.SIGINT, self._handle)
        except ValueError:  # another interpreter's main thread
            return self
        self.pressed = self.is_overdue = self.at_work = self._is_due = False
        self._entries += 1
        self._entered, self._former = True, former
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Restores the former handler; the second time it does nothing."""
        with self._lock:
            self._entered = False
        if threading.current_thread() is threading.main_thread():
            # Lets the reminder's signal arrive here, not at the handler that comes next.
            deadline = time.monotonic() + 1.0
            while self._is_due and time.monotonic() < deadline:
                time.sleep(0.001)
        # A handler set after ours stays; it may call ours, which then calls the former one.
        if signal.getsignal(signal.SIGINT) != self._handle:
            return
        try:
            signal.signal(signal.SIGINT, _still_wanted(self._former))
        except ValueError:  # on another thread: ours stays, and calls the former one
            return

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Something that may take long, and may be cut short."""
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
            return  # a reminder that came twice, and no second press
        if over:
            self.leave()
            # What would have happened without this handler.
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
                # No `threading.Thread`: the interrupt may have come within that module, which
                # holds a lock then.
                self._due = time.monotonic() + self._grace
                _thread.start_new_thread(self._remind, (self._due, self._entries))

    def _remind(self, due: float, entry: int) -> None:
        """Interrupts the run once more when its time is over, until it has ended."""
        time.sleep(max(0.0, due - time.monotonic()))
        while self._is_within(entry):
            with self._lock:
                # Again if it was not heard: a signal that comes just before the main thread
                # begins to wait for a lock does not end that wait.
                if self._is_within(entry) and self.at_work:
                    self._is_due = True
                    self._reminded = time.monotonic()
                    interrupt_main()
            # What was raised may be lost, in a callback from C; but the run may be ending by now.
            time.sleep(_SECONDS_TO_END if self.is_overdue else _SECONDS_BETWEEN_LOOKS)

    def _is_within(self, entry: int) -> bool:
        return self._entered and self._entries == entry


def _still_wanted(handler: Any) -> Any:
    """A handler, or what stood before it where it is of a button that was left meanwhile."""
    button = getattr(handler, "__self__", None)
    while isinstance(button, StopButton) and not button._entered:
        handler = button._former
        button = getattr(handler, "__self__", None)
    return handler


def interrupt_main() -> None:
    """Interrupts the main thread, also in a system call where that is possible."""
    if sys.platform == "win32":
        _thread.interrupt_main(signal.SIGINT)
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
