"""Replica values as a front end gets them: a small header and packed numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb._util.units import grouped
from tpunb.display.describe.previews import Preview
from tpunb.display.describe.replicas import (
    MAX_PREVIEWS,
    ReplicaValue,
    ReplicaValuesDescription,
    Section,
)
from tpunb.display.describe.statistics import Statistics
from tpunb.display.describe.views import ReplicaView
from tpunb.display.draw import formats
from tpunb.display.widgets._packing import pack

__all__ = ["MOST_BYTES", "payload", "view_payload"]

MOST_BYTES = 1_500_000
"""Previews that take more are thinned out."""

_EXACT = 2**53
_STEP = re.compile(
    r"""\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\[\]'"]*)\]|\.[^.\[\]]+""", re.DOTALL
)

Array = npt.NDArray[Any]
Columns = dict[str, Array]
Header = dict[str, Any]


def payload(description: ReplicaValuesDescription) -> tuple[Header, bytes]:
    """What the widget sends to show a description.

    Args:
        description: Of any number of replicas and leaves.

    Returns:
        The header, which is JSON, and the columns that its `layout` describes.
    """
    columns: Columns = {}
    shown = [_shown(section) for section in description.sections]
    thin = _thinning(value.preview for values in shown for value in values if value.preview)
    sections = [
        _section(section, values, columns, prefix=f"{number}.", thin=thin)
        for number, (section, values) in enumerate(zip(description.sections, shown, strict=True))
    ]
    layout, data = pack(columns)
    return {
        "title": formats.replicas_title(description),
        "replicas": description.num_replicas,
        "omitted": description.omitted,
        "sections": sections,
        "layout": layout,
    }, data


def view_payload(view: ReplicaView) -> tuple[Header, bytes]:
    """What the widget answers when it was asked for a view."""
    columns: Columns = {}
    previews = [preview for preview, _ in view.values]
    block = _block(previews, columns, prefix="", thin=_thinning(previews))
    _add_statistics([statistics for _, statistics in view.values], columns, prefix="")
    if view.counts:
        columns["counts"] = np.asarray(view.counts, np.float64).reshape(-1)
    layout, data = pack(columns)
    return {"block": block, "limits": list(view.limits), "layout": layout}, data


def _thinning(previews: Iterable[Preview]) -> int:
    """Every which element to keep along both axes, so that there are not too many bytes."""
    size = sum(len(preview.data) for preview in previews)
    return math.ceil(math.sqrt(size / MOST_BYTES)) if size > MOST_BYTES else 1


def _shown(section: Section) -> tuple[ReplicaValue, ...]:
    """The values whose previews are sent: one is enough where all are equal."""
    return section.values[: 1 if section.all_equal else MAX_PREVIEWS]


def _section(
    section: Section, shown: Sequence[ReplicaValue], columns: Columns, *, prefix: str, thin: int
) -> Header:
    values = section.values
    previews = [value.preview for value in shown if value.preview]
    block = {}
    if previews and len(previews) == len(shown):
        block = _block(previews, columns, prefix=prefix, thin=thin)
        sizes = [math.prod(side or 0 for side in value.shape or ()) for value in shown]
        held = [math.prod(preview.shape) for preview in previews]
        block["whole"] = block["whole"] and held == sizes and _is_plain(shown)
    if any(value.statistics for value in values):
        _add_statistics([value.statistics for value in values], columns, prefix=prefix)
    if any(section.differs):
        columns[f"{prefix}differs"] = np.asarray(section.differs, np.uint8)
    shapes = _common([list(value.shape) if value.shape is not None else None for value in values])
    return {
        "path": section.path,
        "steps": _steps(section.path),
        "name": section.name,
        "type": section.type_name,
        "title": formats.section_title(section, alone=True),
        "distributed": section.distributed,
        "count": len(values),
        "ids": list(section.chosen),
        "kind": values[0].kind if values else "none",
        "dtypes": _common([value.dtype for value in values]),
        "shapes": shapes,
        "equal": section.all_equal if len(values) > 1 else None,
        "numeric": bool(block) and all(value.kind == "numeric" for value in values),
        "block": block,
        "texts": [_texts(value) for value in shown],
    }


def _is_plain(shown: Sequence[ReplicaValue]) -> bool:
    """Whether the previews hold the elements themselves, and not pixels made of them."""
    return all(
        value.preview is None or value.preview.kind != "images" or value.dtype == "uint8"
        for value in shown
    )


def _texts(value: ReplicaValue) -> list[str]:
    more = [f"… {grouped(value.omitted)} more"] if value.omitted > 0 else []
    return [*value.texts, *more]


def _steps(path: str) -> list[str]:
    """A path's steps, for a tree; one step where it cannot be told apart."""
    found = _STEP.findall(path)
    return found if "".join(found) == path else [path]


def _common(items: list[Any]) -> list[Any]:
    """One item instead of many that are equal."""
    return items[:1] if all(item == items[0] for item in items) else items


def _block(previews: Sequence[Preview], columns: Columns, *, prefix: str, thin: int) -> Header:
    """Describes previews and adds their elements as one column."""
    arrays = [_thinned(preview, thin) for preview in previews]
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
        "shapes": _common([list(array.shape) for array in arrays]),
        "steps": _common([_steps_of(preview, thin) for preview in previews]),
        "integral": joined.dtype.kind in "iub",
        "boolean": joined.dtype.kind == "b",
        "whole": not any(preview.sampled for preview in previews) and thin == 1,
        # Numbers of the front end are exact up to 2**53 only.
        "exact": [str(item) for item in joined.tolist()] if large else [],
    }


def _thinned(preview: Preview, step: int) -> Array:
    array = preview.array()
    if step == 1 or preview.kind == "values":
        return array
    if preview.kind == "images":
        return array[:, ::step, ::step]
    return array[(slice(None, None, step),) * array.ndim]


def _steps_of(preview: Preview, thin: int) -> list[int]:
    """Every so many elements are there along each axis, after thinning."""
    if thin == 1 or preview.kind == "values":
        return list(preview.steps)
    if preview.kind == "images":
        count, rows, columns, channels = preview.steps
        return [count, rows * thin, columns * thin, channels]
    return [step * thin for step in preview.steps]


def _add_statistics(
    statistics: Sequence[Statistics | None], columns: Columns, *, prefix: str
) -> None:
    """Adds a column for each of the statistics; of counts only if there are any."""
    for name in ("minimum", "mean", "maximum", "deviation"):
        columns[prefix + name] = np.array(
            [_known(getattr(item, name, None)) for item in statistics], np.float64
        )
    for name in ("nans", "infs"):
        counts = np.array([getattr(item, name, 0) for item in statistics], np.float64)
        if counts.any():
            columns[prefix + name] = counts


def _known(number: float | int | None) -> float:
    return math.nan if number is None else float(number)
