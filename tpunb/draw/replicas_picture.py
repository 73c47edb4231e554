"""Replica values as a picture: a panel for each replica on one scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpunb.describe.replicas import MAX_PREVIEWS, ReplicaValue, ReplicaValuesDescription, Section
from tpunb.draw import wording
from tpunb.draw.canvas import HOST_COLOURS, INK, MUTED, Canvas, drawable, new_canvas
from tpunb.draw.pixels import (
    INF_COLOUR,
    NAN_COLOUR,
    Array,
    Pixels,
    colour_map,
    coloured,
    is_signed,
    limits_of,
    preview_of,
    tiled,
)

__all__ = ["replicas_png"]

_WIDTH = 900
_MARGIN = 18
_ROOM = _WIDTH - 2 * _MARGIN
_GAP = 12
_LINE = 17
_CURVE_HEIGHT = 190
_MAX_SECTIONS = 12
_MAX_LINES = 16
_FRAME = "#c4cad0"


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of the page: how high it is and how to draw it at a height."""

    height: float
    draw: Callable[[Canvas, float], None]


def replicas_png(description: ReplicaValuesDescription) -> bytes:
    """Draws replica values as a PNG of 900 pixels' width.

    Args:
        description: What to draw. Matrices become heat maps, images images and
            long vectors curves, a panel or line for each of up to 64 replicas on
            one scale; where all replicas are equal there is one panel.

    Returns:
        The PNG file; the same description gives the same bytes.
    """
    alone = len(description.sections) == 1
    parts = [_text_part(wording.replicas_title(description), size=16, bold=True, height=28)]
    for section in description.sections[:_MAX_SECTIONS]:
        parts += _section_parts(section, alone=alone)
    more = description.omitted + max(0, len(description.sections) - _MAX_SECTIONS)
    if more:
        parts.append(_text_part(f"and {more} more"))
    height = 2 * _MARGIN + sum(part.height for part in parts)
    with new_canvas(_WIDTH, height) as canvas:
        top: float = _MARGIN - 4
        for part in parts:
            part.draw(canvas, top)
            top += part.height
        return canvas.png()


def _text_part(
    text: str, *, size: float = 12, bold: bool = False, mono: bool = False, height: float = _LINE
) -> _Part:
    def draw(canvas: Canvas, top: float) -> None:
        safe = _known_glyphs(text)
        canvas.text(_MARGIN, top, safe, size=size, colour=INK, bold=bold, mono=mono)

    return _Part(height, draw)


def _known_glyphs(text: str) -> str:
    """Text that may hold data's characters; ours are kept."""
    return "".join(char if char in "·–…≠×" else drawable(char) for char in text)[:130]


def _section_parts(section: Section, *, alone: bool) -> list[_Part]:
    values = section.values[:1] if section.all_equal else section.values[:MAX_PREVIEWS]
    kinds = {value.preview.kind if value.preview else "" for value in values}
    kind = kinds.pop() if len(kinds) == 1 else ""
    title = wording.section_title(section, alone=alone and section.distributed)
    parts = [_text_part(" · ".join(filter(None, [title, _sampled(values[0])])), bold=not alone)]
    if kind in ("grid", "images"):
        parts += _panel_parts(section, values, images=kind == "images")
    elif kind == "curve":
        parts += _curve_parts(section, values)
    else:
        parts += _line_parts(section, values)
    more = len(section.values) - len(values)
    if more and not section.all_equal:
        parts.append(_text_part(f"and {more} more"))
    return [*parts, _Part(10, lambda canvas, top: None)]


def _sampled(value: ReplicaValue) -> str:
    """What was left out of a picture."""
    preview = value.preview
    if preview is None or not preview.sampled:
        return ""
    if preview.kind == "curve":
        return f"1 in {preview.steps[0]} points drawn"
    rows, columns = preview.steps[-3:-1] if preview.kind == "images" else preview.steps
    return f"1 in {rows} rows and 1 in {columns} columns drawn"


def _caption(section: Section, replica: int, *, short: bool = False) -> str:
    """Which replica this is, and how it compares with replica 0."""
    if not section.distributed:
        return ""
    if section.all_equal:
        return "every replica"
    caption = f"replica {section.replica(replica)}"
    other = f"{'r' if short else 'replica '}{section.replica(0)}"
    # Whichever is rarer is the news: to be equal or to differ.
    rarely_differs = sum(section.differs) <= len(section.differs) // 2
    if rarely_differs and section.differs[replica]:
        return f"{caption} ≠ {other}"
    if replica and not rarely_differs and not section.differs[replica]:
        return f"{caption} = {other}"
    return caption


def _line_parts(section: Section, values: Sequence[ReplicaValue]) -> list[_Part]:
    """Small values and those without a picture, a line each."""
    lines = []
    for replica, value in enumerate(values[:_MAX_LINES]):
        parts = (
            _caption(section, replica),
            wording.nested_values(value)[:80],
            "" if value.shape == () else wording.facts(value.statistics),
            wording.flags(value.statistics),
        )
        lines.append(_text_part("  ".join(filter(None, parts)), mono=True, size=11))
    if len(values) > _MAX_LINES:
        lines.append(_text_part(f"and {len(values) - _MAX_LINES} more"))
    return lines


def _columns(count: int) -> int:
    if count <= 4:
        return count
    return min(8, math.ceil(math.sqrt(1.5 * count)))


def _panel_parts(section: Section, values: Sequence[ReplicaValue], *, images: bool) -> list[_Part]:
    """Heat maps or images on a grid, and the scale below."""
    count = len(values)
    columns = _columns(count)
    limits = limits_of(values)
    pixels = [tiled(preview_of(value)) if images else coloured(value, limits) for value in values]
    width = min(300.0 if images else 260.0, (_ROOM - (columns - 1) * _GAP) / columns)
    ratio = max(panel.shape[0] / panel.shape[1] for panel in pixels)
    height = width * min(1.2, max(0.25, ratio))
    roomy = width > 150
    captions = 18 + (32 if roomy else 0)

    def draw(canvas: Canvas, top: float) -> None:
        for number, panel in enumerate(pixels):
            left = _MARGIN + (number % columns) * (width + _GAP)
            at = top + (number // columns) * (height + captions)
            caption = _caption(section, number, short=not roomy)
            canvas.text(left, at + 1, caption, size=11 if width > 85 else 9, bold=True)
            _draw_panel(canvas, panel, (left, at + 17, width, height), keep=images)
            if roomy:
                _draw_facts(canvas, values[number], left, at + 20 + height)

    rows = math.ceil(count / columns)
    parts = [_Part(rows * (height + captions), draw)]
    return parts if images else [*parts, _scale_part(values, limits)]


def _draw_panel(
    canvas: Canvas, panel: Pixels, box: tuple[float, float, float, float], *, keep: bool
) -> None:
    left, top, width, height = box
    if keep:
        # An image keeps its proportions.
        scale = min(width / panel.shape[1], height / panel.shape[0])
        width, height = panel.shape[1] * scale, panel.shape[0] * scale
    canvas.image(panel, (left, top, width, height))
    canvas.boxes([(left, top)], (width, height), fills=["none"], edges=[_FRAME], layer=2)


def _draw_facts(canvas: Canvas, value: ReplicaValue, left: float, top: float) -> None:
    canvas.text(left, top, wording.facts(value.statistics), size=9.5, colour=MUTED)
    canvas.text(left, top + 13, wording.flags(value.statistics), size=9.5, colour="#b3006b")


def _scale_part(values: Sequence[ReplicaValue], limits: tuple[float, float]) -> _Part:
    """The colour scale, and what the colours of NaN and Inf are."""
    known = [value.statistics for value in values if value.statistics]
    odd = [
        (name, colour)
        for name, colour, count in (
            ("NaN", NAN_COLOUR, sum(item.nans for item in known)),
            ("Inf", INF_COLOUR, sum(item.infs for item in known)),
        )
        if count
    ]
    most = max(-limits[0], limits[1])
    ends = (-most, most) if is_signed(limits) else limits

    def draw(canvas: Canvas, top: float) -> None:
        low, high = (wording.number(end) for end in ends)
        middle = top + 12
        bar = colour_map(limits)(np.linspace(0, 1, 256)[None], bytes=True)[..., :3]
        left = _MARGIN + 8 * len(low) + 4
        canvas.text(left - 6, middle, low, size=11, across="right", down="center")
        canvas.image(bar, (left, middle - 6, 200, 12))
        canvas.text(left + 206, middle, high, size=11, down="center")
        left += 230 + 8 * len(high)
        for name, colour in odd:
            swatch = np.full((1, 1, 3), colour, np.uint8)
            canvas.image(swatch, (left, middle - 6, 12, 12))
            canvas.text(left + 17, middle, name, size=11, down="center")
            left += 60

    return _Part(28, draw)


def _curve_parts(section: Section, values: Sequence[ReplicaValue]) -> list[_Part]:
    """Long vectors as curves on one axis, and who is who below."""
    limits = limits_of(values)
    colours = _curve_colours(len(values))

    def draw(canvas: Canvas, top: float) -> None:
        labels = [wording.number(end) for end in limits]
        left = _MARGIN + 7.5 * max(map(len, labels)) + 8
        box = (left, top + 8, _WIDTH - _MARGIN - left, _CURVE_HEIGHT - 34.0)
        _draw_frame(canvas, labels, box, values[0])
        for value, colour in zip(values, colours, strict=True):
            _draw_curve(canvas, value, limits, box, colour)

    return [_Part(_CURVE_HEIGHT, draw), *_legend_parts(section, values, colours)]


def _curve_colours(count: int) -> list[Any]:
    if count <= len(HOST_COLOURS):
        return list(HOST_COLOURS[:count])
    import matplotlib as mpl

    return [tuple(colour) for colour in mpl.colormaps["viridis"](np.linspace(0, 0.92, count))]


def _draw_frame(
    canvas: Canvas,
    labels: Sequence[str],
    box: tuple[float, float, float, float],
    value: ReplicaValue,
) -> None:
    left, top, width, height = box
    canvas.boxes([(left, top)], (width, height), fills=["none"], edges=[_FRAME])
    inner = height - 12
    for label, down in zip(labels, (top + 6 + inner, top + 6), strict=True):
        canvas.text(left - 6, down, label, size=10.5, across="right", down="center")
    last = math.prod(side or 0 for side in value.shape or ()) - 1
    canvas.text(left, top + height + 4, "0", size=10.5, colour=MUTED)
    canvas.text(left + width, top + height + 4, str(last), size=10.5, colour=MUTED, across="right")


def _draw_curve(
    canvas: Canvas,
    value: ReplicaValue,
    limits: tuple[float, float],
    box: tuple[float, float, float, float],
    colour: Any,
) -> None:
    left, top, width, height = box
    array = np.asarray(preview_of(value), np.float64)
    low, high = limits
    span = high / 2 - low / 2
    with np.errstate(all="ignore"):
        parts = (array / 2 - low / 2) / span if span else np.where(np.isfinite(array), 0.5, array)
    across = left + np.linspace(0, width, len(array))
    down = top + height - 6 - parts * (height - 12)
    shown = np.isfinite(down)
    points = np.column_stack([across, np.where(shown, down, np.nan)])
    for piece in _runs(points, shown):
        canvas.lines([piece], colour=colour, width=1.6, layer=2)


def _runs(points: Array, shown: Array) -> list[Any]:
    """The pieces of a curve between elements that are not finite."""
    breaks = np.flatnonzero(~shown)
    pieces = np.split(points, breaks)
    finite = [piece[np.isfinite(piece[:, 1])] for piece in pieces]
    return [piece for piece in finite if len(piece)]


def _legend_parts(
    section: Section, values: Sequence[ReplicaValue], colours: Sequence[Any]
) -> list[_Part]:
    if len(values) > len(HOST_COLOURS):
        return [_text_part(f"replicas 0 (dark) to {len(values) - 1} (light)", size=11)]

    def entry(number: int) -> _Part:
        value = values[number]
        words = (
            _caption(section, number),
            wording.facts(value.statistics),
            wording.flags(value.statistics),
        )
        text = "   ".join(filter(None, words))

        def draw(canvas: Canvas, top: float) -> None:
            middle = top + 7
            canvas.lines(
                [((_MARGIN, middle), (_MARGIN + 16, middle))], colour=colours[number], width=3
            )
            canvas.text(_MARGIN + 24, middle, text, size=11, down="center")

        return _Part(_LINE, draw)

    return [entry(number) for number in range(len(values))]
