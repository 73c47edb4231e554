"""The widgets that displays make by themselves, one for each place in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tpunb.widgets import frontend

if TYPE_CHECKING:
    from tpunb.widgets._base import LiveWidget

__all__ = ["Places"]

MOST_IN_A_RUN = 24
"""Displays of one run of a cell that are live; a loop's others are static."""

_Place = tuple[str, int]


class Places:
    """Which widget stands where: a cell that is run again gets the one that it had.

    So the display is updated in place, and what the user has chosen in it stays.
    """

    def __init__(self) -> None:
        self._widgets: dict[_Place, LiveWidget] = {}
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
            make: Makes the widget, if there is none of the class at that place.

        Returns:
            The widget, or None if the cell's run has had enough of them.
        """
        run = (frontend.cell_id(), frontend.execution())
        if run != self._run:
            self._run, self._shown = run, 0
        self._shown += 1
        if self._shown > MOST_IN_A_RUN:
            return None
        if run[0] is None:
            return make()
        place = (run[0], self._shown)
        known = self._widgets.get(place)
        alive = isinstance(known, kind) and not known.closed
        if known is not None and alive and known.update(value):
            return known
        if known is not None:
            # Its display is gone; ipywidgets would keep it, and the value, for ever.
            known.close()
        self._widgets[place] = made = make()
        return made

    def close(self) -> None:
        """Forgets the widgets and what they hold; their displays stay as they are."""
        for widget in self._widgets.values():
            widget.release()
        self._widgets.clear()
