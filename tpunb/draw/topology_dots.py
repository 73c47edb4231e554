"""A large topology as a picture: one dot a chip, coloured by host.

Only Pillow draws here: ten thousand squares and thirty words take matplotlib
longer than all the rest of a display.
"""

from __future__ import annotations

import functools
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb.describe.topology import TopologyDescription
from tpunb.draw import layout
from tpunb.draw.canvas import HOST_COLOURS, INK, MUTED

__all__ = ["dots_png"]

_WIDTH = 900
_HEIGHT = 640
_MARGIN = 18
_STEPS = 16
"""From white to a text's colour: enough for smooth letters."""

_FIRST_TEXT = 1 + len(HOST_COLOURS)
"""The palette is white, the hosts' colours, then the steps to `INK` and to `MUTED`."""

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

    page = _page(topology, _MARGIN + 27 + 18 * (len(header) - 1) + 8)
    least = 2 * _MARGIN + math.ceil(max(7.0 * len(line) for line in header))
    pixels = np.zeros((page.height, max(page.width, least)), np.uint8)
    _draw_dots(pixels, topology, page)
    _draw_header(pixels, header)
    if topology.mesh[2] > 1:
        for z in range(topology.mesh[2]):
            left, top = page.origin(z)
            _write(pixels, (left, top - 3), f"z = {z}", size=10)
    height, width = pixels.shape
    image = Image.frombytes("P", (width, height), pixels.tobytes())
    image.putpalette(_palette())
    buffer = io.BytesIO()
    image.save(buffer, "png")
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class _Page:
    """Measures of a picture, in pixels.

    Attributes:
        width: Of the whole picture.
        height: Of the whole picture.
        pitch: From one dot to the next.
        top: Where the first plane's dots begin.
        columns: How many planes are beside each other.
        step: From one plane to the next, across and down.
    """

    width: int
    height: int
    pitch: int
    top: int
    columns: int
    step: tuple[int, int]

    def origin(self, z: int) -> tuple[int, int]:
        """The top left corner of a plane."""
        down, across = divmod(z, self.columns)
        return _MARGIN + across * self.step[0], self.top + down * self.step[1]


def _page(topology: TopologyDescription, top: int) -> _Page:
    """Places the planes: the largest dots that fit a screen."""
    width, height, depth = topology.mesh
    title = 17 if depth > 1 else 0
    for pitch in range(16, 2, -1):
        step = width * pitch + 14, height * pitch + 12 + title
        columns = min(depth, max(1, (_WIDTH - 2 * _MARGIN + 14) // step[0]))
        rows = math.ceil(depth / columns)
        if columns * step[0] <= _WIDTH and rows * step[1] <= _HEIGHT:
            break
    return _Page(
        2 * _MARGIN + columns * step[0] - 14,
        top + rows * step[1] - 12 + _MARGIN,
        pitch,
        top + title,
        columns,
        step,
    )


def _draw_dots(pixels: Pixels, topology: TopologyDescription, page: _Page) -> None:
    """Fills each plane at once; places without a chip stay white."""
    width, height, depth = topology.mesh
    x, y, z, _ = np.asarray(topology.coordinates, np.int64).T
    shades = np.asarray(layout.host_shades(topology, len(HOST_COLOURS)), np.uint8)
    chips = np.zeros((depth, height, width), np.uint8)
    chips[z, y, x] = 1 + shades[np.asarray(topology.hosts)]
    dot = np.zeros((page.pitch, page.pitch), np.uint8)
    dot[:-1, :-1] = 1
    for plane in range(depth):
        left, top = page.origin(plane)
        drawn = np.kron(chips[plane], dot)
        pixels[top : top + drawn.shape[0], left : left + drawn.shape[1]] = drawn


def _draw_header(pixels: Pixels, header: list[str]) -> None:
    title, *lines = header
    _write(pixels, (_MARGIN, _MARGIN - 4), title, size=19, title=True)
    for number, line in enumerate(lines):
        _write(pixels, (_MARGIN, _MARGIN + 25 + 18 * number), line, size=12, hanging=True)


def _write(
    pixels: Pixels,
    place: tuple[int, int],
    text: str,
    *,
    size: int,
    title: bool = False,
    hanging: bool = False,
) -> None:
    """Writes text: a title in ink and hanging, or another line, muted, on its baseline."""
    from PIL import Image, ImageDraw

    font = _font(size, title)
    left, top, right, bottom = font.getbbox("lp" + text, anchor="ls")
    del left, right
    begin, up = place[0], place[1] + (0 if title or hanging else round(top))
    room = pixels[max(0, up) : up + round(bottom - top), begin:]
    mask = Image.new("L", (room.shape[1], room.shape[0]))
    ImageDraw.Draw(mask).text((0, -top), text, fill=255, font=font, anchor="ls")
    strength = np.asarray(mask) // (256 // _STEPS)
    first = _FIRST_TEXT + (0 if title else _STEPS)
    room[strength > 0] = (first + strength)[strength > 0]


@functools.cache
def _font(size: int, bold: bool) -> Any:
    """The font that matplotlib brings along, as in the other pictures."""
    import matplotlib as mpl
    from PIL import ImageFont

    file = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(mpl.get_data_path(), "fonts", "ttf", file)
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def _palette() -> list[int]:
    white = np.full(3, 255.0)
    colours = [white, *map(_rgb, HOST_COLOURS)]
    for text in (INK, MUTED):
        steps = np.linspace(0, 1, _STEPS)[:, None]
        colours += list(white + steps * (_rgb(text) - white))
    return [round(float(part)) for colour in colours for part in colour]


def _rgb(colour: str) -> npt.NDArray[np.float64]:
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)], np.float64)
