"""Replica values as a picture: a panel for each replica on one scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb._util.units import and_more, number_text, sampled_phrase
from tpunb.display.describe.replicas import MAX_PREVIEWS, ReplicaValuesDescription, Section
from tpunb.display.describe.statistics import limits_of
from tpunb.display.describe.values import ReplicaValue
from tpunb.display.draw.canvas import (
    POINTS,
    Canvas,
    ascii_text,
    new_canvas,
)
from tpunb.display.draw.colours import FRAME, HOST_COLOURS, INK
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
_GAP = 12
_LINE = 17
_CURVE_HEIGHT = 190
_MAX_SECTIONS = 12
_MAX_LINES = 16
_MAX_PANELS = 96


class _Page:
    """A canvas that is filled from above.

    Attributes:
        canvas: The canvas.
        top: How far down it is filled, in pixels.
    """

    def __init__(self, canvas: Canvas) -> None:
        self.canvas, self.top = canvas, _MARGIN - 4.0

    def text(self, text: str, *, size: float = 12, bold: bool = False, mono: bool = False) -> None:
        """Writes a line, which may hold data's characters; ours are kept."""
        known = "".join(char if char in "·–…≠×" else ascii_text(char) for char in text)[:130]
        self.canvas.text(_MARGIN, self.top, known, size=size, bold=bold, mono=mono)
        self.top += _LINE


def replicas_png(description: ReplicaValuesDescription) -> bytes:
    """Draws replica values as a PNG of 900 pixels' width.

    Args:
        description: What to draw. Matrices become heat maps, images images and
            long vectors curves, a panel or line for each of up to 64 replicas on
            one scale; where all replicas are equal there is one panel.

    Returns:
        The PNG file; the same description gives the same bytes.
    """
    sections = description.sections
    with new_canvas(_WIDTH) as canvas:
        page = _Page(canvas)
        page.text(replicas_title(description), size=16, bold=True)
        page.top += 11
        drawn = panels = 0
        for section in sections[:_MAX_SECTIONS]:
            panels += 1 if section.all_equal else min(len(section.values), MAX_PREVIEWS)
            if drawn and panels > _MAX_PANELS:
                break
            _draw_section(page, section, alone=len(sections) == 1)
            drawn += 1
        if more := description.omitted + len(sections) - drawn:
            page.text(and_more(more))
        canvas.set_height(page.top + 4 + _MARGIN)
        return canvas.png()


def _draw_section(page: _Page, section: Section, *, alone: bool) -> None:
    values = section.values[:1] if section.all_equal else section.values[:MAX_PREVIEWS]
    kinds = {value.preview.kind if value.preview else "" for value in values}
    kind = kinds.pop() if len(kinds) == 1 else ""
    sampled, preview = "", values[0].preview
    if preview is not None and preview.sampled:
        steps = preview.steps[-3:-1] if kind == "images" else preview.steps
        sampled = sampled_phrase(*steps, of="points" if len(steps) == 1 else "")
    title = section_title(section, alone=alone and section.distributed)
    page.text(" · ".join(filter(None, [title, sampled])), bold=not alone)
    if kind in ("grid", "images"):
        _draw_panels(page, section, values, images=kind == "images")
    elif kind == "curve":
        _draw_curves(page, section, values)
    else:
        # Small values and those without a picture, a line each.
        for replica, value in enumerate(values[:_MAX_LINES]):
            parts = (
                _caption(section, replica),
                nested_values(value)[:80],
                "" if value.shape == () else statistics_phrase(value),
                nonfinite_phrase(value.statistics),
            )
            page.text("  ".join(filter(None, parts)), mono=True, size=11)
        if len(values) > _MAX_LINES:
            page.text(and_more(len(values) - _MAX_LINES))
    more = len(section.values) - len(values)
    if more and not section.all_equal:
        page.text(and_more(more))
    page.top += 10


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


def _draw_panels(
    page: _Page, section: Section, values: Sequence[ReplicaValue], *, images: bool
) -> None:
    """Heat maps or images on a grid, and the scale below."""
    canvas, count = page.canvas, len(values)
    columns = count if count <= 4 else min(8, math.ceil(math.sqrt(1.5 * count)))
    limits = limits_of(value.statistics for value in values)
    pixels = [tiled(preview_of(value)) if images else coloured(value, limits) for value in values]
    widest = 300.0 if images else 260.0
    width = min(widest, (_WIDTH - 2 * _MARGIN - (columns - 1) * _GAP) / columns)
    ratio = max(panel.shape[0] / panel.shape[1] for panel in pixels)
    height = width * min(1.2, max(0.25, ratio))
    roomy = width > 150
    step = height + 18 + (32 if roomy else 0)
    for number, (value, panel) in enumerate(zip(values, pixels, strict=True)):
        left = _MARGIN + (number % columns) * (width + _GAP)
        at = page.top + (number // columns) * step
        caption = _caption(section, number, short=not roomy)
        canvas.text(left, at + 1, caption, size=11 if width > 85 else 9, bold=True)
        across, down = width, height
        if images:  # keeps its proportions
            scale = min(width / panel.shape[1], height / panel.shape[0])
            across, down = panel.shape[1] * scale, panel.shape[0] * scale
        canvas.image(panel, (left, at + 17, across, down))
        canvas.boxes([(left, at + 17)], (across, down), fills=["none"], edges=[FRAME], layer=2)
        if roomy:
            # The panels are as wide as three numbers.
            facts = statistics_phrase(value)
            first, _, last = facts.rpartition("  ") if "  " in facts else (facts, "", "")
            below = at + 20 + height
            canvas.text(left, below, first, size=9.5)
            canvas.text(left, below + 13, last, size=9.5)
            nonfinite = nonfinite_phrase(value.statistics)
            beside = left + 75 if last else left
            canvas.text(beside, below + 13, nonfinite, size=9.5, colour="#d4308a")
    page.top += math.ceil(count / columns) * step
    if not images:
        _draw_scale(page, values, limits)


def _draw_scale(page: _Page, values: Sequence[ReplicaValue], limits: tuple[float, float]) -> None:
    """The colour scale, and what the colours of NaN and Inf are."""
    canvas, middle = page.canvas, page.top + 12
    low, high = (number_text(end) for end in scale_of(limits))
    bar = colour_map(limits)(np.linspace(0, 1, 256)[None], bytes=True)[..., :3]
    left = _MARGIN + 8 * len(low) + 4
    canvas.text(left - 6, middle, low, size=11, across="right", down="center")
    canvas.image(bar, (left, middle - 6, 200, 12))
    canvas.text(left + 206, middle, high, size=11, down="center")
    left += 230 + 8 * len(high)
    known = [value.statistics for value in values if value.statistics]
    for name, colour, count in (
        ("NaN", NAN_COLOUR, sum(item.nans for item in known)),
        ("Inf", INF_COLOUR, sum(item.infs for item in known)),
    ):
        if count:
            canvas.image(np.full((1, 1, 3), colour, np.uint8), (left, middle - 6, 12, 12))
            canvas.text(left + 17, middle, name, size=11, down="center")
            left += 60
    page.top += 28


def _draw_curves(page: _Page, section: Section, values: Sequence[ReplicaValue]) -> None:
    """Long vectors as curves on one axis, whose ends carry labels; and a legend below."""
    import matplotlib as mpl

    limits = limits_of(value.statistics for value in values)
    colours: list[Any] = list(HOST_COLOURS[: len(values)])
    if len(values) > len(HOST_COLOURS):
        colours = list(mpl.colormaps["viridis"](np.linspace(0, 0.92, len(values))))
    labels = [number_text(end) for end in limits]
    left = _MARGIN + 7.5 * max(map(len, labels)) + 8
    height = _CURVE_HEIGHT - 34.0
    axes = page.canvas.new_axes((left, page.top + 8, _WIDTH - _MARGIN - left, height))
    axes.tick_params(axis="y", labelcolor=INK)
    axes.spines[:].set_color(FRAME)
    # From 0 to 1 both ways: any numbers fit on such axes.
    axes.set_xlim(0, 1)
    rim = 6 / (height - 12)
    axes.set_ylim(-rim, 1 + rim)
    axes.set_yticks([0, 1], labels)
    last = math.prod(side or 0 for side in values[0].shape or ()) - 1
    axes.set_xticks([0, 1], ["0", str(last)])
    for label, side in zip(axes.get_xticklabels(), ("left", "right"), strict=True):
        label.set_ha(side)
    for value, colour in zip(values, colours, strict=True):
        heights = scaled(np.asarray(preview_of(value)), limits)
        axes.plot(np.linspace(0, 1, len(heights)), heights, color=colour, lw=1.6 * POINTS)
    page.top += _CURVE_HEIGHT
    if len(values) > len(HOST_COLOURS):
        page.text(f"replicas 0 (dark) to {len(values) - 1} (light)", size=11)
        return
    for number, (value, colour) in enumerate(zip(values, colours, strict=True)):
        words = (
            _caption(section, number),
            statistics_phrase(value),
            nonfinite_phrase(value.statistics),
        )
        middle = page.top + 7
        ends = [((_MARGIN, middle), (_MARGIN + 16, middle))]
        page.canvas.lines(ends, colour=colour, width=3)
        text = "   ".join(filter(None, words))
        page.canvas.text(_MARGIN + 24, middle, text, size=11, down="center")
        page.top += _LINE
