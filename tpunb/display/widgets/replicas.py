"""The live display of the replicas' values: heat maps, numbers, curves, images, statistics."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import traitlets

from tpunb._util.units import grouped
from tpunb.display.describe.replicas import (
    MAX_PREVIEWS,
    Leaf,
    ReplicaValuesDescription,
    Section,
    describe_leaves,
    leaves_of,
)
from tpunb.display.describe.statistics import Statistics, limits_of
from tpunb.display.describe.values import Preview, ReplicaValue
from tpunb.display.describe.views import MODES, ReplicaView, ViewRequest, replica_view
from tpunb.display.draw.placement_html import placement_html
from tpunb.display.draw.replicas_text import common_facts, replicas_title, sampled_note
from tpunb.display.draw.static_forms import mimebundle
from tpunb.display.widgets.live_widget import Bundle, LiveWidget
from tpunb.display.widgets.page_data import es_module, pack

MOST_BYTES = 1_500_000
"""The largest size of previews; larger previews are thinned out."""

_EXACT = 2**53
_STEP = re.compile(
    r"""\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\[\]'"]*)\]|\.[^.\[\]]+""", re.DOTALL
)

Array = npt.NDArray[Any]
Columns = dict[str, Array]
Header = dict[str, Any]


def payload(description: ReplicaValuesDescription) -> tuple[Header, bytes]:
    """Return the message that shows a description.

    Args:
        description: A description of any number of replicas and leaves.

    Returns:
        The header, which is JSON, and the columns that its `layout` describes.
    """
    columns: Columns = {}
    shown = [section.drawn_values for section in description.sections]
    thin = _thinning(value.preview for values in shown for value in values if value.preview)
    sections = [
        _section(section, values, columns, prefix=f"{number}.", thin=thin)
        for number, (section, values) in enumerate(zip(description.sections, shown, strict=True))
    ]
    layout, data = pack(columns)
    placement = description.placement
    return {
        "title": replicas_title(description),
        "replicas": description.num_replicas,
        "omitted": description.omitted,
        "sections": sections,
        "placement": "" if placement is None else placement_html(placement),
        "unread": description.unread,
        "layout": layout,
    }, data


def view_payload(view: ReplicaView) -> tuple[Header, bytes]:
    """Return the answer to a request for a view."""
    columns: Columns = {}
    previews = [preview for preview, _ in view.values]
    block = _block(previews, columns, prefix="", thin=_thinning(previews))
    _add_statistics([statistics for _, statistics in view.values], columns, prefix="")
    if view.counts:
        columns["counts"] = np.asarray(view.counts, np.float64).reshape(-1)
    layout, data = pack(columns)
    return {"block": block, "limits": list(view.limits), "layout": layout}, data


def _thinning(previews: Iterable[Preview]) -> int:
    """Return the step between kept elements along both axes that limits the bytes."""
    size = sum(len(preview.data) for preview in previews)
    return math.ceil(math.sqrt(size / MOST_BYTES)) if size > MOST_BYTES else 1


def _section(
    section: Section, shown: Sequence[ReplicaValue], columns: Columns, *, prefix: str, thin: int
) -> Header:
    values = section.values
    previews = [value.preview for value in shown if value.preview]
    block = {}
    if previews and len(previews) == len(shown):
        block = _block(previews, columns, prefix=prefix, thin=thin)
        sizes = [math.prod(side or 0 for side in value.shape or ()) for value in shown]
        counts = [math.prod(preview.shape) for preview in previews]
        # The previews may hold the elements themselves, or pixels made from them.
        pixels = any(
            preview.kind == "images" and value.dtype != "uint8"
            for preview, value in zip(previews, shown, strict=True)
        )
        block["whole"] = block["whole"] and counts == sizes and not pixels
    if any(value.statistics for value in values):
        _add_statistics([value.statistics for value in values], columns, prefix=prefix)
    if any(section.differs):
        columns[f"{prefix}differs"] = np.asarray(section.differs, np.uint8)
    # A path's steps, for a tree; a single step if the path cannot be split.
    steps = _STEP.findall(section.path)
    shapes = _common([list(value.shape) if value.shape is not None else None for value in values])
    return {
        "path": section.path,
        "steps": steps if "".join(steps) == section.path else [section.path],
        "name": section.name,
        "type": section.type_name,
        "facts": common_facts(section),
        "distributed": section.distributed,
        "count": len(values),
        "ids": list(section.chosen),
        "kind": values[0].kind if values else "none",
        "dtypes": _common([value.dtype for value in values]),
        "shapes": shapes,
        "equal": section.all_equal if len(values) > 1 and not section.is_cut else None,
        "differing": section.num_differing,
        "marks_differing": section.marks_differing,
        "limits": limits_of(value.statistics for value in values),
        "numeric": bool(block) and all(value.kind == "numeric" for value in values),
        "block": block,
        "texts": [
            [*value.texts, *([f"… {grouped(value.omitted)} more"] if value.omitted > 0 else [])]
            for value in shown
        ],
        "rows": [value.rows[-1] for value in shown if value.rows],
    }


def _common(items: list[Any]) -> list[Any]:
    """Return one item instead of many that are equal."""
    return items[:1] if all(item == items[0] for item in items) else items


def _block(previews: Sequence[Preview], columns: Columns, *, prefix: str, thin: int) -> Header:
    """Describe previews and add their elements as one column."""
    arrays, steps = [], []
    for preview in previews:
        strides = [1 if preview.kind == "values" else thin] * len(preview.shape)
        if preview.kind == "images":  # the number of images and channels is kept
            strides[0] = strides[-1] = 1
        arrays.append(preview.array()[tuple(slice(None, None, stride) for stride in strides)])
        pairs = zip(preview.steps, strides, strict=False)
        steps.append([step * stride for step, stride in pairs])
    kinds = {preview.kind for preview in previews}
    flat = [array.reshape(-1) for array in arrays]
    joined = np.concatenate(flat) if flat else np.zeros(0)
    small = kinds == {"values"}
    if joined.dtype.kind == "f" and not small:
        with np.errstate(over="ignore"):
            joined = joined.astype(np.float32)
    columns[f"{prefix}preview"] = joined
    exact = small and joined.dtype.kind in "iu" and joined.size
    large = exact and max(abs(int(joined.min())), abs(int(joined.max()))) >= _EXACT
    return {
        "kind": kinds.pop() if len(kinds) == 1 else "mixed",
        "kinds": _common([preview.kind for preview in previews]),
        "count": len(previews),
        "shapes": _common([list(array.shape) for array in arrays]),
        "steps": _common(steps),
        "sampled": _common(list(map(sampled_note, (each.kind for each in previews), steps))),
        "integral": joined.dtype.kind in "iub",
        "boolean": joined.dtype.kind == "b",
        "whole": not any(preview.sampled for preview in previews) and thin == 1,
        # JavaScript's numbers are exact only up to 2**53.
        "exact": [str(item) for item in joined.tolist()] if large else [],
    }


def _add_statistics(
    statistics: Sequence[Statistics | None], columns: Columns, *, prefix: str
) -> None:
    """Add a column for each of the statistics; columns of counts only if there are any."""
    for name in ("minimum", "mean", "maximum", "deviation"):
        # None becomes NaN.
        columns[prefix + name] = np.array(
            [getattr(item, name, None) for item in statistics], np.float64
        )
    for name in ("nans", "infs"):
        counts = np.array([getattr(item, name, 0) for item in statistics], np.float64)
        if counts.any():
            columns[prefix + name] = counts


class ReplicasWidget(LiveWidget):
    """The values of the replicas, with a panel for each.

    The front end gets a sample of large values. A difference, a slice or another view that needs
    all elements is computed on the elements' device when the page requests it. Therefore the widget
    holds the value until it is frozen or closed.

    Args:
        value: A value for `describe_replica_values`; or its description, and then
            the widget has only samples.
        link: Widgets with the same link share their selection.
        **state: Other traits.

    Attributes:
        header: The description's structure, as JSON.
        data: The description's numbers, packed.
        section: The displayed leaf of a structure.
        view: The view: `"numbers"`, `"heat"`, `"histogram"`, `"images"`, `"curves"`,
            `"table"` or `"text"`; empty to choose a view automatically.
        mode: The displayed values: `"values"`, `"difference"`, `"mean"`, `"sum"` or `"gather"`.
        reference: The position of the replica that is subtracted for differences.
        page: The number of the displayed page of 64 replicas.
        order: The column that the table is sorted by, with a minus for descending.
        slices: Positions on the first axes; empty for all axes at once.
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
        """Show another value in the same place; settings that still fit stay.

        Args:
            value: The same types as for the class.
        """
        before = [part["path"] for part in self.header["sections"]]
        self.description = self._described(value)
        header, data = self._payload()
        with self.hold_sync():
            self.header, self.data = header, data
            self._keep_settings(before)
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
        if self._leaves:
            self._leaves = []
            self.header = {**self.header, "live": False}

    def close(self) -> None:
        """End the widget, and drop the reference to the value."""
        self._leaves = []
        super().close()

    def _described(self, value: Any) -> ReplicaValuesDescription:
        if isinstance(value, ReplicaValuesDescription):
            self._leaves = []
            return value
        self._leaves, omitted = leaves_of(value)
        return describe_leaves(value, self._leaves, omitted)

    def _payload(self) -> tuple[dict[str, Any], bytes]:
        header, data = payload(self.description)
        return {**header, "live": bool(self._leaves)}, data

    def _keep_settings(self, before: list[str]) -> None:
        """Follow the displayed leaf, and drop positions that no longer exist."""
        after = [part["path"] for part in self.header["sections"]]
        path = before[self.section] if self.section < len(before) else None
        self.section = after.index(path) if path in after else 0
        count = self.header["sections"][self.section]["count"] if after else 0
        if self.reference >= count:
            self.reference = 0
        if self.page * MAX_PREVIEWS >= count:
            self.page = 0
        self.selected = [replica for replica in self.selected if replica < max(count, 1)]

    def _on_request(self, _widget: Any, content: Any, _buffers: Any) -> None:
        """Answer a view's request, with the error message if it fails."""
        if not isinstance(content, dict) or content.get("request") != "view":
            return
        answer = {"answer": content.get("id")}
        try:
            number, mode, places = int(content["section"]), content["mode"], content.get("places")
            if not 0 <= number < len(self._leaves):
                raise ValueError("The value is no longer there: run the cell again.")
            if mode not in MODES:
                raise ValueError(f"There is no view called {mode!r}.")
            request = ViewRequest(
                mode=mode,
                reference=int(content.get("replica", 0)),
                index=tuple(map(int, content.get("slice", ()))),
                places=(int(places[0]), int(places[1])) if places else None,
                counts=bool(content.get("counts")),
            )
            header, data = view_payload(replica_view(self._leaves[number], request))
        except Exception as error:
            self.send({**answer, "error": str(error) or type(error).__name__})
        else:
            self.send({**answer, **header}, [data])
