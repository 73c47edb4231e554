"""Where the curves of a training are seen."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tpunb.histories import History

if TYPE_CHECKING:
    from tpunb.widgets import CurvesWidget

__all__ = ["Screen"]


class Screen:
    """Shows curves while they grow where widgets can run, else once at the end.

    Args:
        runs: What to show.
        metrics: Names of metrics, or of panels, to show; None for all.
    """

    def __init__(self, runs: Sequence[History], metrics: Iterable[str] | None) -> None:
        from tpunb.connection import latest_connection
        from tpunb.widgets import CurvesWidget, frontend

        self._runs, self._metrics = tuple(runs), metrics
        self._widget: CurvesWidget | None = None
        if frontend.shows_widgets():
            connection = latest_connection()
            link = connection.link if connection is not None else ""
            self._widget = CurvesWidget(self._runs, metrics=metrics, link=link)
            self._widget.show()

    def close(self) -> None:
        """Puts the picture in place of the live curves, or shows it."""
        if self._widget is not None:
            self._widget.freeze()
            self._widget.close()
            return
        from tpunb.describe.history import describe_history
        from tpunb.draw import mimebundle
        from tpunb.widgets import frontend

        bundle = mimebundle(describe_history(self._runs, self._metrics))
        frontend.publish(dict(bundle), {}, display_id=uuid.uuid4().hex, update=False)
