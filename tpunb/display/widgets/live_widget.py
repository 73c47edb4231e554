"""The base of all widgets: a live form, a static one, and the way between."""

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
    """A display that is live where it can be, and static everywhere else.

    Attributes:
        link: Widgets with the same link share a selection: those of a connection.
        selected: Ids of the replicas that are selected, in any of them.
        closed: Whether the widget has ended; its static form remains.
    """

    _css = styles("style.css")

    link = traitlets.Unicode("").tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)
    # The static forms that pages write into the notebook's file: see saving.js.
    _static = traitlets.Dict().tag(sync=True)
    # A widget's module in the front end does not get its model's id otherwise.
    _live_id = traitlets.Unicode("").tag(sync=True)

    def __init__(self, **state: Any) -> None:
        model_id = uuid.uuid4().hex
        self._displays: list[str] = []
        self._shown_in: int | None = None
        self._plain = ""
        self.closed = False
        super().__init__(model_id=model_id, _live_id=model_id, **state)

    def open(self) -> None:
        """Opens the channel to the front end, if that shows widgets.

        Programs that execute notebooks would save the state of every open widget.
        """
        if not self.closed and not frontend.is_program():
            super().open()
            frontend.widget_opened()

    def close(self) -> None:
        """Ends the widget, and its live displays with it."""
        self.closed = True
        layout = self.layout if self.comm is not None else None
        super().close()
        if layout is not None:  # a model of its own
            layout.close()

    def update(self, value: Any) -> bool:
        """Shows another value in place, if the widget can.

        Returns:
            Whether it does; if not, a new widget is needed.
        """
        del value
        return False

    def release(self) -> None:
        """Drops the reference to the value; what is displayed stays."""

    def static_bundle(self) -> Bundle:
        """The static forms of what the widget shows now, by MIME type."""
        raise NotImplementedError

    def live_bundle(self) -> tuple[Bundle, Bundle]:
        """The live form with the static ones beside it, and their metadata."""
        static = self.static_bundle()
        # It asks for the repr: what is drawn already need not be drawn again.
        self._plain = str(static["text/plain"])
        try:
            live, metadata = anywidget.AnyWidget._repr_mimebundle_(self) or ({}, {})
        finally:
            self._plain = ""
        # The mark tells saving.js which outputs are ours.
        return {**live, **static}, {**metadata, "tpunb": {}}

    def show(self) -> None:
        """Shows the widget, alive."""
        if frontend.in_marimo():
            sys.modules["marimo"].output.append(self)
            return
        display_id = uuid.uuid4().hex
        self._displays.append(display_id)
        is_live = frontend.shows_widgets() and not self.closed
        if is_live:
            self.open()
        live = self.live_bundle() if is_live else (self.static_bundle(), {})
        frontend.publish(*live, display_id=display_id, update=False)

    def show_once(self) -> None:
        """Shows the widget now, and not again where it is the value of the same cell."""
        if frontend.in_marimo():
            return  # which shows that value alive, and is no place for anything before it
        self.show()
        self._shown_in = frontend.execution()

    def settle(self) -> None:
        """Gives the page the static forms as they are now, for the notebook's file.

        The display stays as it is, alive.
        """
        self._static = frontend.encoded(self.static_bundle())

    def freeze(self) -> None:
        """Replaces every live form by the static one.

        It needs neither a kernel nor widgets, and is what a saved notebook should
        hold. `show` brings the widget back.
        """
        displays, self._displays = self._displays, []
        for display_id in displays:
            frontend.publish(self.static_bundle(), {}, display_id=display_id, update=True)

    def vanish(self) -> None:
        """Takes every live form away, and ends the widget."""
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
