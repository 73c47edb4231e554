"""The live display of the replicas' values: heat maps, numbers, curves, images, statistics."""

from __future__ import annotations

import contextlib
from typing import Any

import traitlets

from tpunb.display.describe.replica_scene import Scene, Settings, choices_of, scene_of
from tpunb.display.describe.replicas import (
    MAX_PREVIEWS,
    Leaf,
    ReplicaValuesDescription,
    describe_leaves,
    leaves_of,
)
from tpunb.display.draw.replicas.elements import element_at
from tpunb.display.draw.replicas.page import empty_page, replicas_page
from tpunb.display.draw.static_forms import mimebundle
from tpunb.display.widgets.live_widget import Bundle, LiveWidget
from tpunb.display.widgets.page_data import es_module

_SETTINGS = ("view", "mode", "reference", "page", "slices")


class ReplicasWidget(LiveWidget):
    """The values of the replicas, with a panel or a row for each.

    The page gets pictures of samples of large values. A difference, a slice or another view that
    needs all elements is computed on the elements' device when the page asks for it. Therefore the
    widget holds the value until it is frozen or closed.

    Args:
        value: A value for `describe_replica_values`; or its description, and then
            the widget has only samples.
        link: Widgets with the same link share their selection.
        **state: Other traits.

    Attributes:
        html: The page.
        section: The displayed leaf of a structure.
        view: The view: `"table"`, `"heat"`, `"histogram"`, `"images"` or `"curves"`;
            empty to choose a view automatically.
        mode: The displayed values: `"values"`, `"difference"`, `"mean"`, `"sum"` or `"gather"`.
        reference: The position of the replica that is subtracted for differences.
        page: The number of the displayed page of 64 replicas.
        order: The column that the table is sorted by, with a minus for descending.
        slices: Positions on the first axes; empty for all axes at once.
        pointed: The place in a picture that the page points at; empty for none.
        told: The element at this place on every replica.
    """

    _esm = es_module("replicas.js")

    html = traitlets.Unicode().tag(sync=True)
    section = traitlets.Int(0).tag(sync=True)
    view = traitlets.Unicode("").tag(sync=True)
    mode = traitlets.Unicode("values").tag(sync=True)
    reference = traitlets.Int(0).tag(sync=True)
    page = traitlets.Int(0).tag(sync=True)
    order = traitlets.Unicode("replica").tag(sync=True)
    slices = traitlets.List(traitlets.Int()).tag(sync=True)
    pointed = traitlets.Dict().tag(sync=True)
    told = traitlets.Dict().tag(sync=True)

    def __init__(self, value: Any, *, link: str = "", **state: Any) -> None:
        self._leaves: list[Leaf] = []
        self._shown: tuple[Settings, Scene] | None = None
        self.description = self._described(value)
        super().__init__(link=link, **state)
        self.observe(self._draw, ["section", "order", *_SETTINGS])
        self.observe(self._tell, "pointed")

    def update(self, value: Any) -> bool:
        """Show another value in the same place; settings that still fit stay.

        Args:
            value: The same types as for the class.
        """
        before = [section.path for section in self.description.sections]
        self.description = self._described(value)
        with self.hold_trait_notifications():
            self._keep_settings(before)
        self._draw()
        return True

    def static_bundle(self) -> Bundle:
        """Return the static forms of the value, by MIME type."""
        return dict(mimebundle(self.description))

    def freeze(self) -> None:
        """Replace the widget by its static form, and drop the reference to the value."""
        super().freeze()
        self.release()

    def release(self) -> None:
        """Drop the reference to the value; from now on the widget has only samples."""
        self._leaves = []

    def close(self) -> None:
        """End the widget, and drop the reference to the value."""
        self.release()
        super().close()

    def _described(self, value: Any) -> ReplicaValuesDescription:
        if isinstance(value, ReplicaValuesDescription):
            self._leaves = []
            return value
        self._leaves, omitted = leaves_of(value)
        return describe_leaves(value, self._leaves, omitted)

    def _keep_settings(self, before: list[str]) -> None:
        """Follow the displayed leaf, and drop positions that no longer exist."""
        sections = self.description.sections
        after = [section.path for section in sections]
        path = before[self.section] if self.section < len(before) else None
        self.section = after.index(path) if path in after else 0
        count = len(sections[self.section].values) if after else 0
        if self.reference >= count:
            self.reference = 0
        if self.page * MAX_PREVIEWS >= count:
            self.page = 0
        self.selected = [replica for replica in self.selected if replica < max(count, 1)]

    @traitlets.default("html")
    def _drawn(self) -> str:
        """Return the page, and keep what it shows."""
        sections, self._shown = self.description.sections, None
        if not sections:
            return empty_page(self.description)
        number = self.section if 0 <= self.section < len(sections) else 0
        section = sections[number]
        wished = {name: getattr(self, name) for name in _SETTINGS}
        choices = choices_of(section, Settings(**{**wished, "slices": tuple(self.slices)}))
        scene: Scene | str
        try:
            leaf = self._leaves[number] if self._leaves else None
            scene = scene_of(section, leaf, choices.settings)
            self._shown = choices.settings, scene
        except Exception as error:
            scene = str(error) or type(error).__name__
        return replicas_page(self.description, number, choices, scene, self.order)

    def _draw(self, _: Any = None) -> None:
        self.html = self._drawn()
        self._tell()

    def _tell(self, _: Any = None) -> None:
        """Tell the page what it points at; nothing if the place is no longer there."""
        told: dict[str, Any] = {}
        settings, scene = self._shown or (Settings("table"), None)
        if self.pointed and settings.view != "table" and scene:
            with contextlib.suppress(ArithmeticError, LookupError, TypeError, ValueError):
                told = element_at(scene, settings, self.pointed)
        self.told = told
