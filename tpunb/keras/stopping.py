"""The end of a training that Keras runs, even if Keras calls no callback at its end."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tpunb._util.interrupts import StopButton

_NEAR = 5
_GRACE = 0.8
"""Seconds from an interrupt to the cancellation of a batch that does not end by itself."""


class TrainingGuard:
    """The stop button of a training, and the end of the cell that it runs in.

    Keras calls no callback when training fails. So the button searches the frames below the
    interrupted frame for the list of callbacks, which `fit` holds. The end of a cell ends a
    training that still runs.

    In a notebook's cell, a batch that takes too long is cancelled, and a trace ends at once. A
    callback is never cut short: a file that it writes is written to the end.

    Args:
        owner: The list of callbacks. Without it the guard does nothing.
        abandon: Called at the end of a cell in which training has failed.
        overdue: Makes the exception to raise when a batch is cut short.

    Attributes:
        button: The stop button.
    """

    def __init__(
        self, owner: Any, abandon: Callable[[], None], overdue: Callable[[], BaseException]
    ) -> None:
        self.button = StopButton(
            self._is_running,
            grace=_GRACE,
            may_cut=self._may_cut,
            overdue=overdue,
        )
        self._owner: Callable[[], Any] = lambda: None
        if owner is not None:
            self._owner = weakref.ref(owner)
        self._abandon = abandon
        self._events: Any = None
        # A training in the background may outlast its cell.
        if owner is None or threading.current_thread() is not threading.main_thread():
            return
        self.button.__enter__()
        self.button.at_work = True
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None else None
        self._events = getattr(shell, "events", None)
        if self._events is not None:
            self._events.register("post_run_cell", self._on_cell_end)

    def leave(self) -> None:
        """Restore the previous state. A second call does nothing."""
        self.button.leave()
        events, self._events = self._events, None
        if events is not None:
            events.unregister("post_run_cell", self._on_cell_end)

    @property
    def callbacks(self) -> list[Any]:
        """The training's callbacks."""
        return list(getattr(self._owner(), "callbacks", None) or ())

    @property
    def keras_history(self) -> Any:
        """The object that `fit` would return; None if unknown."""
        return getattr(self._owner(), "_history", None)

    def _on_cell_end(self, _: Any = None) -> None:
        # The cell may run another cell.
        if not self._is_running(sys._getframe()):
            self._abandon()

    def _is_running(self, frame: FrameType | None) -> bool:
        owner = self._owner()
        return owner is not None and any(
            value is owner for caller in _callers(frame) for value in list(caller.f_locals.values())
        )

    def _may_cut(self, frame: FrameType | None) -> bool:
        owner = self._owner()
        if self._events is None:
            return False  # no end of a cell would end the training
        return not any(
            caller.f_code.co_name.startswith("on_") and caller.f_locals.get("self") is owner
            for caller in _callers(frame)
        )


def callback_list(callback: Any, frame: FrameType | None) -> Any:
    """Return Keras's list of callbacks that calls a callback, or None if something else calls it.

    Args:
        callback: The callback.
        frame: The frame that called it.
    """
    for _, caller in zip(range(_NEAR), _callers(frame), strict=False):
        owner = caller.f_locals.get("self")
        callbacks = getattr(owner, "callbacks", None)
        if isinstance(callbacks, list) and any(other is callback for other in callbacks):
            return owner
    return None


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
