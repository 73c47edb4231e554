"""What takes long shows how far it is while it goes on, and what stays of it."""

from __future__ import annotations

import contextvars
import html
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from tpunb.widgets import frontend

if TYPE_CHECKING:
    from tpunb.histories import History
    from tpunb.widgets.curves import CurvesWidget

__all__ = ["ConnectDisplay", "RunDisplay"]

_INTERVAL = 0.25


class RunDisplay:
    """Shows a run to whoever watches: progress in a line, and curves.

    Where nobody watches, there is one line at the end, the same in every run.

    Args:
        history: What is plotted; None if nothing is.
        total: How many steps there are to be; None where unknown.
        begin: How many were made in earlier parts of the run.
        link: The connection's, for the curves.

    Attributes:
        stopped: Whether the run has ended before its time.
    """

    def __init__(
        self, history: History | None, total: int | None, begin: int = 0, link: str = ""
    ) -> None:
        self.stopped = False
        self._history, self._total, self._link = history, total, link
        self._begin = self._steps = begin
        self._examples: int | None = None
        self._doing = ""
        self._since = self._started = time.monotonic()
        self._curves: CurvesWidget | None = None
        self._display = uuid.uuid4().hex
        self._watched = frontend.shows_widgets()
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> RunDisplay:
        if not self._watched:
            return self
        if self._history is not None:
            self._curves = self._new_curves(self._history)
            self._curves.show()
        self._publish(self._line(), update=False)
        # Messages belong to the cell whose context they are sent in.
        context = contextvars.copy_context()
        self._ticker = threading.Thread(
            target=context.run, args=(self._tick,), name="tpunb-progress", daemon=True
        )
        self._ticker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join(timeout=5)
        if self._history is not None:
            self._history.finish(stopped=self.stopped or kind is not None)
        if self._curves is not None:
            self._curves.freeze()
            self._curves.close()
        elif self._history is not None and self._history.metrics:
            curves = self._new_curves(self._history)
            frontend.publish(curves.static_bundle(), {}, display_id=uuid.uuid4().hex, update=False)
            curves.close()
        self._publish(_counted(self._steps), update=self._watched)

    def tracing(self, what: str) -> None:
        """TensorFlow begins to trace a step or a loop."""
        self._doing, self._since = f"compiling the {what}", time.monotonic()

    def made(self, steps: int, examples: int | None) -> None:
        """So many steps have been made in all, of so many examples each."""
        if not self._doing and steps > self._steps:
            self._examples = examples
        if self._doing:  # the clock starts when all is compiled
            self._doing, self._started, self._begin = "", time.monotonic(), steps
        self._steps = steps

    def _new_curves(self, history: History) -> CurvesWidget:
        from tpunb.widgets.curves import CurvesWidget

        return CurvesWidget(history, link=self._link)

    def _tick(self) -> None:
        while not self._ended.wait(_INTERVAL):
            self._publish(self._line(), update=True)

    def _line(self) -> str:
        """How far the run is, how fast, and how long it will take."""
        of = f" of {self._total:,}" if self._total is not None else ""
        parts = [f"step {self._steps:,}{of}"]
        now = time.monotonic()
        made, seconds = self._steps - self._begin, now - self._started
        if self._doing:
            parts.append(f"{self._doing}, {now - self._since:.0f} s")
        elif made > 0 and seconds > 0:
            rate = made / seconds
            parts.append(f"{_rate(rate)} steps/s")
            if self._examples:
                parts.append(f"{_rate(rate * self._examples)} examples/s")
            if self._total is not None:
                parts.append(f"{_duration((self._total - self._steps) / rate)} left")
        return " · ".join(parts)

    def _publish(self, line: str, *, update: bool) -> None:
        _publish_line(
            self._display, line, lively=self._watched and not self._ended.is_set(), update=update
        )


class ConnectDisplay:
    """Says what is waited for while connecting takes its time.

    Nothing is shown unless something is said. Where nobody watches, there is one line at
    the end, the same in every run.
    """

    def __init__(self) -> None:
        self._doing = ""
        self._since = 0.0
        self._display = uuid.uuid4().hex
        self._watched = frontend.shows_widgets()
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> ConnectDisplay:
        return self

    def say(self, doing: str) -> None:
        """Something new is being done."""
        first = not self._doing
        self._doing, self._since = doing, time.monotonic()
        if not self._watched:
            return
        self._publish(update=not first)
        if first:
            context = contextvars.copy_context()
            self._ticker = threading.Thread(
                target=context.run, args=(self._tick,), name="tpunb-connecting", daemon=True
            )
            self._ticker.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join(timeout=5)
        if self._doing:
            line = "Connected." if kind is None else "Not connected."
            _publish_line(self._display, line, lively=False, update=self._watched)

    def _tick(self) -> None:
        while not self._ended.wait(4 * _INTERVAL):
            self._publish(update=True)

    def _publish(self, *, update: bool) -> None:
        seconds = time.monotonic() - self._since
        waited = f", {seconds:.0f} s" if seconds >= 2 else ""
        _publish_line(self._display, f"{self._doing}{waited}", lively=True, update=update)


def _publish_line(display: str, line: str, *, lively: bool, update: bool) -> None:
    """Shows a line; what stays is plain text, the same wherever it was run."""
    data: dict[str, Any] = {"text/plain": line}
    if lively:
        data["text/html"] = f'<div style="font-size:13px;opacity:.8">{html.escape(line)}</div>'
    frontend.publish(data, {}, display_id=display, update=update)


def _counted(steps: int) -> str:
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
