"""A loop of the user's own, with progress, live curves and a stop button."""

from __future__ import annotations

import collections
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, Generic, TypeVar

import numpy as np

from tpunb._util.interrupts import StopButton
from tpunb.display.live_progress import RunDisplay
from tpunb.errors import TpunbError
from tpunb.training.history import History, remember_history

_Batch = TypeVar("_Batch")

_FLUSH = 0.1
"""Seconds between two looks at which values have arrived."""

_MOST_PENDING = 1000
"""The largest number of steps whose values stay on the devices."""


class _Running(threading.local):
    """The buttons of the loops that run in a thread, the outermost first."""

    def __init__(self) -> None:
        self.buttons: list[StopButton] = []


_running = _Running()


def track(
    batches: Iterable[_Batch],
    plot: str | Sequence[str] | None = None,
    *,
    total: int | None = None,
    name: str = "",
) -> TrackedLoop[_Batch]:
    """Loop over batches with progress, live curves and a stop button.

    It works for JAX and for any other loop. Values stay on the devices until they are computed, so
    no step waits for them.

    Example:
        >>> run = tpunb.track(range(100), plot=())
        >>> for batch in run:
        ...     run.log(loss=1 / (1 + batch))
        100 steps
        >>> run.history.best("loss")
        (100, 0.01)

        With `plot=["loss"]`, the curve is drawn while the loop runs.

    The stop button ends the loop after the current step, and the code below the loop runs. A second
    `for` over the same object continues with the batches that are left. A second press of the
    button interrupts at once. The button also ends tracked loops around the loop.

    Args:
        batches: What the loop goes over.
        plot: The logged names to draw. By default, all of them; an empty tuple draws none.
        total: The number of steps, if `batches` does not tell.
        name: The run's name in comparisons.
    """
    return TrackedLoop(batches, plot, total=total, name=name)


class TrackedLoop(Generic[_Batch]):
    """What `tpunb.track` returns: an iterable that shows how far a loop is.

    Attributes:
        history: What was logged: a `tpunb.History`.
        done: The number of steps that have ended.
        stopped: Whether the stop button has ended the loop.
    """

    def __init__(
        self,
        batches: Iterable[_Batch],
        plot: str | Sequence[str] | None = None,
        *,
        total: int | None = None,
        name: str = "",
    ) -> None:
        self.done = 0
        self.stopped = False
        self._total = _size_of(batches) if total is None else total
        self.history = History(name, self._total)
        self._plot = (plot,) if isinstance(plot, str) else plot
        self._batches = iter(batches)
        self._pending: collections.deque[tuple[int, dict[str, Any]]] = collections.deque()
        self._looked = 0.0

    def log(self, **values: Any) -> None:
        """Record values of the present step.

        Args:
            **values: Numbers, or arrays of one number: Python's, NumPy's, of JAX or of a
                framework whose arrays become NumPy's. A `PerReplica` has a number for each replica.
        """
        self._pending.append((self.done + 1, values))
        now = time.perf_counter()
        if now - self._looked > _FLUSH:
            self._looked = now
            self._fetch(len(self._pending) - _MOST_PENDING)

    def __len__(self) -> int:
        if self._total is None:
            raise TypeError("the number of steps is not known")
        return self._total

    def __iter__(self) -> Iterator[_Batch]:
        loop = id(sys._getframe(1))
        self.stopped = False
        display: RunDisplay | None = None
        with StopButton(lambda frame: _is_below(frame, loop)) as button:
            running = _running.buttons
            running.append(button)
            try:
                for batch in self._batches:
                    yield batch
                    self.done += 1
                    if display is None:  # now it is known whether anything is logged
                        display = self._display().__enter__()
                    display.set_steps(self.done, None)
                    if button.pressed:
                        self.stopped = True
                        for each in running:  # a loop over epochs ends with its loop over batches
                            each.press()
                        break
            finally:
                running.remove(button)
                self._end(display)

    def _display(self) -> RunDisplay:
        shown = self._plot if self._plot is not None else self._names()
        history = self.history if shown else None
        return RunDisplay(history, self._total, awaited=shown, metrics=self._plot)

    def _names(self) -> list[str]:
        """Return the names that were logged so far."""
        logged = [*self.history.metrics, *(name for _, values in self._pending for name in values)]
        return list(dict.fromkeys(logged))

    def _end(self, display: RunDisplay | None) -> None:
        """Fetch what is left, and end the display."""
        try:
            self._fetch(len(self._pending))
        finally:
            self.history.finish(stopped=self.stopped)
            if self.history.metrics:
                remember_history(self.history)
            if display is not None:
                display.__exit__(None, None, None)

    def _fetch(self, wanted: int) -> None:
        """Record the values that have arrived, and wait for as many steps as are wanted."""
        while self._pending and (wanted > 0 or all(map(_is_ready, self._pending[0][1].values()))):
            step, values = self._pending.popleft()
            for name, each in values.items():
                _refuse_deleted(name, each)
            self.history.append(step, **{name: _number(each) for name, each in values.items()})
            wanted -= 1


def _is_below(frame: FrameType | None, loop: int) -> bool:
    """Return whether a frame is a loop's, or of code that the loop calls."""
    while frame is not None:
        if id(frame) == loop:
            return True
        frame = frame.f_back
    return False


def _size_of(batches: Any) -> int | None:
    try:
        return len(batches)
    except TypeError:
        return None


def _is_ready(value: Any) -> bool:
    """Return whether reading a value waits for no device."""
    ready = getattr(getattr(value, "array", value), "is_ready", None)  # JAX has this method
    return ready is None or _is_deleted(value) or bool(ready())


def _is_deleted(value: Any) -> bool:
    deleted = getattr(getattr(value, "array", value), "is_deleted", None)
    return deleted is not None and bool(deleted())


def _refuse_deleted(name: str, value: Any) -> None:
    if _is_deleted(value):
        raise TpunbError(
            f"`{name}` was logged, and then donated to a function, so it cannot be read.",
            fix=f"Log a copy: run.log({name}=jnp.copy({name})).",
        )


def _number(value: Any) -> Any:
    """Return a value's number, or the replicas' numbers."""
    return np.asarray(value.array).reshape(-1) if hasattr(value, "is_whole") else value
