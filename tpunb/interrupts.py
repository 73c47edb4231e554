"""The stop button in long runs: ends them where nothing is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["StopButton", "Stopped"]


class Stopped(KeyboardInterrupt):
    """A run has ended because of the stop button, with all that it had done kept.

    Like every interrupt it passes `except Exception` and ends "run all".

    Args:
        message: What was done and how to go on, in a sentence or two.
    """

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class StopButton:
    """Takes note of the first interrupt, so that a run can end at a good place.

        with StopButton() as button:
            while not button.pressed:
                step()

    While it is entered, the first SIGINT sets `pressed` and does nothing else; a
    second one is an ordinary `KeyboardInterrupt`. Leaving puts back the handler that
    was there. On other threads than the main one, and where interrupts are ignored
    or not Python's, it does nothing.

    Args:
        running: Says, from the frame that was interrupted, whether the run goes on
            still. Where leaving cannot be relied on, this keeps an interrupt from
            being lost on a run that is over.

    Attributes:
        pressed: Whether the run was asked to end.
    """

    def __init__(self, running: Callable[[FrameType | None], bool] | None = None) -> None:
        self.pressed = False
        self._running = running
        self._entered = False
        self._former: Any = None

    def __enter__(self) -> StopButton:
        if self._entered or threading.current_thread() is not threading.main_thread():
            return self
        former = signal.getsignal(signal.SIGINT)
        # None: somebody's handler in C, which could not be put back.
        if former is None or former is signal.SIG_IGN or former == self._handle:
            return self
        try:
            signal.signal(signal.SIGINT, self._handle)
        except ValueError:  # another interpreter's main thread
            return self
        self.pressed, self._entered, self._former = False, True, former
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Puts back the handler that was there; the second time it does nothing."""
        self._entered = False
        # What somebody has put over ours is theirs to take away: then ours hands on.
        if signal.getsignal(signal.SIGINT) != self._handle:
            return
        try:
            signal.signal(signal.SIGINT, self._former)
        except ValueError:  # on another thread: then ours hands on, too
            return

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._entered or (self._running is not None and not self._running(frame)):
            self.leave()
            self._hand_on(self._former, number, frame)
        elif self.pressed:
            self.leave()
            raise KeyboardInterrupt
        else:
            self.pressed = True

    def _hand_on(self, former: Any, number: int, frame: FrameType | None) -> None:
        """What would have happened without us."""
        if callable(former):
            former(number, frame)
        elif former == signal.SIG_DFL:
            raise KeyboardInterrupt
