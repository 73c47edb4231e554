"""Descriptions as plain text, for terminals and `text/plain`.

Nothing here depends on the run: no ids, addresses, dates or durations.
"""

from __future__ import annotations

import itertools

from tpunb._util.plain_text import plain, shortened_between
from tpunb.display.describe.connection import ConnectionDescription
from tpunb.display.describe.replicas import ReplicaValue, ReplicaValuesDescription, Section
from tpunb.display.describe.topology import TopologyDescription
from tpunb.display.draw import formats, layout

__all__ = ["connection_text", "introduction_text", "replicas_text", "topology_text"]

WIDTH = 100
"""The longest line, in characters."""

MAX_CORES = 512
"""Topologies of more cores are not drawn as text."""

_MAX_LINES = 60
_MAX_ROWS = 64
_MAX_SECTIONS = 16

Position = tuple[int, int]


def topology_text(topology: TopologyDescription) -> str:
    """Draws a topology with box characters: hosts as boxes, chips in brackets.

    Args:
        topology: What to draw. If it is too large for a drawing of at most 100
            columns, there are the totals only.
    """
    lines = [
        " · ".join(part for part in (topology.name, formats.topology_facts(topology)) if part),
        formats.links_phrase(topology),
    ]
    phrases = (formats.assignment_phrase(topology), formats.program_phrase(topology))
    lines += filter(None, phrases)
    drawing = _drawing(topology) if topology.num_cores <= MAX_CORES else []
    if drawing and len(drawing) <= _MAX_LINES and max(map(len, drawing)) <= WIDTH:
        lines += ["", *drawing]
    return plain("\n".join(lines))


def _drawing(topology: TopologyDescription) -> list[str]:
    """The planes of the mesh, as many beside each other as fit."""
    titled = topology.mesh[2] > 1
    planes = layout.planes(topology)
    cells = {
        cores: f"[{' '.join(formats.core_label(topology, core) for core in cores)}]"
        for plane in planes
        for cores in plane.chips.values()
    }
    width = max(map(len, cells.values()))
    return _beside(
        [
            ([f"z = {plane.z}"] if titled else [])
            + _plane(
                plane,
                {place: cells[cores].ljust(width) for place, cores in plane.chips.items()},
            )
            for plane in planes
        ]
    )


def _plane(plane: layout.Plane, cells: dict[Position, str]) -> list[str]:
    """One plane: a box for each host, or bare chips if hosts are no blocks."""
    if not plane.blocks:
        return _rows(cells, layout.Block(0, 0, *_extent(cells)))
    ordered = sorted(plane.blocks.items(), key=lambda item: (item[1].top, item[1].left))
    widest = len(f"host {max(plane.blocks)}")
    lines = []
    for _, row in itertools.groupby(ordered, key=lambda item: item[1].top):
        boxes = [_box(_rows(cells, block), f"host {host}", widest) for host, block in row]
        lines += [" ".join(parts) for parts in zip(*boxes, strict=True)]
    return lines


def _extent(cells: dict[Position, str]) -> Position:
    return 1 + max(x for x, _ in cells), 1 + max(y for _, y in cells)


def _rows(cells: dict[Position, str], block: layout.Block) -> list[str]:
    # All cells are equally wide; a chip that is missing leaves a gap of that width.
    gap = " " * len(next(iter(cells.values())))
    across = range(block.left, block.left + block.width)
    down = range(block.top, block.top + block.height)
    return [" ".join(cells.get((x, y), gap) for x in across) for y in down]


def _box(rows: list[str], title: str, widest: int) -> list[str]:
    inside = max(widest + 3, len(rows[0]) + 2)
    top = f"┌─ {title} ".ljust(inside + 1, "─") + "┐"
    return [top, *(f"│ {row.ljust(inside - 2)} │" for row in rows), f"└{'─' * inside}┘"]


def _beside(planes: list[list[str]]) -> list[str]:
    """Planes from left to right, as many as fit, then the next row of them."""
    width = max(len(line) for plane in planes for line in plane)
    fit = max(1, (WIDTH + 3) // (width + 3))
    lines: list[str] = []
    for begin in range(0, len(planes), fit):
        row = planes[begin : begin + fit]
        height = max(map(len, row))
        padded = [plane + [""] * (height - len(plane)) for plane in row]
        if lines:
            lines.append("")
        lines += [
            "   ".join(part.ljust(width) for part in parts).rstrip()
            for parts in zip(*padded, strict=True)
        ]
    return lines


def replicas_text(description: ReplicaValuesDescription) -> str:
    """A line for each replica: its elements, if few, and its statistics."""
    alone = len(description.sections) == 1
    if alone and not description.num_replicas:
        return plain("\n".join(_section_lines(description.sections[0], alone=False)))
    lines = [formats.replicas_title(description)]
    for section in description.sections[:_MAX_SECTIONS]:
        lines += [f"  {line}" for line in _section_lines(section, alone=alone)]
    more = description.omitted + max(0, len(description.sections) - _MAX_SECTIONS)
    if more:
        lines.append(f"  {formats.and_more(more)}")
    return plain("\n".join(lines))


def _section_lines(section: Section, *, alone: bool) -> list[str]:
    title = formats.section_title(section, alone=alone)
    if not section.distributed:
        return _clipped([title, f"  {_value_line(section.values[0], same=True)}"])
    same = len({(value.dtype, value.shape) for value in section.values}) == 1
    if section.all_equal:
        return _clipped([title, f"  {_value_line(section.values[0], same=True)}"])
    digits = len(str(max(map(section.replica, range(len(section.values))))))
    rows = [
        f"  replica {section.replica(replica):>{digits}}  {_value_line(value, same=same)}"
        for replica, value in enumerate(section.values[:_MAX_ROWS])
    ]
    more = len(section.values) - len(rows)
    if more > 0:
        rows.append(f"  {formats.and_more(more)}")
    return _clipped([title, *rows])


def _value_line(value: ReplicaValue, *, same: bool) -> str:
    single = value.shape == () or value.shape is None
    parts = ["" if same else f"{value.dtype} {formats.shape_phrase(value.shape)}".strip()]
    parts.append(shortened_between(formats.nested_values(value), 60, ", "))
    # The statistics of a single number are the number.
    parts.append("" if single else formats.facts(value))
    parts.append("" if single else formats.flags(value.statistics))
    return "  ".join(part for part in parts if part)


def _clipped(lines: list[str]) -> list[str]:
    return [
        shortened_between(line.rstrip(), WIDTH - 2, "  ", ", ") for line in lines if line.strip()
    ]


def connection_text(connection: ConnectionDescription) -> str:
    """The summary of a connection."""
    rows = list(formats.connection_rows(connection))
    width = max(len(name) for name, _ in rows)
    lines = [formats.connection_title(connection)]
    lines += [f"  {name.ljust(width)}  {value}" for name, value in rows]
    return plain("\n".join([*lines, *connection.notes]))


def introduction_text(connection: ConnectionDescription) -> str:
    """What is connected to, beside a display of its topology."""
    parts = (formats.connection_title(connection), formats.replicas_phrase(connection))
    return plain("\n".join([" · ".join(filter(None, parts)), *connection.notes]))
