"""Panels of replica values in HTML: heat maps, images and curves on one scale.

Pictures are written in the page's text, and need no script, style sheet or network.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb._util.tables import escaped
from tpunb._util.units import grouped, number_text
from tpunb.display.describe.replicas import Section
from tpunb.display.describe.statistics import limits_of
from tpunb.display.describe.values import ReplicaValue
from tpunb.display.draw.colours import (
    DIVERGING,
    GRID,
    HOST_COLOURS,
    INF,
    INK,
    NAN,
    VIRIDIS,
    colour_table,
    rgb,
)
from tpunb.display.draw.replicas_text import number_phrases

_MAX_PIXELS = 150_000
"""The largest number of pixels in a leaf's pictures; larger pictures lose pixels evenly."""

_MAX_POINTS = 8_000
"""The largest number of points in a leaf's curves together."""

_CURVE_WIDTH, _CURVE_HEIGHT = 560, 150
_SWATCH = "display:inline-block"
_SMALL = "font-size:11px;opacity:.8"
_GRID = "display:flex;flex-wrap:wrap;gap:12px;margin:4px 0 8px"

Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]
Limits = tuple[float, float]


def panels_html(section: Section, *, images: bool) -> str:
    """Return heat maps or images beside each other, and the scale of the colours."""
    values = section.drawn_values
    limits = limits_of(value.statistics for value in values)
    arrays = [_elements(value) for value in values]
    stride = math.ceil(math.sqrt(sum(array.size for array in arrays) / _MAX_PIXELS))
    widest = 300 if images else 260
    width = widest if len(values) <= 4 else 150 if len(values) <= 16 else 84
    panels = []
    for place, (value, array) in enumerate(zip(values, arrays, strict=True)):
        if images:
            pixels = _tiled(array[:, ::stride, ::stride])
        else:
            pixels = _heat_map(array[::stride, ::stride], limits)
        phrase = "  ".join(number_phrases(value))
        caption = _caption(section, place)
        # A heat map may be stretched, an image may not. Front ends have a style for the height of
        # pictures, which only another style overrides.
        ratio = pixels.shape[0] / max(1, pixels.shape[1])
        height = "auto" if images else f"{round(width * min(1.2, max(0.25, ratio)))}px"
        size = f"width:{width}px;height:{height};max-width:100%"
        style = f"display:block;{size};image-rendering:pixelated;border:1px solid {GRID}"
        alt = escaped(", ".join(filter(None, [caption or "value", phrase])))
        source = _data(_png(pixels), "image/png")
        panels.append(
            f'<div style="width:{width}px;max-width:100%;font-size:12px"><b>{escaped(caption)}</b>'
            f'<img alt="{alt}" style="{style}" src="{source}"/>'
            f'<div style="{_SMALL}">{escaped(phrase) if width > 100 else ""}</div></div>'
        )
    scale = "" if images else _scale(values, limits)
    return f'<div style="{_GRID}">{"".join(panels)}</div>{scale}'


def _caption(section: Section, place: int) -> str:
    """Name the replica, and compare it with the first replica."""
    if not section.distributed:
        return ""
    if section.all_equal:
        return f"all {grouped(len(section.values))} replicas"
    caption, first = f"replica {section.replica(place)}", section.replica(0)
    if section.marks_differing and section.differs[place]:
        return f"{caption} ≠ replica {first}"
    if place and not section.marks_differing and not section.differs[place]:
        return f"{caption} = replica {first}"
    return caption


def curves_html(section: Section) -> str:
    """Return long vectors as curves on one axis, and a legend with their statistics."""
    values = section.drawn_values
    limits = limits_of(value.statistics for value in values)
    colours = _curve_colours(len(values))
    arrays = [_elements(value) for value in values]
    stride = math.ceil(sum(array.size for array in arrays) / _MAX_POINTS)
    lines = "".join(
        f'<path d="{_curve(array[::stride], limits)}" stroke="{colour}"/>'
        for array, colour in zip(arrays, colours, strict=True)
    )
    last = math.prod(side or 0 for side in values[0].shape or ()) - 1
    low, high = map(number_text, limits)
    right, bottom = _CURVE_WIDTH, _CURVE_HEIGHT
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -8 {right} {bottom + 28}" '
        f'width="{right}" height="{bottom + 28}"><g fill="none" stroke-width="1.5" '
        f'stroke-linejoin="round"><path d="M0 0H{right}M0 {bottom}H{right}" stroke="{INK}" '
        f'stroke-opacity=".4"/>{lines}</g><g fill="{INK}" font-family="DejaVu Sans, sans-serif" '
        f'font-size="11"><text y="11">{high}</text><text y="{bottom - 4}">{low}</text>'
        f'<text y="{bottom + 14}">0</text><text x="{right}" y="{bottom + 14}" '
        f'text-anchor="end">{last}</text></g></svg>'
    )
    alt = f"{len(values)} curves from {low} to {high}"
    picture = (
        f'<img alt="{alt}" style="max-width:100%" src="{_data(svg.encode(), "image/svg+xml")}"/>'
    )
    items = []
    for place, (value, colour) in enumerate(zip(values, colours, strict=True)):
        phrases = (_caption(section, place), *number_phrases(value))
        swatch = (
            f"display:inline-block;width:14px;height:4px;margin:3px 6px 3px 0;background:{colour}"
        )
        text = escaped("   ".join(filter(None, phrases)))
        items.append(f'<div style="font-size:12px"><span style="{swatch}"></span>{text}</div>')
    return f"{picture}{''.join(items)}"


def _curve(array: Array, limits: Limits) -> str:
    """Return the path of a curve, with gaps where elements are not finite."""
    across = np.linspace(0, _CURVE_WIDTH, len(array)).tolist()
    down = (_CURVE_HEIGHT * (1 - _shares(array, limits))).tolist()
    begins, parts = True, []
    for x, y in zip(across, down, strict=True):
        if math.isfinite(y):
            parts.append(f"{'M' if begins else 'L'}{x:.1f} {y:.1f}")
        begins = not math.isfinite(y)
    return "".join(parts)


def _curve_colours(count: int) -> list[str]:
    """Return a colour for each curve; the colours of many curves go from dark to light."""
    if count <= len(HOST_COLOURS):
        return list(HOST_COLOURS[:count])
    shares = np.linspace(0, 0.92, count)
    return [f"#{bytes(colour).hex()}" for colour in _coloured(shares, VIRIDIS)]


def _elements(value: ReplicaValue) -> Array:
    """Return the drawn elements of a value."""
    assert value.preview is not None
    return value.preview.array()


def _is_signed(limits: Limits) -> bool:
    return limits[0] < 0 < limits[1]


def _scale_of(limits: Limits) -> Limits:
    """Return the ends of the colour scale, symmetric about zero if zero is between the limits."""
    most = max(-limits[0], limits[1])
    return (-most, most) if _is_signed(limits) else limits


def _shares(array: Array, limits: Limits) -> Array:
    """Return elements between limits as 0 to 1; elements outside get values outside.

    The elements are halved first, because the range may exceed the largest number.
    """
    low, high = limits
    span = high / 2 - low / 2
    halves = np.asarray(array, np.float64) / 2 - low / 2
    if span == 0:
        return np.where(np.isfinite(halves), 0.5, halves)
    with np.errstate(all="ignore"):
        return np.asarray(halves / span)


def _heat_map(array: Array, limits: Limits) -> Pixels:
    """Return the colours of a matrix, NaN and Inf in colours of their own."""
    shares = _shares(array, _scale_of(limits))
    stops = DIVERGING if _is_signed(limits) else VIRIDIS
    pixels = _coloured(np.where(np.isfinite(shares), shares, 0), stops)
    pixels[np.isnan(array)] = rgb(NAN)
    pixels[np.isinf(array)] = rgb(INF)
    return pixels


def _coloured(shares: Array, stops: tuple[str, ...]) -> Pixels:
    """Return the colours of shares from 0 to 1."""
    return colour_table(stops)[np.round(np.clip(shares, 0, 1) * 255).astype(np.intp)]


def _tiled(images: Array) -> Pixels:
    """Return a few images side by side as one, in red, green, blue and opacity."""
    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    gap = 0 if count == 1 else 2
    page = np.zeros((rows * (height + gap) - gap, columns * (width + gap) - gap, 4), np.uint8)
    for number, image in enumerate(images):
        top, left = number // columns * (height + gap), number % columns * (width + gap)
        tile = page[top : top + height, left : left + width]
        tile[..., :3] = image[..., :3]  # grey is repeated
        tile[..., 3] = image[..., 3] if channels == 4 else 255
    return page


def _scale(values: Sequence[ReplicaValue], limits: Limits) -> str:
    """Return the colour scale with its ends, and the meaning of the colours of NaN and Inf."""
    stops = ",".join(DIVERGING if _is_signed(limits) else VIRIDIS)
    low, high = (escaped(number_text(end)) for end in _scale_of(limits))
    bar = f"{_SWATCH};width:200px;height:10px;margin:0 6px;vertical-align:middle"
    parts = [f'{low}<span style="{bar};background:linear-gradient(90deg,{stops})"></span>{high}']
    known = [value.statistics for value in values if value.statistics]
    for name, colour, count in (
        ("NaN", NAN, sum(item.nans for item in known)),
        ("Inf", INF, sum(item.infs for item in known)),
    ):
        if count:
            swatch = f"{_SWATCH};width:10px;height:10px;margin:0 4px 0 16px"
            parts.append(f'<span style="{swatch};background:{colour}"></span>{name}')
    return f'<div style="font-size:12px">{"".join(parts)}</div>'


def _png(pixels: Pixels) -> bytes:
    """Return pixels as a PNG file.

    Saved notebooks are compared as text. Releases of Pillow compress differently; the standard
    library's zlib gives the same bytes for the same pixels.
    """
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, {3: 2, 4: 6}[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _data(content: bytes, kind: str) -> str:
    """Return the address of a picture that is written in the page."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
