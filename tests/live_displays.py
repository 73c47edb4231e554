"""The gallery's displays for a page without a kernel, with the views that their controls ask for."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.displayed import know_per_replica
from support.gallery import WIDGETS

from tpunb.display.widgets.live_widget import LiveWidget

MOST_CHANGES = 2
"""The number of controls in which a recorded view may differ from the first view."""

LIVE = WIDGETS.keys() - {"pod"}
"""The displays that are alive; a view of a Pod takes seconds to draw."""

_TAG = re.compile(r"<(select|option|button|input)\b[^>]*")

Changes = frozenset[tuple[str, Any]]
"""The traits that differ from the first view, with their values."""


def scripts() -> Iterator[tuple[str, str]]:
    """Yield the name of each display, and the script that the page loads for it."""
    with pytest.MonkeyPatch.context() as patch:
        know_per_replica(patch)
        for name in sorted(LIVE):
            data = gzip.compress(json.dumps(recorded(WIDGETS[name]())).encode(), mtime=0)
            yield name, f'live("{name}", "{base64.b64encode(data).decode()}");\n'


def recorded(widget: LiveWidget) -> dict[str, Any]:
    """Return a widget's state, its buffers as base64, and its views by the values of `traits`."""
    state = {name: value for name, value in widget.get_state().items() if name != "layout"}
    buffers = {name: value for name, value in state.items() if isinstance(value, bytes)}
    traits, views = _Recorder(widget).views() if "html" in state else ([], {})
    if views:
        state["html"] = next(iter(views.values()))
    widget.close()
    return {
        "state": {name: value for name, value in state.items() if name not in buffers},
        "buffers": {name: base64.b64encode(value).decode() for name, value in buffers.items()},
        "traits": traits,
        "views": views,
    }


class _Recorder:
    """The views of a widget that Python draws."""

    def __init__(self, widget: LiveWidget) -> None:
        self._widget: Any = widget
        self._first = {name: getattr(widget, name) for name in widget.traits(sync=True)}
        self._drawn: dict[Changes, str] = {}

    def views(self) -> tuple[list[str], dict[str, str]]:
        """Return the traits that controls set, and the HTML by the texts of their values."""
        waiting = [Changes()]
        for changes in waiting:  # the list grows
            if changes not in self._drawn:
                self._drawn[changes] = html = self._draw(changes)
                following = (self._after(changes, *control) for _, *control in _controls(html))
                waiting += [each for each in following if each is not None]
        traits = sorted({trait for changes in self._drawn for trait, _ in changes})
        return traits, {
            ",".join(_text({**self._first, **dict(changes)}[name]) for name in traits): (
                self._with_live_controls(changes, html)
            )
            for changes, html in self._drawn.items()
        }

    def _draw(self, changes: Changes) -> str:
        with self._widget.hold_trait_notifications():
            for trait in {trait for known in (*self._drawn, changes) for trait, _ in known}:
                setattr(self._widget, trait, dict(changes).get(trait, self._first[trait]))
        return str(self._widget.html)

    def _after(self, changes: Changes, trait: str, text: str | None) -> Changes | None:
        """Return the changes after a use of a control; None if they are not recorded."""
        first = self._first[trait]
        if text is None:
            return None
        after = {**dict(changes), trait: type(first)(text)}
        kept = Changes((name, value) for name, value in after.items() if value != self._first[name])
        return kept if len(kept) <= MOST_CHANGES else None

    def _with_live_controls(self, changes: Changes, html: str) -> str:
        """Disable the controls that ask for a view that is not recorded."""
        parts, end = [], 0
        for tag, *control in _controls(html):
            if self._after(changes, *control) is None:
                parts += [html[end : tag.end()], " disabled"]
                end = tag.end()
        return "".join([*parts, html[end:]])


def _controls(html: str) -> Iterator[tuple[re.Match[str], str, str | None]]:
    """Yield the tag, the trait and the value of each choice; a field for a number has no value."""
    trait = ""
    for tag in _TAG.finditer(html):
        if tag[1] != "option":
            trait = _attribute(tag[0], "data-trait")
        if trait and tag[1] != "select":
            yield tag, trait, None if tag[1] == "input" else _attribute(tag[0], "value")


def _attribute(tag: str, name: str) -> str:
    found = re.search(rf' {name}="([^"]*)"', tag)
    return found[1] if found else ""


def _text(value: Any) -> str:
    """Return a value as JavaScript writes it."""
    return f"{value:g}" if isinstance(value, float) else str(value)
