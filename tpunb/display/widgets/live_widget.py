"""The base of all widgets: a live form, a static form, and the change between them."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from typing import Any

import anywidget
import traitlets

from tpunb.display.widgets import frontend
from tpunb.display.widgets.page_data import styles

Bundle = dict[str, Any]


class LiveWidget(anywidget.AnyWidget):
    """A display that is live if possible, and static everywhere else.

    Attributes:
        link: Widgets with the same link share a selection: the widgets of a connection.
        selected: Ids of the replicas that are selected in any of these widgets.
        closed: Whether the widget has ended; its static form remains.
    """

    _css = styles("style.css")

    link = traitlets.Unicode("").tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)
    # The static forms that pages write into the notebook's file: see saving.js.
    _static = traitlets.Dict().tag(sync=True)
    # Otherwise a widget's module in the front end does not get its model's id.
    _live_id = traitlets.Unicode("").tag(sync=True)

    def __init__(self, **state: Any) -> None:
        model_id = uuid.uuid4().hex
        self._displays: list[str] = []
        self._shown_in: int | None = None
        self._plain = ""
        self.closed = False
        super().__init__(model_id=model_id, _live_id=model_id, **state)

    def open(self) -> None:
        """Open the channel to the front end, if the front end shows widgets.

        Programs that execute notebooks would save the state of every open widget.
        """
        if not self.closed and not frontend.is_program():
            super().open()
            frontend.widget_opened()

    def close(self) -> None:
        """End the widget, and its live displays with it."""
        self.closed = True
        layout = self.layout if self.comm is not None else None
        super().close()
        if layout is not None:  # the layout has a model of its own
            layout.close()

    def update(self, value: Any) -> bool:
        """Show another value in place, if the widget can.

        Returns:
            Whether the widget shows the value; if not, a new widget is needed.
        """
        del value
        return False

    def release(self) -> None:
        """Drop the reference to the value; the display stays."""

    def static_bundle(self) -> Bundle:
        """Return the static forms of the present display, by MIME type."""
        raise NotImplementedError

    def live_bundle(self) -> tuple[Bundle, Bundle]:
        """Return the live form with the static forms beside it, and their metadata."""
        static = self.static_bundle()
        # anywidget asks for the repr: keep the text, so that it need not be drawn again.
        self._plain = str(static["text/plain"])
        try:
            live, metadata = anywidget.AnyWidget._repr_mimebundle_(self) or ({}, {})
        finally:
            self._plain = ""
        # The mark shows saving.js which outputs are tpunb's.
        metadata = frontend.with_alternative_text(static, metadata)
        return {**live, **static}, {**metadata, "tpunb": {}}

    def show(self) -> None:
        """Show the widget, alive."""
        if frontend.in_marimo():
            sys.modules["marimo"].output.append(self)
            return
        display_id = uuid.uuid4().hex
        self._displays.append(display_id)
        is_live = frontend.shows_widgets() and not self.closed
        if is_live:
            self.open()
        live = self.live_bundle() if is_live else (self._for_terminal(), {})
        frontend.publish(*live, display_id=display_id, update=False)

    def _for_terminal(self) -> Bundle:
        return frontend.for_terminal(self.static_bundle(), self._last_values())

    def _last_values(self) -> str:
        """Return the values that a terminal shows below the text; empty if there are none."""
        return ""

    def show_once(self) -> None:
        """Show the widget now, and not again if it is the value of the same cell."""
        if frontend.in_marimo():
            return  # marimo shows that value alive, and has no place for output before it
        self.show()
        self._shown_in = frontend.execution()

    def settle(self) -> None:
        """Give the page the present static forms, for the notebook's file.

        The display stays as it is, alive.
        """
        self._static = frontend.encoded(self.static_bundle())

    def freeze(self) -> None:
        """Replace every live form by the static form.

        The static form needs neither a kernel nor widgets, and is the right form for a saved
        notebook. `show` brings the widget back.
        """
        displays, self._displays = self._displays, []
        for display_id in displays:
            frontend.publish(self.static_bundle(), {}, display_id=display_id, update=True)

    def vanish(self) -> None:
        """Remove every live form, and end the widget."""
        displays, self._displays = self._displays, []
        for display_id in displays:
            frontend.clear(display_id)
        self.close()

    def _ipython_display_(self) -> None:
        shown_in, self._shown_in = self._shown_in, None
        if shown_in is None or shown_in != frontend.execution():
            self.show()

    def __repr__(self) -> str:
        return self._plain or str(self.static_bundle()["text/plain"])


MOST_IN_A_RUN = 24
"""The largest number of live displays in a cell's run; a loop's further displays are static."""

_Slot = tuple[str, int]
"""A cell's id, and the number of the display in a run of the cell."""


class AutoDisplays:
    """The widgets of cells: a cell that runs again gets its former widgets.

    Therefore a display is updated in place, and the user's settings in it stay.
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
        """Return the widget for the next display of the running cell.

        Args:
            kind: The widget's class.
            value: The value to show.
            make: Makes the widget, if the cell has no widget of this class at this position.

        Returns:
            The widget, or None if the cell's run already has the largest number of widgets.
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
            # The widget's display is gone; ipywidgets would keep the widget, and the value, for
            # ever.
            former.close()
        self._widgets[slot] = widget = make()
        return widget

    def close(self) -> None:
        """Drop the widgets and their values; their displays stay as they are."""
        for widget in self._widgets.values():
            widget.release()
        self._widgets.clear()
