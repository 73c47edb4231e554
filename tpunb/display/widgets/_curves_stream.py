"""The messages that send training histories to a page, and the thread that sends them."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tpunb.display.describe.history import MAX_RUNS, chosen_series, notes_of, run_names
from tpunb.display.widgets._packing import pack
from tpunb.training.columns import Columns
from tpunb.training.history import History
from tpunb.training.metrics import goal_of, panel_of

__all__ = ["CurvesStream", "Follower"]

Message = tuple[dict[str, Any], bytes]

_RATE_SECONDS = 5.0
# A page needs a moment to load the widget's module, and misses what is sent before. It asks
# for it then; but a kernel that trains does not answer. So for the first seconds everything
# is sent again, at least once a second.
_LOADING_SECONDS = 5.0
_RESEND_SECONDS = 1.0
_INT32 = 2**31


class CurvesStream:
    """Turns histories into messages; each says at which row its columns start.

    A row may be sent twice, and then is the same row: a page that opens in the
    middle, or gets a message again, loses and doubles nothing.

    Args:
        histories: What to send.
        metrics: Names of metrics, or of panels, to send; None for all.
        paced: Whether to send how fast the steps are.
    """

    def __init__(
        self,
        histories: Sequence[History],
        metrics: frozenset[str] | None,
        *,
        paced: bool = True,
    ) -> None:
        self.histories = tuple(histories)[:MAX_RUNS]
        self._num_runs = len(histories)
        self._metrics = metrics
        self._sent: dict[tuple[int, str], int] = {}
        self._spread: set[tuple[int, str]] = set()
        self._versions: list[int] = []
        self._paced = paced
        self._rates = [_StepRate() for _ in self.histories]
        self._first_sent = self._last_sent = 0.0

    @property
    def changed(self) -> bool:
        """Whether there is something that no delta has sent, or not often enough."""
        if [history.version for history in self.histories] != self._versions:
            return True
        loading = self._first_sent > 0 and self._last_sent < self._first_sent + _LOADING_SECONDS
        return loading and time.monotonic() >= self._last_sent + _RESEND_SECONDS

    def delta(self) -> Message:
        """What is new since the last delta."""
        # Versions first: what is appended from here on is new for the next one.
        self._versions = [history.version for history in self.histories]
        self._last_sent = time.monotonic()
        self._first_sent = self._first_sent or self._last_sent
        if self._last_sent < self._first_sent + _LOADING_SECONDS:
            self._sent.clear()
        for history, rate in zip(self.histories, self._rates, strict=True):
            rate.sample(history.last_step)
        parts = {}
        keys, num_panels = self._keys()
        for key in keys:
            part = self._new_rows(key)
            if part.steps.size:
                parts[key] = part
                self._sent[key] = part.start + part.steps.size
        return self._message(parts, num_panels)

    def snapshot(self) -> bytes:
        """Everything, as one buffer: the header's length, the header, the columns."""
        keys, num_panels = self._keys()
        header, columns = self._message({key: self._columns(key) for key in keys}, num_panels)
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + 8) % 8)
        return struct.pack("<q", len(text)) + text + columns

    def _keys(self) -> tuple[list[tuple[int, str]], int]:
        return chosen_series(self.histories, self._metrics)

    def _columns(self, key: tuple[int, str], start: int = 0) -> Columns:
        run, name = key
        return self.histories[run].columns(name, start)

    def _new_rows(self, key: tuple[int, str]) -> Columns:
        """The rows after those that were sent, and the last of these: it may have changed."""
        part = self._columns(key, max(0, self._sent.get(key, 0) - 1))
        if part.lows is None or key in self._spread:
            return part
        # The spread starts late: the rows before it have one now, too.
        self._spread.add(key)
        return self._columns(key)

    def _message(self, parts: dict[tuple[int, str], Columns], num_panels: int) -> Message:
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
        return {
            "kind": "points",
            "runs": self._runs(),
            "notes": notes_of(self.histories),
            "all": {"runs": self._num_runs, "metrics": num_panels},
            "series": series,
            "layout": layout,
        }, data

    def _runs(self) -> list[dict[str, Any]]:
        names = run_names(self.histories)
        return [
            {
                "name": name,
                "total": history.total_steps,
                "state": history.state,
                "step": history.last_step,
                "rate": rate.per_second if self._paced and history.state == "running" else None,
                "seconds": rate.seconds if self._paced and history.finished else None,
            }
            for name, history, rate in zip(names, self.histories, self._rates, strict=True)
        ]


class _StepRate:
    """Steps per second over the last seconds.

    Attributes:
        per_second: At the last sample; None while too little is known.
        seconds: From the first step that was seen to the last one; None before the second.
    """

    def __init__(self) -> None:
        self.per_second: float | None = None
        self.seconds: float | None = None
        self._first: float | None = None
        self._seen: deque[tuple[float, int]] = deque()

    def sample(self, step: int | None) -> None:
        """Records the last step that was made."""
        if step is None:
            return
        now, seen = time.monotonic(), self._seen
        if not seen or seen[-1][1] != step:
            if self._first is None:
                self._first = now
            else:
                self.seconds = now - self._first
            seen.append((now, step))
        while len(seen) > 2 and now - seen[1][0] > _RATE_SECONDS:
            seen.popleft()
        (began, first), (ended, last) = seen[0], seen[-1]
        self.per_second = (
            (last - first) / (ended - began) if ended > began and last > first else None
        )


def _narrow(steps: Any) -> Any:
    """Steps in half the bytes where they fit."""
    fits = not steps.size or (steps[0] >= -_INT32 and steps[-1] < _INT32)
    return steps.astype(np.int32) if fits else steps


class Follower:
    """A thread that calls `flush` while histories change, and ends while they do not.

    The training thread only appends. It starts this thread with its first value,
    and again with the first value after a pause: without values there is no thread.

    Args:
        histories: What to follow.
        flush: What to do at most every `interval` seconds while there is something new.
        interval: Seconds between two calls.
        patience: Seconds without anything new after which the thread ends.
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
        idle = 0.0
        while idle < self._patience:
            if self._stop.wait(self._interval):
                return
            idle = 0.0 if self._flush() else idle + self._interval
            if self._is_over():
                break
        with self._lock:
            self._thread = None
        self._wait()
        # What was appended between the last flush and the call above has started no thread.
        if self._flush():
            self._start()

    def _is_over(self) -> bool:
        return all(history.finished for history in self._histories)
