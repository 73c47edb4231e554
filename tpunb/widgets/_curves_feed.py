"""What a page is told of training histories, and the thread that tells it."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tpunb.describe.history import is_wanted, run_names
from tpunb.describe.metrics import goal_of, panel_of
from tpunb.histories import History
from tpunb.series import Columns
from tpunb.widgets._packing import pack

__all__ = ["Feed", "Follower"]

Message = tuple[dict[str, Any], bytes]

_RATE_SECONDS = 5.0
# A page needs a moment to load the widget's module, and hears nothing before. It asks for
# what it has missed; but a kernel that trains does not answer. So for this long everything
# is told again, at least once a second.
_MOMENT = 5.0
_AGAIN = 1.0
_INT32 = 2**31


class Feed:
    """Turns histories into messages; each says at which row its columns start.

    A row may be told twice, and then is the same row: a page that has opened in the
    middle, or gets a message again, loses and doubles nothing.

    Args:
        histories: What to tell of.
        metrics: Names of metrics, or of panels, to tell of; None for all.
    """

    def __init__(self, histories: Sequence[History], metrics: frozenset[str] | None) -> None:
        self.histories = tuple(histories)
        self._metrics = metrics
        self._sent: dict[tuple[int, str], int] = {}
        self._spread: set[tuple[int, str]] = set()
        self._versions: list[int] = []
        self._clocks = [_Clock() for _ in self.histories]
        self._began = self._told = 0.0

    @property
    def changed(self) -> bool:
        """Whether there is something that no delta has told, or not often enough."""
        if [history.version for history in self.histories] != self._versions:
            return True
        owed = self._began > 0 and self._told < self._began + _MOMENT
        return owed and time.monotonic() >= self._told + _AGAIN

    def delta(self) -> Message:
        """What is new since the last delta."""
        # Versions first: what is appended from here on is news for the next one.
        self._versions = [history.version for history in self.histories]
        self._told = time.monotonic()
        self._began = self._began or self._told
        if self._told < self._began + _MOMENT:
            self._sent.clear()
        for history, clock in zip(self.histories, self._clocks, strict=True):
            clock.look(history.last_step)
        parts = {}
        for key in self._keys():
            part = self._news(key)
            if part.steps.size:
                parts[key] = part
                self._sent[key] = part.start + part.steps.size
        return self._message(parts)

    def snapshot(self) -> bytes:
        """Everything, as one buffer: the header's length, the header, the columns."""
        header, columns = self._message({key: self._columns(key) for key in self._keys()})
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + 8) % 8)
        return struct.pack("<q", len(text)) + text + columns

    def _keys(self) -> list[tuple[int, str]]:
        return [
            (run, name)
            for run, history in enumerate(self.histories)
            for name in history.metrics
            if is_wanted(name, self._metrics)
        ]

    def _columns(self, key: tuple[int, str], start: int = 0) -> Columns:
        run, name = key
        return self.histories[run].columns(name, start)

    def _news(self, key: tuple[int, str]) -> Columns:
        """The rows after those that were sent, and the last of these: it may have changed."""
        part = self._columns(key, max(0, self._sent.get(key, 0) - 1))
        if part.lows is None or key in self._spread:
            return part
        # The spread starts late: the rows before it have one now, too.
        self._spread.add(key)
        return self._columns(key)

    def _message(self, parts: dict[tuple[int, str], Columns]) -> Message:
        columns, series = {}, []
        for number, ((run, name), part) in enumerate(parts.items()):
            panel, validation = panel_of(name)
            series.append(
                {
                    "run": run,
                    "name": name,
                    "panel": panel,
                    "validation": validation,
                    "goal": goal_of(name),
                    "start": part.start,
                }
            )
            columns[f"{number}.steps"] = _narrow(part.steps)
            columns[f"{number}.values"] = part.values
            if part.lows is not None and part.highs is not None:
                columns[f"{number}.lows"], columns[f"{number}.highs"] = part.lows, part.highs
        layout, data = pack(columns)
        return {"kind": "points", "runs": self._runs(), "series": series, "layout": layout}, data

    def _runs(self) -> list[dict[str, Any]]:
        names = run_names(self.histories)
        return [
            {
                "name": name,
                "total": history.total_steps,
                "state": history.state,
                "step": history.last_step,
                "rate": clock.rate if history.state == "running" else None,
            }
            for name, history, clock in zip(names, self.histories, self._clocks, strict=True)
        ]


class _Clock:
    """Steps per second over the last seconds.

    Attributes:
        rate: At the last look; None while too little is known.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        self._seen: deque[tuple[float, int]] = deque()

    def look(self, step: int | None) -> None:
        """Takes note of the last step that was made."""
        if step is None:
            return
        now, seen = time.monotonic(), self._seen
        if not seen or seen[-1][1] != step:
            seen.append((now, step))
        while len(seen) > 2 and now - seen[1][0] > _RATE_SECONDS:
            seen.popleft()
        (began, first), (ended, last) = seen[0], seen[-1]
        self.rate = (last - first) / (ended - began) if ended > began and last > first else None


def _narrow(steps: Any) -> Any:
    """Steps in half the bytes where they fit."""
    fits = not steps.size or (steps[0] >= -_INT32 and steps[-1] < _INT32)
    return steps.astype(np.int32) if fits else steps


class Follower:
    """A thread that calls `flush` while histories change, and rests while they do not.

    The training thread only appends. It starts this thread with its first value,
    and again with the first value after a rest: without values there is no thread.

    Args:
        histories: What to follow.
        flush: What to do at most every `interval` seconds while there is news.
        interval: Seconds between two calls.
        patience: Seconds without news after which the thread ends.
    """

    def __init__(
        self,
        histories: Sequence[History],
        flush: Callable[[], bool],
        interval: float = 0.1,
        patience: float = 20.0,
    ) -> None:
        self._histories = tuple(histories)
        self._flush, self._interval, self._patience = flush, interval, patience
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._wait()

    @property
    def running(self) -> bool:
        """Whether the thread is there."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Ends the thread, after the message that it is sending; nothing starts it again."""
        self._stop.set()
        for history in self._histories:
            history.forget(self._start)
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _wait(self) -> None:
        for history in self._histories:
            history.when_changed(self._start)

    def _start(self) -> None:
        with self._lock:
            if self._stop.is_set() or self.running:
                return
            self._thread = threading.Thread(target=self._run, name="tpunb-curves", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        rested = 0.0
        while rested < self._patience:
            if self._stop.wait(self._interval):
                return
            rested = 0.0 if self._flush() else rested + self._interval
            if self._is_over():
                break
        with self._lock:
            self._thread = None
        self._wait()
        # What came between the last look and the call above has called nobody.
        if self._flush():
            self._start()

    def _is_over(self) -> bool:
        return all(history.finished for history in self._histories)
