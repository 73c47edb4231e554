"""What a display of replicas' values shows: the values of a leaf, as the user's settings ask."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb.display.describe.replicas import MAX_PREVIEWS, Leaf, Section
from tpunb.display.describe.statistics import limits_of, sample_of, statistics_of
from tpunb.display.describe.values import ReplicaValue, preview_of_numbers
from tpunb.display.describe.views import MODES, ReplicaView, ViewRequest, replica_view

Array = npt.NDArray[Any]
Limits = tuple[float, float]

_DRAWINGS = {
    "values": ("table", "heat", "histogram"),
    "curve": ("curves", "heat", "histogram", "table"),
    "grid": ("heat", "histogram", "table"),
    "mixed": ("heat", "histogram", "table"),
    "images": ("images", "heat", "histogram", "table"),
}
MAX_ROWS = 256
"""The number of rows of a page of a table, which is sorted as a whole."""

_LOST = "The value is no longer there: run the cell again."


@dataclass(frozen=True, slots=True)
class Settings:
    """The user's settings for a leaf.

    Attributes:
        view: `"table"`, `"heat"`, `"histogram"`, `"images"` or `"curves"`.
        mode: `"values"`, `"difference"`, `"mean"`, `"sum"` or `"gather"`.
        reference: The position of the replica that is subtracted for differences.
        page: The number of the displayed page of replicas.
        slices: Positions on the first axes; empty for all axes at once.
    """

    view: str = ""
    mode: str = "values"
    reference: int = 0
    page: int = 0
    slices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Choices:
    """The settings that fit a leaf, and what else can be chosen.

    Attributes:
        settings: The settings, as far as they fit.
        modes: The possible modes.
        views: The possible views, the most suitable view first.
        sides: The lengths of the first axes, of which one slice can be shown.
        pages: The number of pages.
        page_size: The number of replicas on a page.
    """

    settings: Settings
    modes: tuple[str, ...]
    views: tuple[str, ...]
    sides: tuple[int, ...]
    pages: int
    page_size: int


@dataclass(frozen=True, slots=True)
class Scene:
    """Values to draw.

    Attributes:
        section: The leaf.
        values: The values.
        places: The position of each value's replica; -1 for a value of all replicas.
        limits: The ends of the scale that all values share.
        counts: The bins of each value's histogram, if it is drawn.
        mode: The mode of the settings.
    """

    section: Section
    values: tuple[ReplicaValue, ...]
    places: tuple[int, ...]
    limits: Limits
    counts: tuple[tuple[int, ...], ...] = ()
    mode: str = "values"

    def replicas(self, number: int) -> list[int]:
        """Return the ids of the replicas for which a value stands."""
        place = self.places[number]
        if place < 0 or not self.section.distributed:
            return []
        every = range(len(self.section.values))
        several = self.section.all_equal and len(self.values) == 1
        return [self.section.replica(each) for each in (every if several else [place])]


def first_scene(section: Section) -> Scene:
    """Return what is drawn without settings: the first replicas' values."""
    values = section.drawn_values
    limits = limits_of(value.statistics for value in values)
    return Scene(section, values, tuple(range(len(values))), limits)


def kind_of(values: Sequence[ReplicaValue]) -> str:
    """Return how values can be drawn: a preview's kind or `"mixed"`; empty without previews."""
    kinds = {value.preview.kind if value.preview else "" for value in values}
    return kinds.pop() if len(kinds) == 1 else "" if "" in kinds else "mixed"


def choices_of(section: Section, wished: Settings) -> Choices:
    """Return the settings that fit a leaf, and what else can be chosen."""
    kind, count = kind_of(section.drawn_values), len(section.values)
    computable = bool(kind) and _are_computable(section)
    modes = (*MODES, "gather") if computable and count > 1 else ("values",)
    mode = wished.mode if wished.mode in modes else "values"
    sides = _sliceable(section, kind) if computable else ()
    padded = [*wished.slices, *[0] * len(sides)] if wished.slices else []
    slices = tuple(_within(place, side) for place, side in zip(padded, sides, strict=False))
    views = _views(section, kind, mode, slices) if kind else ("table",)
    view = wished.view if wished.view in views else views[0]
    rows = view == "table" and mode == "values" and not slices
    size = MAX_ROWS if rows else MAX_PREVIEWS
    single = section.all_equal or mode not in ("values", "difference")
    pages = 1 if single else max(1, math.ceil(count / size))
    reference, page = _within(wished.reference, count), _within(wished.page, pages)
    settings = Settings(view, mode, reference, page, slices)
    return Choices(settings, modes, views, sides, pages, size)


def _within(place: int, count: int) -> int:
    return place if 0 <= place < count else 0


def _are_computable(section: Section) -> bool:
    """Return whether elements at the same place belong together on all replicas."""
    values = section.values
    return all(value.kind == "numeric" for value in values) or (
        all(value.kind == "ragged" and value.rows == values[0].rows for value in values)
    )


def _sliceable(section: Section, kind: str) -> tuple[int, ...]:
    """Return the lengths of the first axes, without those that a picture needs."""
    shapes = {value.shape for value in section.values}
    shape = shapes.pop()
    if shapes or not shape or not all(shape):
        return ()
    return tuple(side or 0 for side in shape[: max(0, len(shape) - (3 if kind == "images" else 2))])


def _views(section: Section, kind: str, mode: str, slices: tuple[int, ...]) -> tuple[str, ...]:
    first, *_ = shown = section.drawn_values
    sizes = [math.prod(value.preview.shape) for value in shown if value.preview]
    if not all(sizes) or (max(sizes) == 1 and mode != "gather"):
        return ("table",)
    views = list(_DRAWINGS[kind])
    if kind == "images" and mode not in ("values", "gather"):
        views.remove("images")
    if slices and len(first.shape or ()) - len(slices) == 1:
        views.insert(0, "curves")
    return tuple(views)


def scene_of(section: Section, leaf: Leaf | None, settings: Settings) -> Scene:
    """Return the values to draw.

    Args:
        section: The described leaf.
        leaf: The leaf itself; None if only its description is left.
        settings: Settings that fit the section.

    Raises:
        ValueError: The values do not allow this view, or they are no longer there.
        IndexError: A replica or a slice does not exist.
    """
    scene = _scene(section, leaf, settings)
    if settings.view == "heat" and kind_of(scene.values) == "images":
        return replace(scene, limits=(0.0, 255.0))  # the brightness of pixels
    return scene


def _scene(section: Section, leaf: Leaf | None, settings: Settings) -> Scene:
    mode, view = settings.mode, settings.view
    if mode == "gather":
        return _gathered(section, leaf, view)
    begin = settings.page * MAX_PREVIEWS
    end = 1 if section.all_equal else min(len(section.values), begin + MAX_PREVIEWS)
    everywhere = limits_of(value.statistics for value in section.values)
    if mode == "values" and not settings.slices and view != "histogram":
        if view == "table" and not section.all_equal:
            begin, end = 0, len(section.values)
        if view == "table" or not begin:
            return Scene(section, section.values[begin:end], tuple(range(begin, end)), everywhere)
    reduces, counts = mode in ("mean", "sum"), view == "histogram"
    request = ViewRequest(
        mode=mode,  # type: ignore[arg-type]  # gather is not requested
        reference=settings.reference,
        index=settings.slices,
        places=None if reduces else (begin, end),
        counts=counts,
    )
    computed = replica_view(_source(section, leaf), request)
    places = (-1,) if reduces else tuple(range(begin, end))
    values = _values(section, computed, places, settings)
    limits = computed.limits if counts else limits_of(value.statistics for value in values)
    if mode == "values" and not settings.slices and not counts:
        limits = everywhere
    if mode == "difference" and not counts:
        most = max(map(abs, limits))
        limits = -most, most
    return Scene(section, values, places, limits, computed.counts, mode)


def _source(section: Section, leaf: Leaf | None) -> Leaf:
    """Return a leaf to compute from: the value, or a small value's elements."""
    if leaf is not None and section.values[0].kind == "numeric":
        return leaf
    shown = section.drawn_values
    if not (section.all_equal or len(shown) == len(section.values)) or not all(map(_whole, shown)):
        raise ValueError(_LOST)
    parts = tuple(map(_elements, shown)) * (len(section.values) if section.all_equal else 1)
    return Leaf(section.path, section.type_name, parts, distributed=True)


def _elements(value: ReplicaValue) -> Array:
    assert value.preview is not None
    array = value.preview.array()
    sides = [side or 0 for side in value.shape or ()]
    return array if value.kind == "ragged" else array.reshape(sides)


def _whole(value: ReplicaValue) -> bool:
    """Return whether a value's preview has all of its elements as they are."""
    preview = value.preview
    if preview is None or preview.sampled or (preview.kind == "images" and value.dtype != "uint8"):
        return False
    sides = [side or 0 for side in value.shape or ()]
    return bool(value.rows) or math.prod(preview.shape) == math.prod(sides)


def _values(
    section: Section, view: ReplicaView, places: Sequence[int], settings: Settings
) -> tuple[ReplicaValue, ...]:
    values = []
    for place, (preview, statistics) in zip(places, view.values, strict=True):
        old = section.values[max(0, place)]
        shape = old.shape if old.shape is None else old.shape[len(settings.slices) :]
        dtype = old.dtype if settings.mode == "values" else np.dtype(preview.dtype).name
        values.append(
            replace(old, dtype=dtype, shape=shape, statistics=statistics, preview=preview, texts=())
        )
    return tuple(values)


def _gathered(section: Section, leaf: Leaf | None, view: str) -> Scene:
    """Return the first replicas' values one after the other along the first axis."""
    several = min(len(section.values), MAX_PREVIEWS) if section.all_equal else 1
    shown = section.drawn_values * several
    previews = [value.preview for value in shown if value.preview is not None]
    arrays = [np.atleast_1d(preview.array()) for preview in previews]
    if len({preview.kind for preview in previews}) + len({each.shape[1:] for each in arrays}) > 2:
        raise ValueError("Values can be gathered if they agree in all axes but the first.")
    joined = np.concatenate(arrays)
    first = shown[0]
    preview = replace(
        previews[0], shape=joined.shape, dtype=joined.dtype.str, data=joined.tobytes()
    )
    known = statistics_of(joined)
    if preview.kind == "values":
        sample = functools.partial(sample_of, joined)
        preview = preview_of_numbers(joined.shape, first.dtype, known, sample)
    shape = first.shape
    if shape is not None:
        shape = (sum(value.shape[0] or 0 if value.shape else 1 for value in shown), *shape[1:])
    rows = tuple(sum(axis, ()) for axis in zip(*(value.rows for value in shown), strict=True))
    statistics = known if all(map(_whole, shown)) else None
    value = replace(first, shape=shape, preview=preview, statistics=statistics, texts=(), rows=rows)
    if view != "histogram":
        limits = limits_of(value.statistics for value in section.values)
        return Scene(section, (value,), (-1,), limits, (), "gather")
    computed = replica_view(_source(section, leaf), ViewRequest(counts=True))
    counts = tuple(map(sum, zip(*computed.counts, strict=True)))
    return Scene(section, (value,), (-1,), computed.limits, (counts,), "gather")


def outliers_of(section: Section) -> set[int]:
    """Return the positions of replicas whose mean is far from the other means."""
    means = [value.statistics.mean if value.statistics else None for value in section.values]
    known = sorted(mean for mean in means if mean is not None)
    if len(known) < 3:
        return set()
    middle = known[len(known) // 2]
    spread = sorted(abs(mean - middle) for mean in known)[len(known) // 2]
    most = max(5 * spread, 1e-6 * abs(middle), 5e-324)
    far = {at for at, mean in enumerate(means) if mean is None or not abs(mean - middle) <= most}
    # If there are many, they are not outliers.
    return far if 4 * len(far) <= len(means) else set()
