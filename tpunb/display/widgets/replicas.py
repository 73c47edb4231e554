"""What each replica holds, live: heat maps, numbers, curves, images, statistics."""

from __future__ import annotations

from typing import Any

import traitlets

from tpunb.display.describe.leaves import Leaf, leaves_of
from tpunb.display.describe.replicas import ReplicaValuesDescription, describe_leaves
from tpunb.display.describe.views import MODES, ViewRequest, replica_view
from tpunb.display.draw.bundle import mimebundle
from tpunb.display.widgets._base import Bundle, LiveWidget
from tpunb.display.widgets._modules import es_module
from tpunb.display.widgets._replicas_payload import payload, view_payload

__all__ = ["ReplicasWidget"]


class ReplicasWidget(LiveWidget):
    """Shows what each replica holds, a panel for each.

    A sample of large values is sent to the front end. What needs all elements, such
    as a difference or a slice, is computed where they are when a view requests it;
    for that the widget holds the value until it is frozen or closed.

    Args:
        value: Whatever `describe_replica_values` takes; or its description, and then
            there are only samples.
        link: Widgets with the same link share their selection.
        **state: Other traits.

    Attributes:
        header: What there is, as JSON.
        data: Its numbers, packed.
        section: Which leaf of a structure is shown.
        view: How: `"numbers"`, `"heat"`, `"histogram"`, `"images"`, `"curves"`,
            `"table"` or `"text"`; empty for what suits.
        mode: What of it: `"values"`, `"difference"`, `"mean"`, `"sum"` or `"gather"`.
        reference: The place of the replica that differences are to.
        page: Which 64 replicas are shown.
        order: The column that the table is sorted by, with a minus for descending.
        slices: Places on the first axes; empty for all axes at once.
    """

    _esm = es_module("replicas.js")

    header = traitlets.Dict().tag(sync=True)
    data = traitlets.Bytes().tag(sync=True)
    section = traitlets.Int(0).tag(sync=True)
    view = traitlets.Unicode("").tag(sync=True)
    mode = traitlets.Unicode("values").tag(sync=True)
    reference = traitlets.Int(0).tag(sync=True)
    page = traitlets.Int(0).tag(sync=True)
    order = traitlets.Unicode("replica").tag(sync=True)
    slices = traitlets.List(traitlets.Int()).tag(sync=True)

    def __init__(self, value: Any, *, link: str = "", **state: Any) -> None:
        self._leaves: list[Leaf] = []
        self.description = self._described(value)
        header, data = self._payload()
        super().__init__(header=header, data=data, link=link, **state)
        self.on_msg(self._on_request)

    def update(self, value: Any) -> bool:
        """Shows another value in the same place; settings stay where they make sense.

        Args:
            value: As for the class.
        """
        before = [part["path"] for part in self.header["sections"]]
        self.description = self._described(value)
        header, data = self._payload()
        with self.hold_sync():
            self.header, self.data = header, data
            self._keep_settings(before)
        return True

    def static_bundle(self) -> Bundle:
        """The static forms of the value, by MIME type."""
        return dict(mimebundle(self.description))

    def freeze(self) -> None:
        """Replaces the widget by its static form, and drops the reference to the value."""
        super().freeze()
        self.release()

    def release(self) -> None:
        """Drops the reference to the value: from now on there are samples only."""
        if self._leaves:
            self._leaves = []
            self.header = {**self.header, "live": False}

    def close(self) -> None:
        """Ends the widget, and drops the reference to the value."""
        self._leaves = []
        super().close()

    def _described(self, value: Any) -> ReplicaValuesDescription:
        if isinstance(value, ReplicaValuesDescription):
            self._leaves = []
            return value
        self._leaves, omitted = leaves_of(value)
        return describe_leaves(type(value).__name__, self._leaves, omitted)

    def _payload(self) -> tuple[dict[str, Any], bytes]:
        header, data = payload(self.description)
        return {**header, "live": bool(self._leaves)}, data

    def _keep_settings(self, before: list[str]) -> None:
        """Follows the leaf that was shown, and drops places that are no more."""
        after = [part["path"] for part in self.header["sections"]]
        path = before[self.section] if self.section < len(before) else None
        self.section = after.index(path) if path in after else 0
        count = self.header["sections"][self.section]["count"] if after else 0
        if self.reference >= count:
            self.reference = 0
        if self.page * 64 >= count:
            self.page = 0
        self.selected = [replica for replica in self.selected if replica < max(count, 1)]

    def _on_request(self, _widget: Any, content: Any, _buffers: Any) -> None:
        """Answers a view's request, with the error message if it fails."""
        if not isinstance(content, dict) or content.get("request") != "view":
            return
        answer = {"answer": content.get("id")}
        try:
            header, data = self._answer(content)
        except Exception as error:
            self.send({**answer, "error": str(error) or type(error).__name__})
        else:
            self.send({**answer, **header}, [data])

    def _answer(self, content: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        number = int(content["section"])
        if not 0 <= number < len(self._leaves):
            raise ValueError("The value is no longer there: run the cell again.")
        mode = content["mode"]
        if mode not in MODES:
            raise ValueError(f"There is no view called {mode!r}.")
        places = content.get("places")
        request = ViewRequest(
            mode=mode,
            reference=int(content.get("replica", 0)),
            index=tuple(map(int, content.get("slice", ()))),
            places=(int(places[0]), int(places[1])) if places else None,
            counts=bool(content.get("counts")),
        )
        return view_payload(replica_view(self._leaves[number], request))
