"""A topology as one SVG: chips on their mesh, cores in chips, hosts by colour.

A saved notebook has the SVG as a picture. The live form has it in its page, with a title for each
core, or for each host of a mesh that is drawn as dots. On a page, CSS variables set its colours. A
picture uses the default colours, which can be read on light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpunb._util.tables import escaped
from tpunb.display.describe.topology_description import (
    Plane,
    TopologyDescription,
    group_shades,
    planes_of,
)
from tpunb.display.draw import svg
from tpunb.display.draw.colours import HOST_COLOURS, INK
from tpunb.display.draw.topology.colours import Colouring, by_host, by_program
from tpunb.display.draw.topology.text import core_label, topology_phrases

MAX_DRAWN_CHIPS = 256
"""Meshes of more chips are drawn as one dot a chip."""

_MAX_DRAWN_SIDE = 32
_WIDTH, _HEIGHT, _DOTS_HEIGHT, _PLANE_HEIGHT = 640, 900, 560, 480
_MARGIN = 8
_HOST_LABEL = 15
_MUTED = f"var(--tpunb-muted,{INK})"
_PAPER = "var(--tpunb-paper,#fff)"
_LINK = "var(--tpunb-link,#9aa4ae)"

Box = tuple[float, float, float, float]
"""Left, top, width and height."""


Corners = list[tuple[float, float]]
"""The top left corner of each core."""

Size = tuple[float, float]
"""Width and height."""

Named = Callable[[Sequence[int]], tuple[str, str]]
"""Returns the attributes and the title of the part of the drawing that shows some cores."""


def topology_html(topology: TopologyDescription) -> str:
    """Return the topology's name, its facts, and the drawing as a picture."""
    name, facts = topology.name or "TPU topology", drawing_phrases(topology)
    drawn = svg.as_picture(topology_drawing(topology), f"{name}: {' · '.join(facts)}")
    return svg.titled(name, facts, drawn)


def drawing_phrases(topology: TopologyDescription) -> list[str]:
    """Return the topology's facts, and how to read the drawing."""
    lines = topology_phrases(topology)
    if has_dots(topology):
        lines[1] += " · one dot a chip, hosts by colour"
    elif topology.mesh[2] > 1:
        lines[1] += " · diagonal links lead to the next planes"
    return lines


def has_dots(topology: TopologyDescription) -> bool:
    """Return whether the mesh is so large that a chip is drawn as a dot."""
    return topology.num_chips > MAX_DRAWN_CHIPS or max(topology.mesh[:2]) > _MAX_DRAWN_SIDE


def topology_drawing(
    topology: TopologyDescription,
    colouring: Colouring | None = None,
    *,
    plane: int = -1,
    zoom: float = 1,
    named: Named | None = None,
) -> str:
    """Draw a topology.

    Args:
        topology: The topology. Up to 256 chips get links and labels; larger meshes are drawn as
            one dot a chip.
        colouring: The colours of the cores; by default of the program, or of the hosts.
        plane: The z of the only plane to draw; -1 for all planes.
        zoom: The size of a live drawing, as a multiple of the size that fits.
        named: The attributes and titles of a live drawing's parts, each a core, or the dots of a
            host; None for a picture.
    """
    dots = has_dots(topology)
    page = (_dots_page if dots else _chips_page)(topology)
    boxes = _core_boxes(topology, page, dots)
    if colouring is None:
        colouring = by_program(topology) if topology.usable_bytes else by_host(topology)
    planes = [each for each in planes_of(topology) if plane in (-1, each.z)]
    cores = [core for core, (_, _, z, _) in enumerate(topology.coordinates) if plane in (-1, z)]
    owners: Sequence[int] = topology.hosts if dots else range(topology.num_cores)
    if named is None:
        owners = [0] * topology.num_cores
    parts: list[str] = [_plane_titles(page, planes, dots)]
    if not dots:
        shades = group_shades(topology, topology.hosts, len(HOST_COLOURS))
        for each in planes:
            parts += [_hosts(each, page, shades), _links(topology, each, page)]
        parts += [_chips(topology, planes, page, shades)]
    parts += [_cores(cores, *boxes, colouring, owners, named)]
    if not dots:
        parts += [_labels(topology, cores, *boxes, colouring)]
    box = page.box(plane) if plane >= 0 else (0, 0, page.width, page.height)
    size = ""
    if named is not None:
        # A single plane is larger.
        fits = max(1, min(page.width / box[2], _PLANE_HEIGHT / box[3])) * box[2]
        size = (
            f'style="width:calc({zoom:g} * min(100%, {svg.short(fits)}px))" role="listbox" '
            'aria-multiselectable="true" aria-label="Cores"'
        )
    return svg.document(parts, box, size)


@dataclass(frozen=True, slots=True)
class _Page:
    """The planes of a mesh beside each other, in rows, by z; all measures are in pixels.

    Attributes:
        depth: The number of planes.
        columns: The number of planes beside each other.
        step: From one plane to the next, across and down.
        gap: The part of `step` that is between the planes.
        inset: From a plane's corner to its first chip's corner.
        pitch: From one chip to the next.
        block: Chips of one host along x and y; the whole plane's if hosts
            do not form blocks.
        block_gap: Extra room between blocks along x and y.
    """

    depth: int
    columns: int
    step: tuple[float, float]
    gap: tuple[float, float]
    inset: tuple[float, float]
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
        return 2 * _MARGIN + self.rows * self.step[1] - self.gap[1]

    def box(self, z: int) -> Box:
        """Return the box of a plane."""
        down, across = divmod(z, self.columns)
        left, top = across * self.step[0], down * self.step[1]
        width, height = (step - gap for step, gap in zip(self.step, self.gap, strict=True))
        return left, top, width + 2 * _MARGIN, height + 2 * _MARGIN

    def corner(self, x: Any, y: Any, z: Any) -> tuple[Any, Any]:
        """Return the top left corner of a chip's cell, or of many at once."""
        down, across = divmod(z, self.columns)
        left = _MARGIN + self.inset[0] + across * self.step[0]
        top = _MARGIN + self.inset[1] + down * self.step[1]
        return (
            left + x * self.pitch + x // self.block[0] * self.block_gap[0],
            top + y * self.pitch + y // self.block[1] * self.block_gap[1],
        )

    def centre(self, x: int, y: int, z: int) -> tuple[float, float]:
        """Return the middle of a chip."""
        left, top = self.corner(x, y, z)
        return left + self.pitch / 2, top + self.pitch / 2


def _dots_page(topology: TopologyDescription) -> _Page:
    """Place dots: the largest dots that fit a screen."""
    width, height, depth = topology.mesh
    gap, title = (14, 12), (17 if depth > 1 else 0)
    for pitch in range(16, 2, -1):
        step = width * pitch + gap[0], height * pitch + gap[1] + title
        columns = min(depth, max(1, (_WIDTH - 2 * _MARGIN + gap[0]) // step[0]))
        page = _Page(depth, columns, step, gap, (0, title), pitch, (width, height))
        if columns * step[0] <= _WIDTH and page.rows * step[1] <= _DOTS_HEIGHT:
            break
    return page


def _chips_page(topology: TopologyDescription) -> _Page:
    """Place chips that are drawn one by one."""
    width, height, depth = topology.mesh
    first = next(iter(planes_of(topology)[0].blocks.values()), None)
    block = (first.width, first.height) if first else (width, height)
    gaps = (14.0, 14.0 + _HOST_LABEL) if first else (0.0, 0.0)
    columns = min(depth, 4)
    fixed = columns * ((width // block[0]) * gaps[0] + 36) + 2 * _MARGIN
    widest = 60.0 if topology.cores_per_chip == 1 else 84.0
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
        pitch=pitch,
        block=block,
        block_gap=gaps,
    )


def _chip_inset(page: _Page) -> float:
    return max(2.0, page.pitch * 0.09)


def _core_boxes(topology: TopologyDescription, page: _Page, dots: bool) -> tuple[Corners, Size]:
    """Return the corner of each core, and the common size of all cores."""
    x, y, z, slot = np.asarray(topology.coordinates).T
    left, top = page.corner(x, y, z)
    per_chip = topology.cores_per_chip
    inset = rim = 0.0
    side = page.pitch - 1
    if not dots:
        inset = _chip_inset(page)
        side = page.pitch - 2 * inset
        rim = max(1.5, side * 0.08)
    width, height = (side - rim * (per_chip + 1)) / per_chip, side - 2 * rim
    corners = np.stack([left + inset + rim + slot * (width + rim), top + inset + rim], axis=1)
    return corners.tolist(), (width, height)


def _plane_titles(page: _Page, planes: Sequence[Plane], dots: bool) -> str:
    if page.depth == 1:
        return ""
    texts = []
    for plane in planes:
        left, top = page.corner(0, 0, plane.z)
        above = 4 if dots else 10 + (_HOST_LABEL if plane.blocks else 0)
        texts.append(_text(left, top - above, f"z = {plane.z}"))
    size = 10 if dots else 12
    return f'<g font-size="{size}" font-weight="600" fill="{_MUTED}">{"".join(texts)}</g>'


def _hosts(plane: Plane, page: _Page, shades: Sequence[int]) -> str:
    """Return a tinted region for each host, with its name above."""
    regions, names = [], []
    for host, of_host in plane.blocks.items():
        colour = HOST_COLOURS[shades[host]]
        left, top = page.corner(of_host.left, of_host.top, plane.z)
        width, height = of_host.width * page.pitch + 8, of_host.height * page.pitch + 8
        regions.append(
            f'<rect x="{svg.short(left - 4)}" y="{svg.short(top - 4)}" width="{svg.short(width)}" '
            f'height="{svg.short(height)}" rx="8" fill="{colour}" stroke="{colour}"/>'
        )
        # Place the name between two chips, so that a link along y does not cross it.
        even = of_host.width % 2 == 0
        roomy = len(plane.blocks) == 1 or (even and page.pitch > 42)
        middle = left + (of_host.width * page.pitch / 2 if even else 0)
        name = f"host {host}" if roomy else str(host)
        names.append(_text(middle, top - 8, name, ' text-anchor="middle"' if even else ""))
    return (
        f'<g fill-opacity=".13" stroke-opacity=".45">{"".join(regions)}</g>'
        f'<g font-size="10.5" font-weight="600" fill="{_MUTED}">{"".join(names)}</g>'
    )


def _links(topology: TopologyDescription, plane: Plane, page: _Page) -> str:
    """Return links between neighbours, and dotted stubs where an axis closes to a ring.

    Links to the next and to the previous plane leave a chip at its upper right and
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
    thick = 3 if page.pitch > 40 else 2
    dotted = f'<path d="{_lines(stubs)}" stroke-dasharray="{1.5 * thick} {1.2 * thick}"/>'
    return (
        f'<g stroke="{_LINK}" stroke-width="{thick}"><path d="{_lines(links)}"/>'
        f"{dotted if stubs else ''}</g>"
    )


def _chips(
    topology: TopologyDescription, planes: Iterable[Plane], page: _Page, shades: Sequence[int]
) -> str:
    """Return the outlines of chips, one path for each colour."""
    inset = _chip_inset(page)
    side = page.pitch - 2 * inset
    outlines: dict[str, list[str]] = {}
    for plane in planes:
        for (x, y), cores in plane.chips.items():
            left, top = page.corner(x, y, plane.z)
            colour = HOST_COLOURS[shades[topology.hosts[cores[0]]]]
            place = f"M{svg.short(left + inset)} {svg.short(top + inset)}"
            outlines.setdefault(colour, []).append(
                f"{place}h{svg.short(side)}v{svg.short(side)}h-{svg.short(side)}z"
            )
    paths = (f'<path d="{"".join(d)}" stroke="{colour}"/>' for colour, d in outlines.items())
    return f'<g fill="{_PAPER}" stroke-width="1.5" stroke-linejoin="round">{"".join(paths)}</g>'


def _cores(
    shown: Sequence[int],
    corners: Corners,
    size: Size,
    colouring: Colouring,
    owners: Sequence[int],
    named: Named | None,
) -> str:
    """Return a path for each colour and owner.

    In a picture, a core is a short line, as thick as the core is high, so that each of thousands
    takes a few bytes. A live core is a box, which has a height for pointers and for the focus.
    """
    width, height = (round(side, 1) for side in size)
    paint, shape, to_end, down = "stroke", f"h{width:g}", width, height / 2
    if named:
        paint, shape, to_end, down = "fill", f"h{width:g}v{height:g}h-{width:g}z", 0, 0
    begins = np.round(np.add(corners, (0, down)), 1).tolist()
    groups: dict[tuple[int, int], list[int]] = {}
    for core in shown:
        groups.setdefault((colouring.places[core], owners[core]), []).append(core)
    paths = []
    for (place, _), cores in groups.items():
        ends = [(0.0, 0.0), *((x + to_end, y) for x, y in (begins[core] for core in cores))]
        d = "".join(
            f"m{begins[core][0] - x:.5g} {begins[core][1] - y:.5g}{shape}"
            for core, (x, y) in zip(cores, ends, strict=False)
        )
        attributes, title = named(cores) if named else ("", "")
        end = f"><title>{escaped(title)}</title></path>" if title else "/>"
        paths.append(f'<path d="{d}" {paint}="{colouring.fills[place]}"{attributes}{end}')
    return f'<g class="tpunb-cores" stroke-width="{svg.short(height)}">{"".join(paths)}</g>'


def _labels(
    topology: TopologyDescription,
    shown: Sequence[int],
    corners: Corners,
    size: Size,
    colouring: Colouring,
) -> str:
    """Return the cores' labels; empty if they would be unreadable."""
    width, height = size
    labels = [core_label(topology, core) for core in range(topology.num_cores)]
    letters = min(14.0, 0.92 * width / (0.64 * max(map(len, labels))))
    if letters < 5.5:
        return ""
    texts = []
    for core in shown:
        left, top = corners[core]
        ink = f' fill="{colouring.inks[colouring.places[core]]}"'
        texts.append(_text(left + width / 2, top + height / 2 + 0.36 * letters, labels[core], ink))
    return (
        f'<g class="tpunb-labels" font-size="{svg.short(letters)}" font-weight="600" '
        f'text-anchor="middle">{"".join(texts)}</g>'
    )


def _lines(ends: Iterable[tuple[tuple[float, float], tuple[float, float]]]) -> str:
    """Return straight lines as a path."""
    return "".join(
        f"M{svg.short(x)} {svg.short(y)}L{svg.short(to_x)} {svg.short(to_y)}"
        for (x, y), (to_x, to_y) in ends
    )


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text{attributes} x="{svg.short(x)}" y="{svg.short(y)}">{escaped(text)}</text>'
