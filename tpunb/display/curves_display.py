"""Where the curves of a training are seen."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tpunb.display.widgets import frontend

if TYPE_CHECKING:
    from tpunb.display.widgets.curves import CurvesWidget
    from tpunb.training.history import History

__all__ = ["CurvesDisplay"]

_MOST_KEPT = 64
"""Displays of ended runs that stay alive; each holds its histories."""


class CurvesDisplay:
    """Shows curves while they grow where widgets can run, else once at the end.

    Args:
        histories: What to show.
        metrics: Names of metrics, or of panels, to show; None for all.
        link: Widgets with the same link belong to one connection.
        paced: Whether they show how fast the steps are; if not, something beside them does.
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
        if frontend.shows_widgets():
            _kept.drop_former()
            from tpunb.display.widgets.curves import CurvesWidget
            from tpunb.training.panels import MAX_PANELS, panels_of

            panels = min(len(panels_of(awaited)), MAX_PANELS)
            self._widget = CurvesWidget(
                self._histories, metrics=metrics, link=link, paced=paced, awaited=panels
            )
            self._widget.show()

    @property
    def live(self) -> bool:
        """Whether the curves have been shown already."""
        return self._widget is not None

    def close(self) -> None:
        """Ends the live curves, which stay where they can be saved as a picture; or shows it."""
        if self._widget is not None and frontend.saves_static_forms():
            self._widget.settle()
            _kept.add(self._widget)
            return
        if self._widget is not None:
            self._widget.freeze()
            self._widget.close()
            return
        from tpunb.display.describe.history import describe_history
        from tpunb.display.draw import mimebundle

        bundle = mimebundle(describe_history(self._histories, self._metrics))
        frontend.publish(dict(bundle), {}, display_id=uuid.uuid4().hex, update=False)

    def remove(self) -> None:
        """Takes the live curves away, if there are any."""
        if self._widget is not None:
            self._widget.vanish()


class _KeptWidgets:
    """Widgets of runs that have ended, which their pages still need."""

    def __init__(self) -> None:
        self._widgets: dict[CurvesWidget, tuple[str | None, int | None]] = {}

    def add(self, widget: CurvesWidget) -> None:
        """Keeps one open; of too many the first one ends as a picture."""
        self._widgets[widget] = (frontend.cell_id(), frontend.execution())
        while len(self._widgets) > _MOST_KEPT:
            oldest = next(iter(self._widgets))
            oldest.freeze()
            self._close(oldest)

    def drop_former(self) -> None:
        """Closes those of the cell's runs before this one, whose displays are gone."""
        cell, execution = frontend.cell_id(), frontend.execution()
        for widget, (its_cell, its_execution) in list(self._widgets.items()):
            if cell is not None and cell == its_cell and execution != its_execution:
                self._close(widget)

    def _close(self, widget: CurvesWidget) -> None:
        del self._widgets[widget]
        widget.close()


_kept = _KeptWidgets()
