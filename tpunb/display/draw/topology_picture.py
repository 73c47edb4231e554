"""A topology as a picture: chips on their mesh, cores in chips, hosts by colour."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpunb.display.describe.topology_description import (
    UNASSIGNED,
    Plane,
    TopologyDescription,
    group_shades,
    planes_of,
)
from tpunb.display.draw.canvas import ON_LIGHT, Canvas, ascii_text, new_canvas
from tpunb.display.draw.colours import HOST_COLOURS
from tpunb.display.draw.topology_text import (
    core_label,
    topology_phrases,
)

MAX_DRAWN_CHIPS = 256
"""Meshes of more chips are drawn as one dot a chip."""

_MAX_DRAWN_SIDE = 32
_WIDTH = 900
_HEIGHT = 1000
_DOTS_HEIGHT = 640
_MARGIN = 18
_LINE = 18
_HOST_LABEL = 15
_LINK = "#9aa4ae"
_IDLE = "#c4cad0"


def topology_png(topology: TopologyDescription) -> bytes:
    """Draws a topology as a PNG of at most some 900 pixels' width.

    Args:
        topology: What to draw. Up to 256 chips get links and legible cores;
            larger meshes are drawn as one dot a chip, coloured by host.

    Returns:
        The PNG file; the same topology gives the same bytes.
    """
    has_dots = topology.num_chips > MAX_DRAWN_CHIPS or max(topology.mesh[:2]) > _MAX_DRAWN_SIDE
    lines = topology_phrases(topology)
    if has_dots:
        lines[1] += " · one dot a chip, hosts by colour"
    elif topology.mesh[2] > 1:
        lines[1] += " · diagonal links lead to the next planes"
    page = (_dots_page if has_dots else _chips_page)(topology, _MARGIN + 35 + _LINE * len(lines))
    width = max(2 * _MARGIN + 7 * max(map(len, lines)), page.width)
    shades = group_shades(topology, topology.hosts, len(HOST_COLOURS))
    with new_canvas(width, page.height) as canvas:
        title = ascii_text(topology.name) or "TPU topology"
        canvas.text(_MARGIN, _MARGIN - 4, title, size=19, bold=True)
        for number, line in enumerate(lines):
            canvas.text(_MARGIN, _MARGIN + 25 + _LINE * number, line)
        if has_dots:
            _draw_dots(canvas, topology, page, shades)
            return canvas.png(palette=True)
        for plane in planes_of(topology):
            if page.depth > 1:
                left, top = page.corner(0, 0, plane.z)
                label = _HOST_LABEL if plane.blocks else 0
                canvas.text(left, top - label - 24, f"z = {plane.z}", bold=True)
            _draw_hosts(canvas, plane, page, shades)
            _draw_links(canvas, topology, plane, page)
            _draw_chips(canvas, topology, plane, page, shades)
        return canvas.png()


@dataclass(frozen=True, slots=True)
class _Page:
    """The planes of a mesh beside each other, in rows, by z; all measures are in pixels.

    Attributes:
        depth: How many planes there are.
        columns: How many are beside each other.
        step: From one plane to the next, across and down.
        gap: How much of that is between the planes.
        inset: From a plane's corner to that of its first chip.
        top: Where the planes begin.
        pitch: From one chip to the next.
        block: Chips of one host along x and y; the whole plane's where hosts
            are no blocks.
        block_gap: Extra room between blocks along x and y.
    """

    depth: int
    columns: int
    step: tuple[float, float]
    gap: tuple[float, float]
    inset: tuple[float, float]
    top: float
    pitch: float
    block: tuple[int, int]
    block_gap: tuple[float, float] = (0, 0)

    @property
    def rows(self) -> int:
        """The number of planes below each other."""
        return math.ceil(self.depth / self.columns)

    @property
    def width(self) -> float:
        return 2 * _MARGIN + self.columns * self.step[0] - self.gap[0]

    @property
    def height(self) -> float:
        return self.top + self.rows * self.step[1] - self.gap[1] + _MARGIN

    def corner(self, x: Any, y: Any, z: Any) -> tuple[Any, Any]:
        """The top left corner of a chip's cell, or of many at once."""
        down, across = divmod(z, self.columns)
        left = _MARGIN + self.inset[0] + across * self.step[0]
        top = self.top + self.inset[1] + down * self.step[1]
        return (
            left + x * self.pitch + x // self.block[0] * self.block_gap[0],
            top + y * self.pitch + y // self.block[1] * self.block_gap[1],
        )

    def centre(self, x: int, y: int, z: int) -> tuple[float, float]:
        """The middle of a chip."""
        left, top = self.corner(x, y, z)
        return left + self.pitch / 2, top + self.pitch / 2


def _dots_page(topology: TopologyDescription, top: float) -> _Page:
    """Places dots: the largest that fit a screen."""
    width, height, depth = topology.mesh
    gap, title = (14, 12), (17 if depth > 1 else 0)
    for pitch in range(16, 2, -1):
        step = width * pitch + gap[0], height * pitch + gap[1] + title
        columns = min(depth, max(1, (_WIDTH - 2 * _MARGIN + gap[0]) // step[0]))
        page = _Page(depth, columns, step, gap, (0, title), top, pitch, (width, height))
        if columns * step[0] <= _WIDTH and page.rows * step[1] <= _DOTS_HEIGHT:
            break
    return page


def _draw_dots(
    canvas: Canvas, topology: TopologyDescription, page: _Page, shades: list[int]
) -> None:
    """Colours the pixels of all dots at once; places without a chip stay empty."""
    from matplotlib.colors import to_rgba_array

    palette = np.rint(255 * to_rgba_array(HOST_COLOURS)).astype(np.uint8)
    colours = palette[np.asarray(shades)[np.asarray(topology.hosts)]]
    x, y, z, _ = np.asarray(topology.coordinates).T
    left, top = page.corner(x, y, z)
    pixels = np.zeros((canvas.height, canvas.width, 4), np.uint8)
    side = int(page.pitch) - 1
    for down, across in np.ndindex(side, side):
        pixels[top + down, left + across] = colours
    canvas.image(pixels, (0, 0, canvas.width, canvas.height))
    for plane in range(page.depth if page.depth > 1 else 0):
        x, y = page.corner(0, 0, plane)
        canvas.text(x, y - 3, f"z = {plane}", size=10, down="baseline")


def _chips_page(topology: TopologyDescription, top: float) -> _Page:
    """Places chips that are drawn one by one."""
    width, height, depth = topology.mesh
    first = next(iter(planes_of(topology)[0].blocks.values()), None)
    block = (first.width, first.height) if first else (width, height)
    gaps = (14.0, 14.0 + _HOST_LABEL) if first else (0.0, 0.0)
    columns = min(depth, 4)
    fixed = columns * ((width // block[0]) * gaps[0] + 36) + 2 * _MARGIN
    widest = 66.0 if topology.cores_per_chip == 1 else 92.0
    across = (_WIDTH - fixed) / (columns * width)
    down = (_HEIGHT - height // block[1] * gaps[1]) / height
    pitch = max(20.0, math.floor(min(widest, across, down)))
    rim = min(24.0, pitch / 2) if any(topology.wraps) else 6.0
    above = (_HOST_LABEL if first else 0) + (22 if depth > 1 else 0)
    plane_width = width * pitch + (width // block[0] - 1) * gaps[0] + 2 * rim
    plane_height = above + height * pitch + (height // block[1] - 1) * gaps[1] + 2 * rim
    return _Page(
        depth,
        columns,
        step=(plane_width + 18, plane_height + 12),
        gap=(18, 12),
        inset=(rim, above + rim),
        top=top,
        pitch=pitch,
        block=block,
        block_gap=gaps,
    )


def _draw_hosts(canvas: Canvas, plane: Plane, page: _Page, shades: list[int]) -> None:
    """A tinted region for each host, with its name above."""
    for host, block in plane.blocks.items():
        colour = HOST_COLOURS[shades[host]]
        left, top = page.corner(block.left, block.top, plane.z)
        canvas.boxes(
            [(left - 4, top - 4)],
            (block.width * page.pitch + 8, block.height * page.pitch + 8),
            fills=[_tint(colour, 0.13)],
            edges=[_tint(colour, 0.45)],
            radius=8,
        )
        # Between two chips, so that a link along y does not cross it.
        even = block.width % 2 == 0
        roomy = len(plane.blocks) == 1 or (even and page.pitch > 42)
        canvas.text(
            left + (block.width * page.pitch / 2 if even else 0),
            top - 7,
            f"host {host}" if roomy else str(host),
            size=10.5,
            colour=colour,
            bold=True,
            across="center" if even else "left",
            down="baseline",
        )


def _draw_links(canvas: Canvas, topology: TopologyDescription, plane: Plane, page: _Page) -> None:
    """Links between neighbours, and stubs where an axis closes to a ring.

    Links to the next plane and to the one before leave a chip at its upper right and
    lower left corner.
    """
    width, height, depth = topology.mesh
    links, stubs = [], []
    corner = 0.48 * page.pitch
    chips = {(x, y, z) for x, y, z, _ in topology.coordinates}
    reach = page.pitch / 2 + min(20.0, page.pitch / 2 - 2)
    for x, y in plane.chips:
        here = page.centre(x, y, plane.z)
        if (x + 1, y) in plane.chips:
            links.append((here, page.centre(x + 1, y, plane.z)))
        if (x, y + 1) in plane.chips:
            links.append((here, page.centre(x, y + 1, plane.z)))
        for side, last, (across, down), wraps in (
            (x, width - 1, (reach, 0.0), topology.wraps[0]),
            (y, height - 1, (0.0, reach), topology.wraps[1]),
        ):
            if wraps and side == 0:
                stubs.append((here, (here[0] - across, here[1] - down)))
            if wraps and side == last:
                stubs.append((here, (here[0] + across, here[1] + down)))
        for step, last in ((1, depth - 1), (-1, 0)):
            end = (here, (here[0] + step * corner, here[1] - step * corner))
            if (x, y, plane.z + step) in chips:
                links.append(end)
            elif topology.wraps[2] and plane.z == last:
                stubs.append(end)
    thick = 3.0 if page.pitch > 40 else 2.0
    canvas.lines(links, colour=_LINK, width=thick, layer=2)
    canvas.lines(stubs, colour=_LINK, width=thick, dashed=True, layer=2)


def _draw_chips(
    canvas: Canvas, topology: TopologyDescription, plane: Plane, page: _Page, shades: list[int]
) -> None:
    """The chips of a plane and the cores inside them."""
    inset = max(2.0, page.pitch * 0.09)
    side = page.pitch - 2 * inset
    rim = max(1.5, side * 0.08)
    per_chip = topology.cores_per_chip
    width, height = (side - rim * (per_chip + 1)) / per_chip, side - 2 * rim
    corners, edges, cores, core_corners = [], [], [], []
    for (x, y), of_chip in plane.chips.items():
        left, top = page.corner(x, y, plane.z)
        corners.append((left + inset, top + inset))
        edges.append(HOST_COLOURS[shades[topology.hosts[of_chip[0]]]])
        for core in of_chip:
            slot = topology.coordinates[core][3]
            cores.append(core)
            core_corners.append((left + inset + rim + slot * (width + rim), top + inset + rim))
    radius = side * 0.14
    canvas.boxes(
        corners, (side, side), fills=["white"], edges=edges, radius=radius, line=1.4, layer=3
    )
    fills = [_core_fill(topology, core, shades) for core in cores]
    canvas.boxes(core_corners, (width, height), fills=fills, radius=side * 0.09, layer=4)
    for core, fill, (left, top) in zip(cores, fills, core_corners, strict=True):
        text = core_label(topology, core)
        size = min(14.0, 0.92 * width / (0.64 * len(text)))
        if size < 5.5:
            continue
        canvas.text(
            left + width / 2,
            top + height / 2,
            text,
            size=size,
            colour=ON_LIGHT if fill == _IDLE else "white",
            bold=True,
            across="center",
            down="center",
        )


def _core_fill(topology: TopologyDescription, core: int, shades: list[int]) -> Any:
    colour = HOST_COLOURS[shades[topology.hosts[core]]]
    if not topology.num_replicas:
        return colour
    if topology.replicas[core] == UNASSIGNED:
        return _IDLE
    # Later logical devices are lighter, so that the parts of a replica show.
    parts = max(1, topology.num_logical_devices - 1)
    return _tint(colour, 1 - 0.28 * topology.logical_devices[core] / parts)


def _tint(colour: str, strength: float) -> tuple[float, float, float]:
    """A colour mixed with white."""
    from matplotlib.colors import to_rgb

    red, green, blue = (1 - strength * (1 - part) for part in to_rgb(colour))
    return red, green, blue
