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


class CurvesDisplay:
    """Shows curves while they grow where widgets can run, else once at the end.

    Args:
        histories: What to show.
        metrics: Names of metrics, or of panels, to show; None for all.
        link: Widgets with the same link belong to one connection.
    """

    def __init__(
        self, histories: Sequence[History], metrics: Iterable[str] | None = None, link: str = ""
    ) -> None:
        self._histories, self._metrics = tuple(histories), metrics
        self._widget: CurvesWidget | None = None
        if frontend.shows_widgets():
            from tpunb.display.widgets.curves import CurvesWidget

            self._widget = CurvesWidget(self._histories, metrics=metrics, link=link)
            self._widget.show()

    @property
    def live(self) -> bool:
        """Whether the curves have been shown already."""
        return self._widget is not None

    def close(self) -> None:
        """Puts the picture in place of the live curves, or shows it."""
        if self._widget is not None:
            self._widget.freeze()
            self._widget.close()
            return
        from tpunb.display.describe.history import describe_history
        from tpunb.display.draw import mimebundle

        bundle = mimebundle(describe_history(self._histories, self._metrics))
        frontend.publish(dict(bundle), {}, display_id=uuid.uuid4().hex, update=False)
