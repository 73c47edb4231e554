"""Training curves that grow while the kernel trains."""

from __future__ import annotations

import contextlib
import json
import math
import operator
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import traitlets

from tpunb._util.units import duration, rate
from tpunb.display.describe.history_description import (
    MAX_RUNS,
    ChosenLine,
    HistoryDescription,
    chosen_lines,
    describe_history,
    notes_of,
    omission_phrases,
    run_names,
)
from tpunb.display.draw.curves_text import curves_text, last_values_text
from tpunb.display.draw.static_forms import curves_forms
from tpunb.display.widgets import frontend
from tpunb.display.widgets.live_widget import Bundle, LiveWidget
from tpunb.display.widgets.page_data import es_module, pack, styles
from tpunb.training.curves_figure import CurvesLook
from tpunb.training.history import History
from tpunb.training.metrics import Columns, goal_of

Message = tuple[dict[str, Any], bytes]

_RATE_SECONDS = 5.0
# A page needs a moment to load the widget's module, and misses earlier messages. It then requests
# them, but a kernel that trains does not answer. So for the first seconds everything is sent again,
# at least once a second.
_LOADING_SECONDS = 5.0
_RESEND_SECONDS = 1.0
_INT32 = 2**31

_PICTURE_SECONDS = 3.0
"""Seconds between two pictures for the notebook's file while a run goes on."""

_PICTURE_SHARE = 0.1
"""The largest share of a run's time that these pictures may take."""


class CurvesStream:
    """A stream of messages with histories; each message tells at which row its columns start.

    A row may be sent twice, and then is the same row. Therefore a page that opens in the middle, or
    gets a message again, has each row exactly once.

    Args:
        histories: The histories to send.
        metrics: Names of metrics, or of panels, to send; None for all.
        paced: Whether to send how fast the steps are.
        names: A name for each history; None for its own name.
    """

    def __init__(
        self,
        histories: Sequence[History],
        metrics: frozenset[str] | None,
        *,
        paced: bool = True,
        names: Sequence[str] | None = None,
    ) -> None:
        self.histories = tuple(histories)[:MAX_RUNS]
        self._num_runs = len(histories)
        self._names = names
        self._metrics = metrics
        self._sent: dict[tuple[int, str], int] = {}
        self._spread: set[tuple[int, str]] = set()
        self._versions: list[int] = []
        self._paced = paced
        self._paces = [_Pace() for _ in self.histories]
        self._first_sent = self._last_sent = 0.0

    @property
    def changed(self) -> bool:
        """True if there are rows that no delta has sent, or not often enough."""
        if [history.version for history in self.histories] != self._versions:
            return True
        loading = self._first_sent > 0 and self._last_sent < self._first_sent + _LOADING_SECONDS
        return loading and time.monotonic() >= self._last_sent + _RESEND_SECONDS

    def delta(self) -> Message:
        """Return the rows since the last delta."""
        # Read the versions first, so that rows that are appended from here on are new for the next
        # delta.
        self._versions = [history.version for history in self.histories]
        self._last_sent = time.monotonic()
        self._first_sent = self._first_sent or self._last_sent
        if self._last_sent < self._first_sent + _LOADING_SECONDS:
            self._sent.clear()
        for history, pace in zip(self.histories, self._paces, strict=True):
            pace.sample(history.last_step)
        return self._message(self._new_columns)

    def snapshot(self) -> bytes:
        """Return everything as one buffer: the header's length, the header, the columns."""
        header, columns = self._message(self._columns)
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + 8) % 8)
        return struct.pack("<q", len(text)) + text + columns

    def _columns(self, line: ChosenLine, start: int = 0) -> Columns:
        return self.histories[line.run].columns(line.metric, start)

    def _new_columns(self, line: ChosenLine) -> Columns:
        """Return the rows of a line that no delta has sent."""
        key = line.run, line.metric
        # Begin with the last of the rows that were sent, because it may have changed.
        part = self._columns(line, max(0, self._sent.get(key, 0) - 1))
        if part.lows is not None and key not in self._spread:
            # The spread starts late. From now on, the rows before it have a spread too.
            self._spread.add(key)
            part = self._columns(line)
        self._sent[key] = part.start + part.steps.size
        return part

    def _message(self, columns_of: Callable[[ChosenLine], Columns]) -> Message:
        names = run_names(self.histories, self._names)
        lines, num_panels = chosen_lines(self.histories, self._metrics, names)
        columns: dict[str, Any] = {}
        series = []
        for number, line in enumerate(lines):
            part = columns_of(line)
            series.append({**line._asdict(), "goal": goal_of(line.metric), "start": part.start})
            steps = part.steps
            if not steps.size or (steps[0] >= -_INT32 and steps[-1] < _INT32):
                steps = steps.astype(np.int32)  # half the bytes
            columns |= {f"{number}.steps": steps, f"{number}.values": part.values}
            if part.lows is not None and part.highs is not None:
                columns |= {f"{number}.lows": part.lows, f"{number}.highs": part.highs}
        runs = [
            {
                "name": name,
                "total": history.total_steps,
                "state": history.state,
                "step": history.last_step,
                "pace": pace.phrases(history) if self._paced else [],
            }
            for name, history, pace in zip(names, self.histories, self._paces, strict=True)
        ]
        panels = len({line.panel for line in lines}), num_panels
        layout, data = pack(columns)
        return {
            "kind": "points",
            "runs": runs,
            "notes": notes_of(self.histories),
            "omissions": omission_phrases((len(self.histories), self._num_runs), panels),
            "series": series,
            "layout": layout,
        }, data


class _Pace:
    """Steps per second over the last seconds, and the time since the first step."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, step: int | None) -> None:
        """Record the number of the last step."""
        if step is None:
            return
        now, samples = time.monotonic(), self._samples
        if not samples or samples[-1][1] != step:
            if self._first is None:
                self._first = now
            samples.append((now, step))
        while len(samples) > 2 and now - samples[1][0] > _RATE_SECONDS:
            samples.popleft()

    def phrases(self, history: History) -> list[str]:
        """Return the speed and the time that is left, or the time that an ended run has taken."""
        if self._first is None:
            return []
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        if history.finished:
            return [duration(max(1, round(ended - self._first)))] if ended > self._first else []
        if last <= first or ended <= began:
            return []
        per_second = (last - first) / (ended - began)
        speed, left = f"{rate(per_second)} steps/s", (history.total_steps or 0) - last
        return (
            [speed, f"{duration(max(1, round(left / per_second)))} left"] if left > 0 else [speed]
        )


class Follower:
    """A thread that calls `flush` while histories change, and ends when they stop changing.

    The training thread only appends. It starts this thread with its first value, and again with the
    first value after a pause. Without values, no thread runs.

    Args:
        histories: The histories to follow.
        flush: Called at most every `interval` seconds while there are new values.
        interval: Seconds between two calls.
        patience: Seconds without new values after which the thread ends.
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
        if frontend.in_marimo() and not all(history.finished for history in self._histories):
            # A thread that is started later, by Keras's or another thread, would not reach the
            # page.
            self._patience = math.inf
            self._start()

    @property
    def running(self) -> bool:
        """True if the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """End the thread after the message that it is sending; nothing starts it again."""
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
            self._thread = frontend.thread(self._run, "tpunb-curves")
            self._thread.start()

    def _run(self) -> None:
        idle = 0.0
        while idle < self._patience:
            if self._stop.wait(self._interval):
                return
            idle = 0.0 if self._flush() else idle + self._interval
            if all(history.finished for history in self._histories):
                break
        with self._lock:
            self._thread = None
        self._wait()
        # Values that came between the last flush and the call above have started no thread.
        if self._flush():
            self._start()


class _PictureTimer:
    """The times at which a running training's picture is drawn for the notebook's file."""

    def __init__(self) -> None:
        self._due = time.monotonic() + _PICTURE_SECONDS
        self._is_first = True

    @property
    def is_due(self) -> bool:
        """True if the last picture is old enough."""
        return time.monotonic() >= self._due

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Measure how long a picture takes, and set the time of the next picture."""
        # Time of the processor: other programs that slow down the drawing slow down the run, too.
        began = time.thread_time()
        try:
            yield
        finally:
            # The first picture imports Matplotlib.
            pause = 0.0 if self._is_first else (time.thread_time() - began) / _PICTURE_SHARE
            self._due = time.monotonic() + max(_PICTURE_SECONDS, pause)
            self._is_first = False


class CurvesWidget(LiveWidget):
    """Training curves of one or several histories, live.

    Values that are appended to a history, through this widget or not, are sent in the background,
    ten times a second. The page does all the drawing. Every few seconds, the thread that appends
    also draws the picture for the notebook's file. If the kernel dies, the file has the curves.

    Args:
        history: A history, or several to compare; None for a new history.
        metrics: Names of metrics, or of panels, to show; None for all.
        per_replica: Whether to show the spread over replicas, if it was logged.
        link: Widgets with the same link belong to one connection.
        paced: Whether to show how fast the steps are, and how long they have taken.
        awaited: The number of panels that will come, if known. The widget has its final height
            even before the first step.
        names: A name for each history; None for its own name.
        state: First values of the attributes below.

    Attributes:
        histories: The displayed histories.
        scale: `linear` or `log`, of the values' axis.
        smoothing: Weight of the moving average in percent, 0 to 99.
        spread: Whether the spread over replicas is shown.
        zoom: First and last step that are shown; empty for all.
        hidden: Lines that are switched off, as `[run]` or `[run, metric]`.
    """

    _esm = es_module("curves.js", "vendor/uPlot.iife.min.js")
    _css = styles("style.css", "vendor/uPlot.min.css")

    scale = traitlets.Enum(["linear", "log"], "linear").tag(sync=True)
    smoothing = traitlets.Int(0, min=0, max=99).tag(sync=True)
    spread = traitlets.Bool(True).tag(sync=True)
    zoom = traitlets.List(traitlets.Float()).tag(sync=True)
    hidden = traitlets.List(traitlets.List()).tag(sync=True)
    awaited = traitlets.Int(0, min=0).tag(sync=True)
    # Read only when a page requests the whole state, so that a page that opens late gets all rows.
    snapshot = traitlets.Bytes(b"").tag(
        sync=True, to_json=lambda _, widget: widget._stream.snapshot()
    )

    _follower: Follower | None = None

    def __init__(
        self,
        history: History | Sequence[History] | None = None,
        *,
        metrics: Iterable[str] | None = None,
        per_replica: bool = True,
        link: str = "",
        paced: bool = True,
        awaited: int = 0,
        names: Sequence[str] | None = None,
        **state: Any,
    ) -> None:
        self.histories = _histories(history)
        chosen = [metrics] if isinstance(metrics, str) else metrics
        self._metrics = None if chosen is None else frozenset(chosen)
        self._names = names
        self._stream = CurvesStream(self.histories, self._metrics, paced=paced, names=names)
        self._sending = threading.Lock()
        self._text: str | None = None
        self._pictures = _PictureTimer()
        super().__init__(link=link, spread=per_replica, awaited=awaited, **state)
        self.on_msg(self._on_request)
        self._follower = Follower(self.histories, self._flush)

    def append(self, step: int, metrics: dict[str, Any] | None = None, /, **more: Any) -> None:
        """Append to the first history: see `History.append`."""
        self.histories[0].append(step, metrics, **more)

    def finish(self, *, stopped: bool = False) -> None:
        """Finish the histories that still run, and send the rest.

        Args:
            stopped: Whether they ended early.
        """
        for history in self.histories:
            if not history.finished:
                history.finish(stopped=stopped)
        self._flush()
        self._draw_picture()

    def update(self, value: Any) -> bool:
        """Return whether the value has the same histories, which zoom and hidden lines belong to.

        Args:
            value: The same types as for the class.
        """
        several = (value,) if isinstance(value, History) else value
        if not isinstance(several, list | tuple) or len(several) != len(self.histories):
            return False
        return all(map(operator.is_, several, self.histories))

    def freeze(self) -> None:
        """Replace every live display by the picture."""
        self._flush()
        super().freeze()
        self._text = None

    def settle(self) -> None:
        """Send the remaining rows, and give the page the picture for the notebook's file."""
        self._flush()
        self._text = None  # the file gets the same text as from a program that runs the notebook
        super().settle()

    def close(self) -> None:
        """End the widget; the histories stay."""
        if self._follower is not None:
            self._follower.stop()
        super().close()

    def show(self) -> None:
        """Show the widget, alive."""
        if not self._displays:
            self._text = None
        # The text of a display does not change while the display exists. Otherwise notebooks that
        # are compared as tests would have the first text in one run and the last in another.
        self._text = self._text or curves_text(self.description)
        super().show()

    @property
    def description(self) -> HistoryDescription:
        """The description of the present curves."""
        return describe_history(self.histories, self._metrics, self._names)

    def _last_values(self) -> str:
        """Return the last values of the curves."""
        return last_values_text(self.description)

    def static_bundle(self) -> Bundle:
        """Return the text, and the picture if there is something to draw."""
        look = CurvesLook(self.scale, self.smoothing, self.spread)
        forms = curves_forms(self.description, look)
        return {**forms, "text/plain": self._text} if self._text else dict(forms)

    def _flush(self) -> bool:
        """Send new rows; return whether there were any."""
        # Two threads must not send at once, and rows must not overtake each other.
        with self._sending:
            if not self._stream.changed:
                return False
            content, columns = self._stream.delta()
            if all(history.finished for history in self.histories):
                # A notebook that is saved with its widgets keeps the last state sent.
                self.send_state("snapshot")
            else:
                self.send(content, [columns])
        if self._pictures.is_due and self._has_picture_in_file:
            for history in self.histories:
                history.when_changed(self._draw_picture)
        return True

    @property
    def _has_picture_in_file(self) -> bool:
        """True if the page writes this widget's picture into the notebook's file."""
        return self.comm is not None and frontend.saves_static_forms()

    def _draw_picture(self) -> None:
        """Give the page the present picture, for the notebook's file; the display stays.

        The thread that appends values calls this method. Another thread must not: Matplotlib's
        settings belong to the whole process, and the picture has settings of its own.
        """
        if self.closed or not self._has_picture_in_file:
            return
        with self._pictures.drawing(), contextlib.suppress(Exception):  # training is more important
            forms = self.static_bundle() | {"text/plain": curves_text(self.description)}
            self._static = frontend.encoded(forms)

    def _on_request(self, _: Any, content: Any, buffers: Any) -> None:
        """Send the whole state to a page that has missed something and requests it."""
        del buffers
        if isinstance(content, dict) and content.get("kind") == "sync":
            with self._sending:
                self.send_state("snapshot")


def _histories(history: History | Sequence[History] | None) -> tuple[History, ...]:
    """Return one history or several as a tuple of at least one."""
    several = (History(),) if history is None else history
    if isinstance(several, History):
        return (several,)
    histories = tuple(several)
    for item in histories:
        if not isinstance(item, History):
            raise TypeError(f"curves show a History or several, not {type(item).__name__}")
    if not histories:
        raise ValueError("curves need a history at least: CurvesWidget() makes one")
    return histories
