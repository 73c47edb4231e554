"""Replica values as a picture: a panel for each replica on one scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb._util.units import and_more, number_text, sampled_phrase
from tpunb.display.describe.replicas import MAX_PREVIEWS, ReplicaValuesDescription, Section
from tpunb.display.describe.statistics import limits_of
from tpunb.display.describe.values import ReplicaValue
from tpunb.display.draw.canvas import (
    FRAME,
    HOST_COLOURS,
    INK,
    POINTS,
    Canvas,
    ascii_text,
    new_canvas,
)
from tpunb.display.draw.replicas_text import (
    nested_values,
    nonfinite_phrase,
    replicas_title,
    section_title,
    statistics_phrase,
)

NAN_COLOUR = (255, 47, 164)
INF_COLOUR = (255, 176, 0)

Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]


def preview_of(value: ReplicaValue) -> Array:
    """The elements that are drawn of a value."""
    assert value.preview is not None
    return value.preview.array()


def is_signed(limits: tuple[float, float]) -> bool:
    """Returns whether a scale has zero in its middle."""
    return limits[0] < 0 < limits[1]


def scaled(array: Array, limits: tuple[float, float]) -> Array:
    """Elements between limits as 0 to 1, others as they come.

    Halved first, as the range may exceed the largest number: matplotlib's own norm would
    overflow.
    """
    low, high = limits
    span = high / 2 - low / 2
    halves = np.asarray(array, np.float64) / 2 - low / 2
    if span == 0:
        return np.where(np.isfinite(halves), 0.5, halves)
    with np.errstate(all="ignore"):
        return np.asarray(halves / span)


def scale_of(limits: tuple[float, float]) -> tuple[float, float]:
    """The ends of the colour scale: about zero where it is between the limits."""
    most = max(-limits[0], limits[1])
    return (-most, most) if is_signed(limits) else limits


def coloured(value: ReplicaValue, limits: tuple[float, float]) -> Pixels:
    """The heat map of a matrix, NaN and Inf in colours of their own."""
    array = preview_of(value)
    shares = scaled(array, scale_of(limits))
    pixels = colour_map(limits)(np.where(np.isfinite(shares), shares, 0), bytes=True)[..., :3]
    pixels = np.array(pixels, np.uint8)
    pixels[np.isnan(array)] = NAN_COLOUR
    pixels[np.isinf(array)] = INF_COLOUR
    return pixels


def colour_map(limits: tuple[float, float]) -> Any:
    """Matplotlib's colours for a scale."""
    import matplotlib as mpl

    return mpl.colormaps["RdBu_r" if is_signed(limits) else "viridis"]


def tiled(images: Array) -> Pixels:
    """A few images side by side as one, in red, green and blue."""
    count, height, width, channels = images.shape
    if channels == 1:
        images = np.repeat(images, 3, axis=3)
    if channels == 4:
        alpha = images[..., 3:].astype(np.float32) / 255
        images = np.rint(images[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    gap = 0 if count == 1 else 2
    page = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, 3), 255, np.uint8)
    for number, image in enumerate(images):
        top, left = number // columns * (height + gap), number % columns * (width + gap)
        page[top : top + height, left : left + width] = image
    return page


_WIDTH = 900
_MARGIN = 18
_ROOM = _WIDTH - 2 * _MARGIN
_GAP = 12
_LINE = 17
_CURVE_HEIGHT = 190
_MAX_SECTIONS = 12
_MAX_LINES = 16
_MAX_PANELS = 96


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the page: its height, and how to draw it at a position."""

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
    parts = [_text_part(replicas_title(description), size=16, bold=True, height=28)]
    drawn = _drawn(description.sections)
    for section in drawn:
        parts += _section_parts(section, alone=alone)
    more = description.omitted + len(description.sections) - len(drawn)
    if more:
        parts.append(_text_part(and_more(more)))
    height = 2 * _MARGIN + sum(part.height for part in parts)
    with new_canvas(_WIDTH, height) as canvas:
        top: float = _MARGIN - 4
        for part in parts:
            part.draw(canvas, top)
            top += part.height
        return canvas.png()


def _drawn(sections: Sequence[Section]) -> Sequence[Section]:
    """The leaves that are drawn: the first one, and more as long as there are few panels."""
    panels = 0
    for number, section in enumerate(sections[:_MAX_SECTIONS]):
        panels += 1 if section.all_equal else min(len(section.values), MAX_PREVIEWS)
        if number and panels > _MAX_PANELS:
            return sections[:number]
    return sections[:_MAX_SECTIONS]


def _text_part(
    text: str, *, size: float = 12, bold: bool = False, mono: bool = False, height: float = _LINE
) -> _Part:
    def draw(canvas: Canvas, top: float) -> None:
        safe = _known_glyphs(text)
        canvas.text(_MARGIN, top, safe, size=size, colour=INK, bold=bold, mono=mono)

    return _Part(height, draw)


def _known_glyphs(text: str) -> str:
    """Text that may hold data's characters; ours are kept."""
    return "".join(char if char in "·–…≠×" else ascii_text(char) for char in text)[:130]


def _section_parts(section: Section, *, alone: bool) -> list[_Part]:
    values = section.values[:1] if section.all_equal else section.values[:MAX_PREVIEWS]
    kinds = {value.preview.kind if value.preview else "" for value in values}
    kind = kinds.pop() if len(kinds) == 1 else ""
    title = section_title(section, alone=alone and section.distributed)
    parts = [_text_part(" · ".join(filter(None, [title, _sampled(values[0])])), bold=not alone)]
    if kind in ("grid", "images"):
        parts += _panel_parts(section, values, images=kind == "images")
    elif kind == "curve":
        parts += _curve_parts(section, values)
    else:
        parts += _line_parts(section, values)
    more = len(section.values) - len(values)
    if more and not section.all_equal:
        parts.append(_text_part(and_more(more)))
    return [*parts, _Part(10, lambda canvas, top: None)]


def _sampled(value: ReplicaValue) -> str:
    """A phrase for what was left out of a picture."""
    preview = value.preview
    if preview is None or not preview.sampled:
        return ""
    if preview.kind == "curve":
        return sampled_phrase(preview.steps[0], of="points")
    rows, columns = preview.steps[-3:-1] if preview.kind == "images" else preview.steps
    return sampled_phrase(rows, columns)


def _caption(section: Section, replica: int, *, short: bool = False) -> str:
    """Names the replica, and compares it with replica 0."""
    if not section.distributed:
        return ""
    if section.all_equal:
        return "every replica"
    caption = f"replica {section.replica(replica)}"
    other = f"{'r' if short else 'replica '}{section.replica(0)}"
    # Mark the rarer case: equal or different.
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
            nested_values(value)[:80],
            "" if value.shape == () else statistics_phrase(value),
            nonfinite_phrase(value.statistics),
        )
        lines.append(_text_part("  ".join(filter(None, parts)), mono=True, size=11))
    if len(values) > _MAX_LINES:
        lines.append(_text_part(and_more(len(values) - _MAX_LINES)))
    return lines


def _columns(count: int) -> int:
    if count <= 4:
        return count
    return min(8, math.ceil(math.sqrt(1.5 * count)))


def _panel_parts(section: Section, values: Sequence[ReplicaValue], *, images: bool) -> list[_Part]:
    """Heat maps or images on a grid, and the scale below."""
    count = len(values)
    columns = _columns(count)
    limits = limits_of(value.statistics for value in values)
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
    canvas.boxes([(left, top)], (width, height), fills=["none"], edges=[FRAME], layer=2)


def _draw_facts(canvas: Canvas, value: ReplicaValue, left: float, top: float) -> None:
    # The panels are as wide as three numbers.
    facts = statistics_phrase(value)
    first, _, deviation = facts.rpartition("  ") if "  " in facts else (facts, "", "")
    canvas.text(left, top, first, size=9.5, colour=INK)
    canvas.text(left, top + 13, deviation, size=9.5, colour=INK)
    beside = left + 75 if deviation else left
    canvas.text(beside, top + 13, nonfinite_phrase(value.statistics), size=9.5, colour="#d4308a")


def _scale_part(values: Sequence[ReplicaValue], limits: tuple[float, float]) -> _Part:
    """The colour scale, and what the colours of NaN and Inf are."""
    known = [value.statistics for value in values if value.statistics]
    nonfinite = [
        (name, colour)
        for name, colour, count in (
            ("NaN", NAN_COLOUR, sum(item.nans for item in known)),
            ("Inf", INF_COLOUR, sum(item.infs for item in known)),
        )
        if count
    ]

    def draw(canvas: Canvas, top: float) -> None:
        low, high = (number_text(end) for end in scale_of(limits))
        middle = top + 12
        bar = colour_map(limits)(np.linspace(0, 1, 256)[None], bytes=True)[..., :3]
        left = _MARGIN + 8 * len(low) + 4
        canvas.text(left - 6, middle, low, size=11, across="right", down="center")
        canvas.image(bar, (left, middle - 6, 200, 12))
        canvas.text(left + 206, middle, high, size=11, down="center")
        left += 230 + 8 * len(high)
        for name, colour in nonfinite:
            swatch = np.full((1, 1, 3), colour, np.uint8)
            canvas.image(swatch, (left, middle - 6, 12, 12))
            canvas.text(left + 17, middle, name, size=11, down="center")
            left += 60

    return _Part(28, draw)


def _curve_parts(section: Section, values: Sequence[ReplicaValue]) -> list[_Part]:
    """Long vectors as curves on one axis, with a legend below."""
    limits = limits_of(value.statistics for value in values)
    colours = _curve_colours(len(values))

    def draw(canvas: Canvas, top: float) -> None:
        labels = [number_text(end) for end in limits]
        left = _MARGIN + 7.5 * max(map(len, labels)) + 8
        height = _CURVE_HEIGHT - 34.0
        axes = _curve_axes(canvas, (left, top + 8, _WIDTH - _MARGIN - left, height), labels)
        last = math.prod(side or 0 for side in values[0].shape or ()) - 1
        axes.set_xticks([0, 1], ["0", str(last)])
        for label, side in zip(axes.get_xticklabels(), ("left", "right"), strict=True):
            label.set_ha(side)
        for value, colour in zip(values, colours, strict=True):
            heights = scaled(np.asarray(preview_of(value)), limits)
            axes.plot(np.linspace(0, 1, len(heights)), heights, color=colour, lw=1.6 * POINTS)

    return [_Part(_CURVE_HEIGHT, draw), *_legend_parts(section, values, colours)]


def _curve_axes(
    canvas: Canvas, box: tuple[float, float, float, float], labels: Sequence[str]
) -> Any:
    """Axes from 0 to 1 both ways, whose ends carry labels: any numbers fit on them."""
    axes = canvas.new_axes(box)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.spines[:].set_color(FRAME)
    axes.set_xlim(0, 1)
    rim = 6 / (box[3] - 12)
    axes.set_ylim(-rim, 1 + rim)
    axes.set_yticks([0, 1], labels)
    return axes


def _curve_colours(count: int) -> list[Any]:
    if count <= len(HOST_COLOURS):
        return list(HOST_COLOURS[:count])
    import matplotlib as mpl

    return [tuple(colour) for colour in mpl.colormaps["viridis"](np.linspace(0, 0.92, count))]


def _legend_parts(
    section: Section, values: Sequence[ReplicaValue], colours: Sequence[Any]
) -> list[_Part]:
    if len(values) > len(HOST_COLOURS):
        return [_text_part(f"replicas 0 (dark) to {len(values) - 1} (light)", size=11)]

    def entry(number: int) -> _Part:
        value = values[number]
        words = (
            _caption(section, number),
            statistics_phrase(value),
            nonfinite_phrase(value.statistics),
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
