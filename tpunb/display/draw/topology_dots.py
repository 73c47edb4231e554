"""A large topology as a picture: one dot a chip, coloured by host.

Drawn by Pillow alone: ten thousand squares and thirty words take matplotlib
longer than the rest of a display.
"""

from __future__ import annotations

import functools
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb.display.describe.topology import TopologyDescription
from tpunb.display.draw import layout
from tpunb.display.draw.canvas import HOST_COLOURS, INK
from tpunb.display.draw.topology_page import (
    MARGIN,
    WIDTH,
    PlaneGrid,
    header_height,
    header_tops,
    header_width,
)

__all__ = ["dots_png"]

_HEIGHT = 640
_GAP = (14, 12)
_STEPS = 16
"""From nothing to a text's colour: enough for smooth letters."""

_FIRST_TEXT = 1 + len(HOST_COLOURS)
"""The palette is nothing, the hosts' colours, then the steps to `INK`."""

Pixels = npt.NDArray[np.uint8]


def dots_png(topology: TopologyDescription, header: list[str]) -> bytes:
    """Draws a topology of many chips.

    Args:
        topology: What to draw.
        header: The lines above it, the title first.

    Returns:
        A PNG file with a palette; the same topology gives the same bytes.
    """
    from PIL import Image

    planes, pitch = _planes(topology, header_height(header))
    width = math.ceil(max(planes.width, header_width(header)))
    pixels = np.zeros((round(planes.height), width), np.uint8)
    _draw_dots(pixels, topology, planes, pitch)
    _draw_header(pixels, header)
    if topology.mesh[2] > 1:
        for z in range(topology.mesh[2]):
            left, top = map(round, planes.origin(z))
            _write(pixels, (left, top - 3), f"z = {z}", size=10)
    height, width = pixels.shape
    image = Image.frombytes("P", (width, height), pixels.tobytes())
    colours, opacities = _palette()
    image.putpalette(colours)
    buffer = io.BytesIO()
    image.save(buffer, "png", transparency=opacities)
    return buffer.getvalue()


def _planes(topology: TopologyDescription, top: int) -> tuple[PlaneGrid, int]:
    """Places the planes, and from one dot to the next: the largest dots that fit a screen."""
    width, height, depth = topology.mesh
    title = 17 if depth > 1 else 0
    for pitch in range(16, 2, -1):
        step = width * pitch + _GAP[0], height * pitch + _GAP[1] + title
        columns = min(depth, max(1, (WIDTH - 2 * MARGIN + _GAP[0]) // step[0]))
        planes = PlaneGrid(depth, columns, step, _GAP, (0, title), top)
        if columns * step[0] <= WIDTH and planes.rows * step[1] <= _HEIGHT:
            break
    return planes, pitch


def _draw_dots(
    pixels: Pixels, topology: TopologyDescription, planes: PlaneGrid, pitch: int
) -> None:
    """Fills each plane at once; places without a chip stay empty."""
    width, height, depth = topology.mesh
    x, y, z, _ = np.asarray(topology.coordinates, np.int64).T
    shades = np.asarray(layout.host_shades(topology, len(HOST_COLOURS)), np.uint8)
    chips = np.zeros((depth, height, width), np.uint8)
    chips[z, y, x] = 1 + shades[np.asarray(topology.hosts)]
    dot = np.zeros((pitch, pitch), np.uint8)
    dot[:-1, :-1] = 1
    for plane in range(depth):
        left, top = map(round, planes.origin(plane))
        drawn = np.kron(chips[plane], dot)
        pixels[top : top + drawn.shape[0], left : left + drawn.shape[1]] = drawn


def _draw_header(pixels: Pixels, header: list[str]) -> None:
    top, *tops = header_tops(header)
    _write(pixels, (MARGIN, top), header[0], size=19, title=True)
    for top, line in zip(tops, header[1:], strict=True):
        _write(pixels, (MARGIN, top), line, size=12, hanging=True)


def _write(
    pixels: Pixels,
    place: tuple[int, int],
    text: str,
    *,
    size: int,
    title: bool = False,
    hanging: bool = False,
) -> None:
    """Writes text: a title, hanging, or another line on its baseline."""
    from PIL import Image, ImageDraw

    font = _font(size, title)
    left, top, right, bottom = font.getbbox("lp" + text, anchor="ls")
    del left, right
    begin, up = place[0], place[1] + (0 if title or hanging else round(top))
    target = pixels[max(0, up) : up + round(bottom - top), begin:]
    mask = Image.new("L", (target.shape[1], target.shape[0]))
    ImageDraw.Draw(mask).text((0, -top), text, fill=255, font=font, anchor="ls")
    strength = np.asarray(mask) // (256 // _STEPS)
    target[strength > 0] = (_FIRST_TEXT + strength)[strength > 0]


@functools.cache
def _font(size: int, bold: bool) -> Any:
    """The font that matplotlib brings along, as in the other pictures."""
    import matplotlib as mpl
    from PIL import ImageFont

    file = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(mpl.get_data_path(), "fonts", "ttf", file)
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def _palette() -> tuple[list[int], bytes]:
    """The colours one after the other, and how opaque each of them is."""
    from matplotlib.colors import to_rgb

    colours = [(0.0, 0.0, 0.0), *map(to_rgb, HOST_COLOURS), *[to_rgb(INK)] * _STEPS]
    steps = [round(255 * step / (_STEPS - 1)) for step in range(_STEPS)]
    opacities = bytes([0, *[255] * len(HOST_COLOURS), *steps])
    return [round(255 * part) for colour in colours for part in colour], opacities
