"""The part of the replicas' values that a live display shows, by the user's settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb.display.describe.replicas import MAX_PREVIEWS, Leaf, Section
from tpunb.display.describe.statistics import limits_of, sample_of, statistics_of
from tpunb.display.describe.values import Preview, ReplicaValue, preview_of_numbers
from tpunb.display.describe.views import MODES, ReplicaView, ViewRequest, replica_view

Array = npt.NDArray[Any]

_DRAWINGS = {
    "values": ("numbers", "heat"),
    "curve": ("curves", "heat"),
    "grid": ("heat",),
    "images": ("images", "heat"),
}
_LOST = "The value is no longer there: run the cell again."


@dataclass(frozen=True, slots=True)
class Settings:
    """The user's settings.

    Attributes:
        section: The displayed leaf of a structure.
        view: `"numbers"`, `"heat"`, `"histogram"`, `"images"`, `"curves"`, `"table"` or `"text"`.
        mode: `"values"`, `"difference"`, `"mean"`, `"sum"` or `"gather"`.
        reference: The position of the replica that is subtracted for differences.
        page: The number of the displayed page of replicas.
        order: The column that the table is sorted by, with a minus for descending.
        slices: Positions on the first axes; empty for all axes at once.
    """

    section: int = 0
    view: str = ""
    mode: str = "values"
    reference: int = 0
    page: int = 0
    order: str = "replica"
    slices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Choices:
    """The settings that fit a section, and what else can be chosen.

    Attributes:
        settings: The settings, as far as they fit.
        modes: The possible modes.
        views: The possible views, the most suitable view first.
        depth: How many first axes can be held at a position.
        pages: The number of pages.
    """

    settings: Settings
    modes: tuple[str, ...]
    views: tuple[str, ...]
    depth: int
    pages: int


@dataclass(frozen=True, slots=True)
class Scene:
    """Values to draw.

    Attributes:
        values: The values.
        places: The position of each value's replica; -1 for a value of all replicas.
        limits: The ends of the scale that all values share.
        counts: The bins of each value's histogram, if it is drawn.
        exact: Whether all elements were read, and not only the sample.
    """

    values: tuple[ReplicaValue, ...]
    places: tuple[int, ...]
    limits: tuple[float, float]
    counts: tuple[tuple[int, ...], ...] = ()
    exact: bool = True


def choices_of(sections: Sequence[Section], wished: Settings) -> Choices:
    """Return the settings that fit, and what else can be chosen.

    Args:
        sections: The leaves, of which there is at least one.
        wished: The user's settings.
    """
    number = _within(wished.section, len(sections))
    section = sections[number]
    shown = section.drawn_values
    count, drawable = len(section.values), all(value.preview for value in shown)
    modes = (*MODES, "gather") if drawable and count > 1 else ("values",)
    mode = wished.mode if wished.mode in modes else "values"
    depth = _depth(section) if drawable else 0
    slices: tuple[int, ...] = ()
    if depth and wished.slices:
        padded = [*wished.slices, *[0] * depth][:depth]
        sides = shown[0].shape or ()
        slices = tuple(
            _within(place, side or 1) for place, side in zip(padded, sides, strict=False)
        )
    views = _views(section, mode, slices) if drawable else ("text",)
    if not drawable and any(value.statistics for value in section.values):
        views = ("text", "table")
    pages = 1 if section.all_equal else max(1, math.ceil(count / MAX_PREVIEWS))
    settings = Settings(
        number,
        wished.view if wished.view in views else views[0],
        mode,
        _within(wished.reference, count),
        _within(wished.page, pages),
        wished.order,
        slices,
    )
    return Choices(settings, modes, views, depth, pages)


def _within(place: int, count: int) -> int:
    return place if 0 <= place < count else 0


def _depth(section: Section) -> int:
    """Return how many first axes can be held: all axes that a picture does not need."""
    shapes = {value.shape for value in section.values}
    shape = next(iter(shapes))
    numeric = all(value.kind == "numeric" for value in section.values)
    if len(shapes) > 1 or not numeric or not shape or not all(shape):
        return 0
    return max(0, len(shape) - (3 if _kind(section) == "images" else 2))


def _kind(section: Section) -> str:
    kinds = {value.preview.kind for value in section.drawn_values if value.preview}
    return kinds.pop() if len(kinds) == 1 else "grid"


def _views(section: Section, mode: str, slices: tuple[int, ...]) -> tuple[str, ...]:
    first = section.drawn_values[0]
    kind = _kind(section)
    views: list[str] = list(_DRAWINGS[kind])
    if kind == "images" and mode not in ("values", "gather"):
        views.remove("images")
    if first.shape is not None and len(first.shape) - len(slices) == 1 and slices:
        views.insert(0, "curves")
    single = all(value.preview and math.prod(value.preview.shape) <= 1 for value in section.values)
    views = ["numbers"] if single and mode != "gather" else [*views, "histogram"]
    if any(value.texts for value in section.drawn_values):
        views.append("text")
    return (*dict.fromkeys(views), "table")


def scene_of(section: Section, leaf: Leaf | None, settings: Settings) -> Scene:
    """Return the values to draw.

    Args:
        section: The described leaf.
        leaf: The leaf itself; None if there are only samples.
        settings: Settings that fit the section.

    Raises:
        ValueError: The values do not allow this view, or only samples are left.
        IndexError: A replica or a slice does not exist.
    """
    begin = 0 if section.all_equal else settings.page * MAX_PREVIEWS
    end = 1 if section.all_equal else min(len(section.values), begin + MAX_PREVIEWS)
    if settings.mode == "gather":
        return _gathered(section, settings)
    reduces, counts = settings.mode in ("mean", "sum"), settings.view == "histogram"
    if settings.mode == "values" and not settings.slices and not counts and not begin:
        limits = limits_of(value.statistics for value in section.values)
        return Scene(section.drawn_values, tuple(range(end)), limits)
    request = ViewRequest(
        mode=settings.mode,  # type: ignore[arg-type]  # a mode of ViewRequest, unless it is gather
        reference=settings.reference,
        index=settings.slices,
        places=None if reduces else (begin, end),
        counts=counts,
    )
    source, exact = _source(section, leaf, settings)
    view = replica_view(source, request)
    places = (-1,) if reduces else tuple(range(begin, end))
    values = _values(section, view, places, settings)
    limits = view.limits if counts else limits_of(value.statistics for value in values)
    if settings.mode == "difference" and not counts:
        most = max(map(abs, limits))
        limits = -most, most
    return Scene(values, places, limits, view.counts, exact)


def _source(section: Section, leaf: Leaf | None, settings: Settings) -> tuple[Leaf, bool]:
    """Return a leaf to compute from, and whether it has all elements."""
    numeric = all(value.kind == "numeric" for value in section.values)
    pictures = _kind(section) == "images" and settings.mode != "values"
    if leaf is not None and numeric and not pictures:
        return leaf, True
    shown = section.drawn_values
    if not section.all_equal and len(section.values) > len(shown):
        raise ValueError(_LOST)
    whole = numeric and all(_is_whole(value) for value in shown)
    if settings.slices and not whole:
        raise ValueError(_LOST)
    parts = []
    for value in shown:
        assert value.preview is not None
        array = value.preview.array()
        if pictures and value.preview.kind == "images":
            array = array[..., :3].mean(-1)
        elif whole and value.shape is not None:
            array = array.reshape([side or 0 for side in value.shape])
        parts.append(array)
    if section.all_equal:
        parts *= len(section.values)
    return Leaf(section.path, section.type_name, tuple(parts), distributed=True), whole


def _is_whole(value: ReplicaValue) -> bool:
    """Return whether a value's preview has all of its elements as they are."""
    preview = value.preview
    if preview is None or preview.sampled or (preview.kind == "images" and value.dtype != "uint8"):
        return False
    return math.prod(preview.shape) == math.prod(side or 0 for side in value.shape or ())


def _values(
    section: Section, view: ReplicaView, places: Sequence[int], settings: Settings
) -> tuple[ReplicaValue, ...]:
    values = []
    for place, (preview, statistics) in zip(places, view.values, strict=True):
        described = section.values[max(0, place)]
        shape = described.shape
        if shape is not None and settings.slices:
            shape = shape[len(settings.slices) :]
        dtype = described.dtype if settings.mode == "values" else np.dtype(preview.dtype).name
        old = described.preview
        if old is not None and old.shape == preview.shape and not settings.slices:
            # Computed from a sample, whose elements have their places in the value.
            preview = replace(preview, kind=old.kind, steps=old.steps)
        values.append(
            replace(
                described,
                dtype=dtype,
                shape=shape,
                preview=preview,
                statistics=statistics,
                texts=(),
            )
        )
    return tuple(values)


def _gathered(section: Section, settings: Settings) -> Scene:
    """Return the first replicas' values one after the other along the first axis."""
    shown = section.drawn_values
    if section.all_equal:
        shown = shown * min(len(section.values), MAX_PREVIEWS)
    previews = [value.preview for value in shown if value.preview is not None]
    arrays = [np.atleast_1d(preview.array()) for preview in previews]
    if (
        len({(each.kind, array.shape[1:]) for each, array in zip(previews, arrays, strict=True)})
        > 1
    ):
        raise ValueError("Values can be gathered if they agree in all axes but the first.")
    joined = np.concatenate(arrays)
    kind, first = previews[0].kind, shown[0]
    statistics = statistics_of(joined)
    preview = Preview(kind, joined.shape, joined.dtype.str, joined.tobytes(), previews[0].steps)
    if kind == "values" and joined.size > MAX_PREVIEWS:

        def sample(lengths: Sequence[int], steps: Sequence[int]) -> Array:
            return sample_of(joined, lengths, steps)

        preview = preview_of_numbers(joined.shape, first.dtype, statistics, sample)
    shape = first.shape
    if shape is not None:
        sides = [value.shape[0] or 0 if value.shape else 1 for value in shown]
        shape = (sum(sides), *shape[1:])
    rows = first.rows
    if len(rows) == 1:
        rows = (tuple(itertools.chain.from_iterable(value.rows[0] for value in shown)),)
    value = replace(
        first, shape=shape, preview=preview, statistics=statistics, texts=first.texts[:0], rows=rows
    )
    counts: tuple[tuple[int, ...], ...] = ()
    limits = limits_of([statistics])
    if settings.view == "histogram":
        whole = Leaf(section.path, section.type_name, (joined,), distributed=True)
        view = replica_view(whole, ViewRequest(counts=True))
        counts, limits = view.counts, view.limits
    exact = len(shown) == len(section.values) and all(map(_is_whole, shown))
    return Scene((value,), (-1,), limits, counts, exact)


def odd_places(section: Section) -> list[int]:
    """Return the outliers: positions of replicas whose mean is far from the other means."""
    means = [value.statistics.mean if value.statistics else None for value in section.values]
    known = sorted(mean for mean in means if mean is not None)
    if len(known) < 3:
        return []
    middle = known[len(known) // 2]
    spreads = sorted(abs(mean - middle) for mean in known)
    most = max(5 * spreads[len(spreads) // 2], 1e-6 * abs(middle), 5e-324)
    odd = [
        place for place, mean in enumerate(means) if mean is None or not abs(mean - middle) <= most
    ]
    # If there are many, they are not outliers.
    return odd if 4 * len(odd) <= len(means) else []
