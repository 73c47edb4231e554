"""Training curves that grow while the kernel trains."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import traitlets

from tpunb.display.describe.history import HistoryDescription, describe_history
from tpunb.display.draw.curves_picture import curves_png
from tpunb.display.draw.curves_text import curves_text
from tpunb.display.widgets._base import Bundle, LiveWidget
from tpunb.display.widgets._curves_stream import CurvesStream, Follower
from tpunb.display.widgets._modules import es_module, styles
from tpunb.training.history import History

__all__ = ["CurvesWidget"]


class CurvesWidget(LiveWidget):
    """Training curves of one or several histories, live.

    What is appended to a history, through this widget or not, is sent in the
    background, ten times a second. All drawing is done by the page.

    Args:
        history: A history, or several to compare; None for a new one.
        metrics: Names of metrics, or of panels, to show; None for all.
        per_replica: Whether to show the spread over replicas, where it was logged.
        link: Widgets with the same link belong to one connection.
        paced: Whether to show how fast the steps are, and how long they have taken.
        awaited: How many panels there will be, if that is known: before the first step it is as
            high as with them.
        state: First values of the attributes below.

    Attributes:
        histories: What is shown.
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
    # Read only when a page asks for the whole state: one that opens late gets all.
    snapshot = traitlets.Bytes(b"").tag(sync=True, to_json=lambda _, widget: widget._snapshot())

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
        **state: Any,
    ) -> None:
        self.histories = _histories(history)
        self._metrics = None if metrics is None else frozenset(_names(metrics))
        self._stream = CurvesStream(self.histories, self._metrics, paced=paced)
        self._sending = threading.Lock()
        self._text: str | None = None
        super().__init__(link=link, spread=per_replica, awaited=awaited, **state)
        self.on_msg(self._on_request)
        self._follower = Follower(self.histories, self._flush)

    def append(self, step: int, metrics: dict[str, Any] | None = None, /, **more: Any) -> None:
        """Appends to the first history: see `History.append`."""
        self.histories[0].append(step, metrics, **more)

    def finish(self, *, stopped: bool = False) -> None:
        """Finishes the histories that still run, and sends the rest.

        Args:
            stopped: Whether they ended early.
        """
        for history in self.histories:
            if not history.finished:
                history.finish(stopped=stopped)
        self._flush()

    def update(self, value: Any) -> bool:
        """Whether the value is the same histories: zoom and hidden lines belong to them.

        Args:
            value: As for the class.
        """
        several = (value,) if isinstance(value, History) else value
        if not isinstance(several, list | tuple) or len(several) != len(self.histories):
            return False
        return all(map(operator.is_, several, self.histories))

    def freeze(self) -> None:
        """Replaces every live display by the picture."""
        self._flush()
        super().freeze()
        self._text = None

    def settle(self) -> None:
        """Sends what is left, and gives the page the picture for the notebook's file."""
        self._flush()
        self._text = None  # the file has what a program that runs the notebook shows
        super().settle()

    def close(self) -> None:
        """Ends the widget; the histories stay."""
        if self._follower is not None:
            self._follower.stop()
        super().close()

    def show(self) -> None:
        """Shows the widget, alive."""
        if not self._displays:
            self._text = None
        # The text of a display does not change while it is there: notebooks that are
        # compared as tests see the first one in one run and the last in another.
        self._text = self._text or curves_text(self.description)
        super().show()

    @property
    def description(self) -> HistoryDescription:
        """What is shown now, as a description."""
        return describe_history(self.histories, self._metrics)

    def static_bundle(self) -> Bundle:
        """The text, and the picture once there is something to draw."""
        description = self.description
        bundle: Bundle = {"text/plain": self._text or curves_text(description)}
        if description.panels:
            bundle["image/png"] = curves_png(
                description, scale=self.scale, smoothing=self.smoothing, spread=self.spread
            )
        return bundle

    def _flush(self) -> bool:
        """Sends what is new; returns whether there was anything."""
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
        return True

    def _snapshot(self) -> bytes:
        return self._stream.snapshot()

    def _on_request(self, _: Any, content: Any, buffers: Any) -> None:
        """A page has missed something, and requests the whole state."""
        del buffers
        if isinstance(content, dict) and content.get("kind") == "sync":
            with self._sending:
                self.send_state("snapshot")


def _histories(history: History | Sequence[History] | None) -> tuple[History, ...]:
    """One history or several as a tuple of at least one."""
    several = (History(),) if history is None else history
    if isinstance(several, History):
        return (several,)
    found = tuple(several)
    for each in found:
        if not isinstance(each, History):
            raise TypeError(f"curves show a History or several, not {type(each).__name__}")
    if not found:
        raise ValueError("curves need a history at least: CurvesWidget() makes one")
    return found


def _names(metrics: Iterable[str]) -> tuple[str, ...]:
    return (metrics,) if isinstance(metrics, str) else tuple(metrics)
