"""Progress of long work; it leaves one line that is the same in every run."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tpunb._util.plain_text import plain
from tpunb._util.tables import escaped
from tpunb._util.units import counted, duration, grouped, rate
from tpunb.display.widgets import frontend

if TYPE_CHECKING:
    from tpunb.display.widgets.curves import CurvesWidget
    from tpunb.tpu.compiled_program import Program
    from tpunb.training.history import History


_MOST_KEPT = 64
"""The largest number of live displays of ended runs; each display holds its histories."""


class CurvesDisplay:
    """A display of curves: growing if widgets can run, otherwise once at the end.

    Args:
        histories: The histories to show.
        metrics: Names of metrics, or of panels, to show; None for all.
        link: Widgets with the same link belong to one connection.
        paced: Whether the curves show how fast the steps are; if not, a line beside them does.
        awaited: Names of the metrics that will come, as far as they are known.
    """

    def __init__(
        self,
        histories: Sequence[History],
        metrics: Iterable[str] | None = None,
        link: str = "",
        *,
        paced: bool = True,
        awaited: Iterable[str] = (),
    ) -> None:
        self._histories, self._metrics = tuple(histories), metrics
        self._widget: CurvesWidget | None = None
        if frontend.shows_widgets() or frontend.in_marimo():
            _kept_widgets.drop_former()
            from tpunb.display.widgets.curves import CurvesWidget
            from tpunb.training.metrics import MAX_PANELS, panels_of

            panels = min(len(panels_of(awaited)), MAX_PANELS)
            self._widget = CurvesWidget(
                self._histories, metrics=metrics, link=link, paced=paced, awaited=panels
            )
            self._widget.show()

    @property
    def live(self) -> bool:
        """True if the curves have been shown already."""
        return self._widget is not None

    def close(self) -> None:
        """End the live curves, in a form that a file can keep; without them, show a picture."""
        if self._widget is not None and (frontend.saves_static_forms() or frontend.in_marimo()):
            self._widget.settle()
            _kept_widgets.add(self._widget)
            return
        if self._widget is not None:
            self._widget.freeze()
            self._widget.close()
            return
        from tpunb.display.describe.history_description import describe_history
        from tpunb.display.draw.curves_text import last_values_text
        from tpunb.display.draw.static_forms import mimebundle

        description = describe_history(self._histories, self._metrics)
        bundle = frontend.for_terminal(dict(mimebundle(description)), last_values_text(description))
        frontend.publish(bundle, {}, display_id=uuid.uuid4().hex, update=False)

    def remove(self) -> None:
        """Remove the live curves, if there are any."""
        if self._widget is not None:
            self._widget.vanish()


class _KeptWidgets:
    """Widgets of ended runs, which their pages still need."""

    def __init__(self) -> None:
        self._widgets: dict[CurvesWidget, tuple[str | None, int | None]] = {}

    def add(self, widget: CurvesWidget) -> None:
        """Keep a widget open; if there are too many, the oldest widget becomes a picture."""
        self._widgets[widget] = (frontend.cell_id(), frontend.execution())
        while len(self._widgets) > _MOST_KEPT:
            oldest = next(iter(self._widgets))
            oldest.freeze()
            self._close(oldest)

    def drop_former(self) -> None:
        """Close the widgets of the cell's former runs, whose displays are gone."""
        cell, execution = frontend.cell_id(), frontend.execution()
        for widget, (its_cell, its_execution) in list(self._widgets.items()):
            if cell is not None and cell == its_cell and execution != its_execution:
                self._close(widget)

    def _close(self, widget: CurvesWidget) -> None:
        del self._widgets[widget]
        widget.close()


_kept_widgets = _KeptWidgets()


_SLOW = 2.0
"""Seconds until a cell shows that it is running."""


class RunDisplay:
    """A display of a run for a person who watches it: progress in a line, and curves.

    If no person watches, a single line at the end is the same in every run.

    Args:
        history: The plotted values; None if nothing is plotted.
        total: The total number of steps; None if unknown.
        begin: The number of steps in earlier parts of the run.
        link: The connection's link, for the curves.
        awaited: Names of the plotted values.
        metrics: Names of the values to draw; None for all that the history has.
    """

    def __init__(
        self,
        history: History | None,
        total: int | None,
        begin: int = 0,
        link: str = "",
        awaited: Iterable[str] = (),
        metrics: Iterable[str] | None = None,
    ) -> None:
        self._awaited, self._metrics = tuple(awaited), metrics
        self._history, self._total, self._link = history, total, link
        self._begin = self._steps = begin
        self._examples: int | None = None
        self._compiling = ""
        self._since = self._started = self._entered = time.monotonic()
        self._curves: CurvesDisplay | None = None
        self._line = _LiveLine(self._progress, interval=0.25, kept=self._reached)

    def __enter__(self) -> RunDisplay:
        if self._history is not None:
            # The line below has the speed and the time left.
            self._curves = CurvesDisplay(
                [self._history],
                self._metrics,
                link=self._link,
                paced=False,
                awaited=self._awaited,
            )
        self._line.refresh()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._line.stop()
        plotted = self._history is not None and len(self._history) > 0
        has_nothing = kind is not None and not self._steps and not plotted
        if self._history is not None and self._curves is not None:
            if kind is not None or not self._history.finished:
                self._history.finish(stopped=kind is not None)
            if has_nothing:
                self._curves.remove()
            elif self._curves.live or self._history.metrics:
                self._curves.close()
        if has_nothing:  # the error is enough
            self._line.remove()
            return
        done = counted(self._steps, "step")
        speed, *others = self._speed() or [""]
        if speed and self._started - self._entered > 0.2 * (time.monotonic() - self._entered):
            speed += " after tracing"  # this rate is not the steps divided by the time
        seconds = time.monotonic() - self._entered
        time_taken = duration(seconds if seconds < 1 else round(seconds))
        self._line.leave(
            done, " · ".join(filter(None, [f"{done} in {time_taken}", speed, *others]))
        )

    def tracing(self, unit: str) -> None:
        """Show that TensorFlow begins to trace a step or a loop."""
        self._compiling, self._since = unit, time.monotonic()

    def set_steps(self, steps: int, examples: int | None) -> None:
        """Note the number of steps in total, and the examples of each step."""
        if not self._compiling and steps > self._steps:
            self._examples = examples
        if self._compiling:  # the clock starts after compiling
            self._compiling, self._started, self._begin = "", time.monotonic(), steps
        self._steps = steps

    def resumed(self, steps: int, text: str) -> None:
        """Say that the run continues from a checkpoint after so many steps."""
        self._begin = self._steps = steps
        frontend.publish({"text/plain": text}, {}, display_id=uuid.uuid4().hex, update=False)

    def _reached(self) -> str:
        """Return the number of steps made."""
        of = f" of {grouped(self._total)}" if self._total is not None else ""
        return f"step {grouped(self._steps)}{of}"

    def _progress(self) -> str:
        """Return the progress of the run, its speed, and the time that is left."""
        parts = [self._reached()]
        now = time.monotonic()
        steps, seconds = self._steps - self._begin, now - self._started
        if self._compiling:
            parts.append(f"compiling the {self._compiling}, {duration(round(now - self._since))}")
        elif steps > 0 and seconds > 0:
            parts += self._speed()
            if self._total is not None:
                left = (self._total - self._steps) * seconds / steps
                parts.append(f"{duration(round(left))} left")
        return " · ".join(parts)

    def _speed(self) -> list[str]:
        """Return steps and examples a second, as far as they are known."""
        steps, seconds = self._steps - self._begin, time.monotonic() - self._started
        if steps <= 0 or seconds <= 0:
            return []
        speed = steps / seconds
        examples = [f"{rate(speed * self._examples)} examples/s"] if self._examples else []
        return [f"{rate(speed)} steps/s", *examples]


_Display = TypeVar("_Display", bound="CellDisplay")


class CellDisplay:
    """A line that shows, after two seconds, that a cell is running, if widgets can run.

    Nothing remains of the line, because a cell's saved output must not depend on its speed.

    Args:
        phase: Returns the present work of the cell.
        html: Makes HTML of the line; None for the line itself.
    """

    def __init__(self, phase: Callable[[], str], html: Callable[[str], str] | None = None) -> None:
        self._phase = phase
        self._since = time.monotonic()
        self._line = _LiveLine(self._progress, interval=0.5, delay=_SLOW, html=html)

    def __enter__(self: _Display) -> _Display:
        # Outside IPython the line could not be removed again.
        if frontend.execution() is not None:
            self._line.refresh()
        return self

    def __exit__(self, *_: object) -> None:
        self._line.stop()
        self._line.remove()

    def _progress(self) -> str:
        return f"{self._phase()}, {duration(round(time.monotonic() - self._since))}"


class CompilationDisplay(CellDisplay):
    """A line that shows, after two seconds, the present compilation and the finished TPU types.

    If widgets can run, nothing remains at the end, because the answer has all results. In a
    terminal, a line on standard error tells each type that is done while others are left.

    Args:
        phase: Returns the present work.
    """

    def __init__(self, phase: Callable[[], str]) -> None:
        self._programs: Sequence[Program] = ()
        self._types_left: Sequence[str] = ()
        self._num_printed = 0
        super().__init__(phase, self._html)

    def known(self, programs: Sequence[Program], types_left: Sequence[str]) -> None:
        """Show the programs that are known, and the types that are left."""
        self._programs, self._types_left = programs, types_left
        slow = time.monotonic() - self._since >= _SLOW
        if types_left and slow and not frontend.shows_widgets() and frontend.in_terminal():
            for program in programs[self._num_printed :]:
                sys.stderr.write(f"{plain(program.headline)} Left: {', '.join(types_left)}.\n")
            self._num_printed = len(programs)

    def _progress(self) -> str:
        from tpunb.display.draw.programs.text import programs_text

        text = super()._progress()
        if self._types_left[1:]:
            text += f" · then {', '.join(self._types_left[1:])}"
        if not self._programs:
            return text
        several = len(self._programs) > 1
        done = programs_text(self._programs) if several else plain(self._programs[0].headline)
        return f"{text}\n{done}"

    def _html(self, text: str) -> str:
        """Return the line, and below it the table of the types that are done."""
        from tpunb.display.draw.programs.html import types_table

        done = types_table(self._programs) if self._programs else ""
        return f"{_html(text.splitlines()[0])}{done}"


class ConnectDisplay:
    """A line that shows the reason for a wait while connecting takes time.

    Nothing is shown unless connecting has to wait.

    Args:
        done: The text that stays after success.
        failed: The text that stays after an error.
    """

    def __init__(self, done: str = "Connected.", failed: str = "Not connected.") -> None:
        self._ends = done, failed
        self._doing = ""
        self._since = 0.0
        self._line = _LiveLine(self._progress, interval=1.0)

    def __enter__(self) -> ConnectDisplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._line.stop()
        if self._doing:
            self._line.leave(self._ends[kind is not None])

    def say(self, doing: str) -> None:
        """Show the present work from now on, such as `"asking 4 workers"`."""
        self._doing, self._since = doing, time.monotonic()
        self._line.refresh()

    def _progress(self) -> str:
        seconds = round(time.monotonic() - self._since)
        return f"{self._doing}, {duration(seconds)}" if seconds >= 2 else self._doing


class _LiveLine:
    """A line that is renewed for the person who sees it, and the text that stays.

    Args:
        text: Returns the line.
        interval: Seconds between two renewals.
        delay: Seconds before the line is shown at all.
        html: Makes HTML of the text; by default a grey line.
        kept: Returns the line that stays if the kernel dies; by default no line stays.
    """

    def __init__(
        self,
        text: Callable[[], str],
        interval: float,
        delay: float | None = None,
        html: Callable[[str], str] | None = None,
        kept: Callable[[], str] = str,
    ) -> None:
        self._text, self._interval, self._delay = text, interval, delay
        self._kept = kept
        self._html = html or _html
        self._display = uuid.uuid4().hex
        self._live = frontend.shows_widgets()
        self._shown = False
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None

    def refresh(self) -> None:
        """Show the present line, and start to renew it."""
        if not self._live:
            return
        if self._delay is None:
            self._publish(self._text())
        if self._ticker is None:
            # Messages belong to the cell whose context they are sent in.
            run = contextvars.copy_context().run
            self._ticker = threading.Thread(
                target=run, args=(self._tick,), name="tpunb-progress", daemon=True
            )
            self._ticker.start()

    def stop(self) -> None:
        """End the renewals."""
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join(timeout=5)

    def leave(self, text: str, in_passing: str = "") -> None:
        """Replace the line by plain text, so that a notebook is the same on every machine.

        Args:
            text: The text.
            in_passing: The page's text instead, until the notebook is opened again.
        """
        if in_passing and self._live and frontend.can_pass():
            _publish_in_passing(self._display, in_passing, saved=text, update=True)
        else:
            self._publish(text)

    def remove(self) -> None:
        """Remove the line."""
        if self._shown:
            frontend.clear(self._display)

    def _tick(self) -> None:
        pause = self._interval if self._delay is None else self._delay
        while not self._ended.wait(pause):
            with contextlib.suppress(Exception):  # the front end is gone
                self._publish(self._text())
            pause = self._interval

    def _publish(self, line: str) -> None:
        """Show the line; the text that stays is plain, and the same on every machine."""
        data: dict[str, Any] = {"text/plain": line}
        metadata: dict[str, Any] = {}
        if not self._ended.is_set():
            data["text/html"] = self._html(line)
            if frontend.can_pass():
                metadata = frontend.passing(self._kept(), alive=True)
        frontend.publish(data, metadata, display_id=self._display, update=self._shown)
        self._shown = True


def show_in_passing(line: Callable[[], str]) -> None:
    """Show a grey line to a person who watches; the saved notebook does not have it."""
    if frontend.can_pass():
        _publish_in_passing(uuid.uuid4().hex, line(), saved="", update=False)


def _publish_in_passing(display: str, line: str, *, saved: str, update: bool) -> None:
    data = {"text/plain": line, "text/html": _html(line)}
    frontend.publish(data, frontend.passing(saved), display_id=display, update=update)


def _html(line: str) -> str:
    return f'<div style="font-size:13px;opacity:.7">{escaped(line)}</div>'
