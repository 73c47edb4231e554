"""Panels of replica values in HTML: heat maps, images and curves on one scale.

Pictures are written in the page's text, and need no script, style sheet or network.
"""

from __future__ import annotations

import base64
import functools
import math
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb._util.tables import escaped
from tpunb._util.units import grouped, number_text
from tpunb.display.describe.replica_scene import Limits, Scene, outliers_of
from tpunb.display.describe.replicas import Section
from tpunb.display.describe.values import ReplicaValue
from tpunb.display.draw.colours import (
    DIVERGING,
    GRID,
    HOST_COLOURS,
    INF,
    INK,
    NAN,
    VIRIDIS,
    rgb,
)
from tpunb.display.draw.replicas.text import nonfinite_phrase, number_phrases

_MAX_PIXELS = 150_000
"""The largest number of pixels in a leaf's pictures; larger pictures lose pixels evenly."""

_MAX_POINTS = 8_000
"""The largest number of points in a leaf's curves together."""

_MAX_DOTS = 512
"""The largest number of means that are drawn as dots to select; of more only outliers are."""

_CURVE_WIDTH, _CURVE_HEIGHT = 560, 150
_SWATCH = "display:inline-block"
_SMALL = "font-size:11px;opacity:.8"
_STRIP_WIDTH = 560
_LISTED = ' role="listbox" aria-multiselectable="true" aria-label="replicas"'
_GRID = "display:flex;flex-wrap:wrap;gap:12px;margin:4px 0 8px"

Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]


def panels_html(scene: Scene, view: str, *, live: bool = False) -> str:
    """Return heat maps, images or histograms beside each other, and the scale of the colours.

    Args:
        scene: The values.
        view: `"heat"`, `"images"` or `"histogram"`.
        live: Whether a page makes the panels live: they can be selected, and show a cursor.
    """
    count = len(scene.values)
    arrays = [elements_of(value, view) for value in scene.values]
    stride = max(1, math.ceil(math.sqrt(sum(array.size for array in arrays) / _MAX_PIXELS)))
    width = (300 if view == "images" else 260) if count <= 4 else 150 if count <= 16 else 84
    panels = []
    for number, (value, array) in enumerate(zip(scene.values, arrays, strict=True)):
        if view == "histogram":
            kind, source, ratio = "image/svg+xml", _bars(scene, number).encode(), 0.5
        else:
            first = array.ndim // 3  # the axis of the rows, after that of the images
            thinned = (*[slice(None)] * first, *[slice(None, None, stride)] * 2)
            pixels = _picture(scene, array[thinned], view)
            kind, source, ratio = (
                "image/png",
                _png(pixels),
                pixels.shape[0] / max(1, pixels.shape[1]),
            )
        phrase = "  ".join(phrases_of(scene, value))
        caption = caption_of(scene, number)
        # A heat map may be stretched, an image may not. Front ends have a style for the height of
        # pictures, which only another style overrides.
        height = "auto" if view == "images" else f"{round(width * min(1.2, max(0.25, ratio)))}px"
        size = f"width:{width}px;height:{height};max-width:100%"
        style = f"display:block;{size};image-rendering:pixelated;border:1px solid {GRID}"
        alt = escaped(", ".join(filter(None, [caption or "value", phrase])))
        picture = f'<img alt="{alt}" style="{style}" src="{_data(source, kind)}"/>'
        if live:
            picture = f'<div class="tpunb-picture" data-panel="{number}">{picture}</div>'
        panels.append(
            f'<div{part_of(scene, number) if live else ""} style="width:{width}px;max-width:100%;'
            f'font-size:12px"><b>{escaped(caption)}</b>{picture}'
            f'<div style="{_SMALL}">{escaped(phrase) if width > 100 else ""}</div></div>'
        )
    scale = _scale(scene) if view == "heat" else _ends(scene) if view == "histogram" else ""
    return f'<div{_LISTED if live else ""} style="{_GRID}">{"".join(panels)}</div>{scale}'


def elements_of(value: ReplicaValue, view: str) -> Array:
    """Return the drawn elements: rows and columns; images, or their brightness in a heat map."""
    assert value.preview is not None
    array = value.preview.array()
    if value.preview.kind == "images":
        return array if view == "images" else array[..., :3].mean(-1)
    if view == "curves":
        return array.reshape(1, -1)
    return array.reshape(-1, array.shape[-1] if array.ndim else 1)


def _picture(scene: Scene, array: Array, view: str) -> Pixels:
    if view == "images":
        return _tiled(array)
    colours = _heat_map(array, scene.limits)
    return _tiled(colours) if array.ndim == 3 else colours


def part_of(scene: Scene, number: int) -> str:
    """Return the attribute that names the replicas of a part, which a page can select."""
    return f' data-part="{" ".join(map(str, scene.replicas(number)))}"'


def caption_of(scene: Scene, number: int, *, compared: bool = True) -> str:
    """Name the replica, and compare it with the first replica."""
    section, place = scene.section, scene.places[number]
    if not section.distributed or place < 0:
        return ""
    if section.all_equal and len(scene.values) == 1:
        return f"all {grouped(len(section.values))} replicas"
    caption, first = f"replica {section.replica(place)}", section.replica(0)
    if scene.mode != "values" or not compared:
        return caption
    if section.marks_differing and section.differs[place]:
        return f"{caption} ≠ replica {first}"
    if place and not section.marks_differing and not section.differs[place]:
        return f"{caption} = replica {first}"
    return caption


def phrases_of(scene: Scene, value: ReplicaValue) -> list[str]:
    """Return the phrases about a value's numbers; the largest of differences."""
    facts = value.statistics
    if scene.mode != "difference" or facts is None or facts.minimum is None:
        return number_phrases(value)
    most = max(abs(facts.minimum), abs(facts.maximum or 0))
    odd = nonfinite_phrase(facts)
    return (
        ["equal"]
        if not most and not odd
        else [f"max |Δ| {number_text(most)}", *filter(None, [odd])]
    )


def curves_html(scene: Scene, *, live: bool = False) -> str:
    """Return long vectors as curves on one axis, and a legend with their statistics."""
    values, limits = scene.values, scene.limits
    colours = _curve_colours(len(values))
    arrays = [elements_of(value, "curves")[0] for value in values]
    stride = max(1, math.ceil(sum(array.size for array in arrays) / _MAX_POINTS))
    captions = [caption_of(scene, number) for number in range(len(values))]
    ends = ["/>"] * len(values)
    if live:
        ends = [
            f"{part_of(scene, at)}><title>{escaped(caption)}</title></path>"
            for at, caption in enumerate(captions)
        ]
    lines = "".join(
        f'<path d="{_curve(array[::stride], limits)}" stroke="{colour}"{end}'
        for array, colour, end in zip(arrays, colours, ends, strict=True)
    )
    last = math.prod(side or 0 for side in values[0].shape or ()) - 1
    low, high = end_texts(limits)
    right, bottom = _CURVE_WIDTH, _CURVE_HEIGHT
    alt = f"{len(values)} curves from {low} to {high}"
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -8 {right} {bottom + 28}" '
        f'width="{right}" height="{bottom + 28}"><g fill="none" stroke-width="1.5" '
        f'stroke-linejoin="round"><path d="M0 0H{right}M0 {bottom}H{right}" stroke="{INK}" '
        f'stroke-opacity=".4"/>{lines}</g><g fill="{INK}" font-family="DejaVu Sans, sans-serif" '
        f'font-size="11"><text y="11">{high}</text><text y="{bottom - 4}">{low}</text>'
        f'<text y="{bottom + 14}">0</text><text x="{right}" y="{bottom + 14}" '
        f'text-anchor="end">{last}</text></g></svg>'
    )
    if live:
        inline = svg.replace(
            "<svg", f'<svg{_LISTED} style="display:block;width:100%;height:auto"', 1
        )
        picture = (
            f'<div class="tpunb-picture" data-panel="0" style="max-width:860px">{inline}</div>'
        )
    else:
        source = _data(svg.encode(), "image/svg+xml")
        picture = f'<img alt="{alt}" style="max-width:100%" src="{source}"/>'
    items = []
    for number, (value, colour) in enumerate(zip(values, colours, strict=True)):
        phrases = (captions[number], *phrases_of(scene, value))
        swatch = (
            f"display:inline-block;width:14px;height:4px;margin:3px 6px 3px 0;background:{colour}"
        )
        text = escaped("   ".join(filter(None, phrases)))
        part = part_of(scene, number) if live else ""
        items.append(
            f'<div{part} style="font-size:12px"><span style="{swatch}"></span>{text}</div>'
        )
    key = "".join(items)
    return f"{picture}<div{_LISTED}>{key}</div>" if live else f"{picture}{key}"


def end_texts(limits: Limits) -> tuple[str, str]:
    """Return the ends of an axis, with as many digits as tell them apart."""
    low, high = map(number_text, limits)
    return (
        (low, high) if low != high or limits[0] == limits[1] else (repr(limits[0]), repr(limits[1]))
    )


def _bars(scene: Scene, number: int) -> str:
    """Return a histogram's bars, on the same axes as the others'."""
    most = max(1, *map(max, scene.counts))
    bars = "".join(
        # A bin that is not empty is visible, however small its share.
        f"M{8 * at} 100v-{max(2, round(96 * count / most))}h7V100z"
        for at, count in enumerate(scene.counts[number])
        if count
    )
    right = 8 * len(scene.counts[number])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right} 101" '
        f'preserveAspectRatio="none"><path d="{bars}" fill="{HOST_COLOURS[5]}"/>'
        f'<path d="M0 100H{right}" stroke="{INK}"/></svg>'
    )


def _ends(scene: Scene) -> str:
    """Say what a histogram's axes are."""
    low, high = end_texts(scene.limits)
    bins, most = len(scene.counts[0]), max(map(max, scene.counts))
    text = (
        f"from {low} to {high}, the same {bins} ranges everywhere; the highest bar has "
        f"{grouped(most)} elements"
    )
    return f'<div style="font-size:12px">{text}</div>'


def means_svg(section: Section) -> str:
    """Return the mean of every replica as a dot, which a page can select, with outliers marked."""
    means = [value.statistics.mean if value.statistics else None for value in section.values]
    known = [mean for mean in means if mean is not None]
    limits = min(known), max(known)
    far, step = outliers_of(section), (_STRIP_WIDTH - 12) / len(means)
    shares = _shares(np.array([np.nan if mean is None else mean for mean in means]), limits)
    radius = max(1.6, min(4, step * 0.32))
    dots, many = [], []
    for place, (mean, share) in enumerate(zip(means, shares.tolist(), strict=True)):
        x, y = 6 + (place + 0.5) * step, 23 if mean is None else 39 - 32 * share
        odd = place in far
        if len(means) > _MAX_DOTS and not odd:
            many.append(f"M{x:.1f} {y:.1f}h0")
            continue
        colour = NAN if mean is None else HOST_COLOURS[1 if odd else 5]
        lines = [f"replica {section.replica(place)}", *number_phrases(section.values[place])]
        title = escaped("\n".join([*lines, *["far from the others"] * odd]))
        dots.append(
            f'<g data-part="{section.replica(place)}"><title>{title}</title>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius + odd:.1f}" fill="{colour}"/></g>'
        )
    stroke = f'stroke="{HOST_COLOURS[5]}" stroke-width="{2 * radius}" stroke-linecap="round"'
    dots.append(f'<path d="{"".join(many)}" {stroke}/>' if many else "")
    low, high = map(escaped, end_texts(limits))
    ends = (section.replica(0), section.replica(len(means) - 1))
    labels = (
        f'<g text-anchor="end"><text x="-8" y="12">{high}</text><text x="-8" y="28">mean</text>'
        f'<text x="-8" y="44">{low}</text><text x="{_STRIP_WIDTH}" y="60">replica {ends[1]}</text>'
        f'</g><text y="60">replica {ends[0]}</text>'
    )
    return (
        f'<svg class="tpunb-strip"{_LISTED} data-odd="{",".join(map(str, sorted(far)))}" '
        f'viewBox="-70 0 {_STRIP_WIDTH + 72} 64"><g fill="{INK}" font-size="12">{labels}</g>'
        f"{''.join(dots)}</svg>"
    )


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


@functools.cache
def _colour_table(stops: tuple[str, ...]) -> npt.NDArray[np.uint8]:
    """Return 256 colours from the first stop to the last, as red, green and blue each."""
    places = np.arange(256) / 255 * (len(stops) - 1)
    parts = np.array([rgb(stop) for stop in stops], np.float64).T
    return np.stack([np.interp(places, range(len(stops)), part) for part in parts], -1).astype(
        np.uint8
    )


def _coloured(shares: Array, stops: tuple[str, ...]) -> Pixels:
    """Return the colours of shares from 0 to 1."""
    return _colour_table(stops)[np.round(np.clip(shares, 0, 1) * 255).astype(np.intp)]


def tiling(count: int) -> tuple[int, int]:
    """Return how many of some images are beside each other, and the pixels between them."""
    return math.ceil(math.sqrt(count)), 0 if count == 1 else 2


def _tiled(images: Array) -> Pixels:
    """Return a few images side by side as one, in red, green, blue and opacity."""
    count, height, width, channels = images.shape
    columns, gap = tiling(count)
    rows = math.ceil(count / columns)
    page = np.zeros((rows * (height + gap) - gap, columns * (width + gap) - gap, 4), np.uint8)
    for number, image in enumerate(images):
        top, left = number // columns * (height + gap), number % columns * (width + gap)
        tile = page[top : top + height, left : left + width]
        tile[..., :3] = image[..., :3]  # grey is repeated
        tile[..., 3] = image[..., 3] if channels == 4 else 255
    return page


def _scale(scene: Scene) -> str:
    """Return the colour scale with its ends, and the meaning of the colours of NaN and Inf."""
    limits = scene.limits
    stops = ",".join(DIVERGING if _is_signed(limits) else VIRIDIS)
    low, high = (escaped(number_text(end)) for end in _scale_of(limits))
    bar = f"{_SWATCH};width:200px;height:10px;margin:0 6px;vertical-align:middle"
    parts = [f'{low}<span style="{bar};background:linear-gradient(90deg,{stops})"></span>{high}']
    known = [value.statistics for value in scene.values if value.statistics]
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
