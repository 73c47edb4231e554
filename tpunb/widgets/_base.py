"""What all widgets have in common: a live form, a static one, and the way between."""

from __future__ import annotations

import uuid
from typing import Any

import anywidget
import traitlets

from tpunb.widgets import frontend
from tpunb.widgets._modules import styles

__all__ = ["LiveWidget"]

Bundle = dict[str, Any]


class LiveWidget(anywidget.AnyWidget):
    """A display that is live where it can be, and static everywhere else.

    Attributes:
        link: Widgets with the same link share a selection: those of a connection.
        selected: Ids of the replicas that are selected, in any of them.
    """

    _css = styles("style.css")

    link = traitlets.Unicode("").tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)
    # A front end does not tell a widget's module which model it runs.
    _live_id = traitlets.Unicode("").tag(sync=True)

    def __init__(self, **state: Any) -> None:
        model_id = uuid.uuid4().hex
        self._displays: list[str] = []
        self._shown_in: int | None = None
        super().__init__(model_id=model_id, _live_id=model_id, **state)

    def update(self, value: Any) -> bool:
        """Shows another value in place, if the widget can.

        Returns:
            Whether it does; if not, a new widget is needed.
        """
        del value
        return False

    def static_bundle(self) -> Bundle:
        """The static forms of what the widget shows now, by MIME type."""
        raise NotImplementedError

    def live_bundle(self) -> tuple[Bundle, Bundle]:
        """The live form with the static ones beside it, and their metadata."""
        live, metadata = anywidget.AnyWidget._repr_mimebundle_(self) or ({}, {})
        # The mark tells saving.js which outputs are ours.
        return {**live, **self.static_bundle()}, {**metadata, "tpunb": {}}

    def show(self) -> None:
        """Shows the widget, alive."""
        display_id = uuid.uuid4().hex
        self._displays.append(display_id)
        live = self.live_bundle() if frontend.shows_widgets() else (self.static_bundle(), {})
        frontend.publish(*live, display_id=display_id, update=False)

    def show_once(self) -> None:
        """Shows the widget now, and not again where it is the value of the same cell."""
        self.show()
        self._shown_in = frontend.execution()

    def freeze(self) -> None:
        """Puts the static form in the place of every live one.

        It needs neither a kernel nor widgets, and is what a saved notebook should
        hold. `show` brings the widget back.
        """
        displays, self._displays = self._displays, []
        for display_id in displays:
            frontend.publish(self.static_bundle(), {}, display_id=display_id, update=True)

    def _ipython_display_(self) -> None:
        shown_in, self._shown_in = self._shown_in, None
        if shown_in is None or shown_in != frontend.execution():
            self.show()

    def __repr__(self) -> str:
        return str(self.static_bundle()["text/plain"])
