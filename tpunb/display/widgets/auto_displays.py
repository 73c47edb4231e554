"""The widgets of values that cells display, one for each display of a cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tpunb.display.widgets import frontend

if TYPE_CHECKING:
    from tpunb.display.widgets._base import LiveWidget

__all__ = ["AutoDisplays"]

MOST_IN_A_RUN = 24
"""Displays of one run of a cell that are live; a loop's others are static."""

_Slot = tuple[str, int]
"""A cell's id, and the number of the display in a run of it."""


class AutoDisplays:
    """Keeps the widgets: a cell that is run again gets those that it had.

    So a display is updated in place, and what the user has chosen in it stays.
    """

    def __init__(self) -> None:
        self._widgets: dict[_Slot, LiveWidget] = {}
        self._run: tuple[str | None, int | None] = (None, None)
        self._shown = 0

    def widget(
        self,
        kind: type[LiveWidget],
        value: Any,
        make: Callable[[], LiveWidget],
    ) -> LiveWidget | None:
        """The widget for the next display of the cell that runs.

        Args:
            kind: The widget's class.
            value: What it is to show.
            make: Makes the widget, if the cell has none of the class there.

        Returns:
            The widget, or None if the cell's run has as many as it may have.
        """
        run = (frontend.cell_id(), frontend.execution())
        if run != self._run:
            self._run, self._shown = run, 0
        self._shown += 1
        if self._shown > MOST_IN_A_RUN:
            return None
        if run[0] is None:
            return make()
        slot = (run[0], self._shown)
        former = self._widgets.get(slot)
        reusable = isinstance(former, kind) and not former.closed
        if former is not None and reusable and former.update(value):
            return former
        if former is not None:
            # Its display is gone; ipywidgets would keep it, and the value, for ever.
            former.close()
        self._widgets[slot] = made = make()
        return made

    def close(self) -> None:
        """Drops the widgets and what they hold; their displays stay as they are."""
        for widget in self._widgets.values():
            widget.release()
        self._widgets.clear()
