"""A topology as a picture: chips on their mesh, cores in chips, hosts by colour."""

from __future__ import annotations

import functools
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb.display.describe.topology_description import (
    UNASSIGNED,
    Plane,
    TopologyDescription,
    host_shades,
    planes_of,
)
from tpunb.display.draw.canvas import HOST_COLOURS, INK, ON_LIGHT, Canvas, ascii_text, new_canvas
from tpunb.display.draw.topology_text import (
    assignment_phrase,
    core_label,
    links_phrase,
    program_phrase,
    topology_facts,
)

WIDTH = 900
MARGIN = 18

_TITLE_TOP = MARGIN - 4
_LINES_TOP = MARGIN + 25
_LINE = 18


def header_tops(header: list[str]) -> list[int]:
    """The tops of the header's lines, the title first."""
    return [_TITLE_TOP, *(_LINES_TOP + _LINE * number for number in range(len(header) - 1))]


def header_height(header: list[str]) -> int:
    """The height of a header with the margin above and the gap below it."""
    return MARGIN + 27 + _LINE * (len(header) - 1) + 8


def header_width(header: list[str]) -> float:
    """The width of a page that has room for its header."""
    return 2 * MARGIN + max(7.0 * len(line) for line in header)


@dataclass(frozen=True, slots=True)
class PlaneGrid:
    """The planes of a mesh beside each other, in rows, by z.

    Attributes:
        depth: How many planes there are.
        columns: How many are beside each other.
        step: From one plane to the next, across and down.
        gap: How much of that is between the planes.
        inset: From a plane's corner to that of its first chip.
        top: Where the planes begin.
    """

    depth: int
    columns: int
    step: tuple[float, float]
    gap: tuple[float, float]
    inset: tuple[float, float]
    top: float

    @property
    def rows(self) -> int:
        """The number of planes below each other."""
        return math.ceil(self.depth / self.columns)

    @property
    def width(self) -> float:
        """The width of the page."""
        return 2 * MARGIN + self.columns * self.step[0] - self.gap[0]

    @property
    def height(self) -> float:
        """The height of the page."""
        return self.top + self.rows * self.step[1] - self.gap[1] + MARGIN

    def origin(self, z: int) -> tuple[float, float]:
        """The top left corner of a plane's first chip."""
        down, across = divmod(z, self.columns)
        return (
            MARGIN + self.inset[0] + across * self.step[0],
            self.top + self.inset[1] + down * self.step[1],
        )


_DOTS_HEIGHT = 640
_DOTS_GAP = (14, 12)
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

    planes, pitch = _dots_page(topology, header_height(header))
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


def _dots_page(topology: TopologyDescription, top: int) -> tuple[PlaneGrid, int]:
    """Places the planes, and from one dot to the next: the largest dots that fit a screen."""
    width, height, depth = topology.mesh
    title = 17 if depth > 1 else 0
    for pitch in range(16, 2, -1):
        step = width * pitch + _DOTS_GAP[0], height * pitch + _DOTS_GAP[1] + title
        columns = min(depth, max(1, (WIDTH - 2 * MARGIN + _DOTS_GAP[0]) // step[0]))
        planes = PlaneGrid(depth, columns, step, _DOTS_GAP, (0, title), top)
        if columns * step[0] <= WIDTH and planes.rows * step[1] <= _DOTS_HEIGHT:
            break
    return planes, pitch


def _draw_dots(
    pixels: Pixels, topology: TopologyDescription, planes: PlaneGrid, pitch: int
) -> None:
    """Fills each plane at once; places without a chip stay empty."""
    width, height, depth = topology.mesh
    x, y, z, _ = np.asarray(topology.coordinates, np.int64).T
    shades = np.asarray(host_shades(topology, len(HOST_COLOURS)), np.uint8)
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


MAX_DRAWN_CHIPS = 256
"""Meshes of more chips are drawn as one dot a chip."""

_MAX_DRAWN_SIDE = 32
_HEIGHT = 1000
_GAP = (18, 12)
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
    header = _header(topology)
    if _has_dots(topology):
        return dots_png(topology, header)
    page = _chips_page(topology, header_height(header))
    planes = page.planes
    with new_canvas(max(header_width(header), planes.width), planes.height) as canvas:
        _write_header(canvas, header)
        _draw_chips(canvas, topology, page)
        return canvas.png()


def _has_dots(topology: TopologyDescription) -> bool:
    """Returns whether a mesh is too large to draw its chips one by one."""
    too_many = topology.num_chips > MAX_DRAWN_CHIPS
    return too_many or max(topology.mesh[:2]) > _MAX_DRAWN_SIDE


def _header(topology: TopologyDescription) -> list[str]:
    lines = [
        ascii_text(topology.name) or "TPU topology",
        topology_facts(topology),
        links_phrase(topology),
        assignment_phrase(topology),
        program_phrase(topology),
    ]
    if _has_dots(topology):
        lines[2] += " · one dot a chip, hosts by colour"
    elif topology.mesh[2] > 1:
        lines[2] += " · diagonal links lead to the next planes"
    return [line for line in lines if line]


def _write_header(canvas: Canvas, header: list[str]) -> None:
    top, *tops = header_tops(header)
    canvas.text(MARGIN, top, header[0], size=19, bold=True)
    for top, line in zip(tops, header[1:], strict=True):
        canvas.text(MARGIN, top, line, colour=INK)


@dataclass(frozen=True, slots=True)
class _Page:
    """Measures of a drawing, in pixels.

    Attributes:
        planes: Where the planes are.
        pitch: From one chip to the next.
        block: Chips of one host along x and y; the whole plane's where hosts
            are no blocks.
        gap_x: Extra room between blocks along x.
        gap_y: The same along y.
    """

    planes: PlaneGrid
    pitch: float
    block: tuple[int, int]
    gap_x: float = 0
    gap_y: float = 0

    def corner(self, x: int, y: int, z: int) -> tuple[float, float]:
        """The top left corner of a chip's cell."""
        left, top = self.planes.origin(z)
        return (
            left + x * self.pitch + x // self.block[0] * self.gap_x,
            top + y * self.pitch + y // self.block[1] * self.gap_y,
        )

    def centre(self, x: int, y: int, z: int) -> tuple[float, float]:
        """The middle of a chip."""
        left, top = self.corner(x, y, z)
        return left + self.pitch / 2, top + self.pitch / 2


def _chips_page(topology: TopologyDescription, top: float) -> _Page:
    """Places the planes of a mesh whose chips are drawn one by one."""
    width, height, depth = topology.mesh
    blocks = planes_of(topology)[0].blocks
    first = next(iter(blocks.values()), None)
    block = (first.width, first.height) if first else (width, height)
    columns = min(depth, 4)
    gap_x, gap_y = (14.0, 14.0 + _HOST_LABEL) if first else (0.0, 0.0)
    fixed = columns * ((width // block[0]) * gap_x + 36) + 2 * MARGIN
    widest = 66.0 if topology.cores_per_chip == 1 else 92.0
    across = (WIDTH - fixed) / (columns * width)
    down = (_HEIGHT - height // block[1] * gap_y) / height
    pitch = max(20.0, math.floor(min(widest, across, down)))
    rim = min(24.0, pitch / 2) if any(topology.wraps) else 6.0
    plane_width = width * pitch + (width // block[0] - 1) * gap_x + 2 * rim
    above = (_HOST_LABEL if first else 0) + (22 if depth > 1 else 0)
    plane_height = above + height * pitch + (height // block[1] - 1) * gap_y + 2 * rim
    planes = PlaneGrid(
        depth,
        columns,
        step=(plane_width + _GAP[0], plane_height + _GAP[1]),
        gap=_GAP,
        inset=(rim, above + rim),
        top=top,
    )
    return _Page(planes, pitch, block, gap_x, gap_y)


def _draw_chips(canvas: Canvas, topology: TopologyDescription, page: _Page) -> None:
    shades = host_shades(topology, len(HOST_COLOURS))
    for plane in planes_of(topology):
        if topology.mesh[2] > 1:
            left, top = page.planes.origin(plane.z)
            label = _HOST_LABEL if plane.blocks else 0
            canvas.text(left, top - label - 24, f"z = {plane.z}", bold=True)
        _draw_hosts(canvas, plane, page, shades)
        _draw_links(canvas, topology, plane, page)
        _draw_plane(canvas, topology, plane, page, shades)


def _draw_hosts(canvas: Canvas, plane: Plane, page: _Page, shades: list[int]) -> None:
    """A tinted region for each host, with its name above."""
    for host, block in plane.blocks.items():
        colour = HOST_COLOURS[shades[host]]
        left, top = page.corner(block.left, block.top, plane.z)
        size = (block.width * page.pitch + 8, block.height * page.pitch + 8)
        canvas.boxes(
            [(left - 4, top - 4)],
            size,
            fills=[_tint(colour, 0.13)],
            edges=[_tint(colour, 0.45)],
            radius=8,
        )
        # Between two chips, so that a link along y does not cross it.
        even = block.width % 2 == 0
        roomy = len(plane.blocks) == 1 or (even and page.pitch > 42)
        name = f"host {host}" if roomy else str(host)
        canvas.text(
            left + (block.width * page.pitch / 2 if even else 0),
            top - 7,
            name,
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


def _draw_plane(
    canvas: Canvas,
    topology: TopologyDescription,
    plane: Plane,
    page: _Page,
    shades: list[int],
) -> None:
    """The chips of a plane and the cores inside them."""
    inset = max(2.0, page.pitch * 0.09)
    side = page.pitch - 2 * inset
    rim = max(1.5, side * 0.08)
    corners, edges, core_corners, fills, labels = [], [], [], [], []
    per_chip = topology.cores_per_chip
    core_width = (side - rim * (per_chip + 1)) / per_chip
    core_height = side - 2 * rim
    for (x, y), cores in plane.chips.items():
        left, top = page.corner(x, y, plane.z)
        corners.append((left + inset, top + inset))
        edges.append(HOST_COLOURS[shades[topology.hosts[cores[0]]]])
        for core in cores:
            slot = topology.coordinates[core][3]
            at = (left + inset + rim + slot * (core_width + rim), top + inset + rim)
            core_corners.append(at)
            fills.append(_core_fill(topology, core, shades))
            labels.append((at[0] + core_width / 2, at[1] + core_height / 2, core))
    canvas.boxes(
        corners,
        (side, side),
        fills=["white"],
        edges=edges,
        radius=side * 0.14,
        line=1.4,
        layer=3,
    )
    canvas.boxes(core_corners, (core_width, core_height), fills=fills, radius=side * 0.09, layer=4)
    for across, down, core in labels:
        _label_core(canvas, topology, core, (across, down), core_width)


def _core_fill(topology: TopologyDescription, core: int, shades: list[int]) -> Any:
    colour = HOST_COLOURS[shades[topology.hosts[core]]]
    if not topology.num_replicas:
        return colour
    if topology.replicas[core] == UNASSIGNED:
        return _IDLE
    # Later logical devices are lighter, so that the parts of a replica show.
    parts = max(1, topology.num_logical_devices - 1)
    return _tint(colour, 1 - 0.28 * topology.logical_devices[core] / parts)


def _label_core(
    canvas: Canvas,
    topology: TopologyDescription,
    core: int,
    centre: tuple[float, float],
    width: float,
) -> None:
    text = core_label(topology, core)
    size = min(14.0, 0.92 * width / (0.64 * len(text)))
    if size < 5.5:
        return
    colour = (
        ON_LIGHT if topology.num_replicas and topology.replicas[core] == UNASSIGNED else "white"
    )
    across, down = centre
    canvas.text(
        across,
        down,
        text,
        size=size,
        colour=colour,
        bold=True,
        across="center",
        down="center",
    )


def _tint(colour: str, strength: float) -> tuple[float, float, float]:
    """A colour mixed with white."""
    from matplotlib.colors import to_rgb

    red, green, blue = (1 - strength * (1 - part) for part in to_rgb(colour))
    return red, green, blue
