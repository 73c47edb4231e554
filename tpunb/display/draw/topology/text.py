"""A topology as plain text, and the phrases that its picture and its widget share.

Nothing here depends on the run: no ids, addresses, dates or durations.
"""

from __future__ import annotations

import itertools

from tpunb._util.plain_text import plain
from tpunb._util.units import byte_count, counted
from tpunb.display.describe.topology_description import (
    UNASSIGNED,
    Block,
    Plane,
    Position,
    TopologyDescription,
    planes_of,
)

_V5E_HOST = 8
"""Chips: Google's pages give a v5e slice hosts of 8, and its TPU VMs are workers of 4."""


def topology_phrases(topology: TopologyDescription) -> list[str]:
    """Return phrases for totals, mesh, links, and the device assignment and program if any."""
    phrases = (topology_facts, links_phrase, assignment_phrase, program_phrase)
    return [text for phrase in phrases if (text := phrase(topology))]


def topology_facts(topology: TopologyDescription) -> str:
    """Return the totals: `"8 chips · 8 cores · 1 host · 16 GiB HBM per core"`."""
    cores = counted(topology.num_cores, "core")
    parts = [
        counted(topology.num_chips, "chip"),
        *([] if topology.name == cores else [cores]),  # the name of a TPU without a type
        counted(topology.num_hosts, "host"),
    ]
    if topology.hbm_bytes:
        total = byte_count(topology.hbm_bytes * topology.num_cores)
        each = byte_count(topology.hbm_bytes)
        parts.append(
            f"{each} HBM" if topology.num_cores == 1 else f"{each} HBM per core, {total} in all"
        )
    return " · ".join(parts)


def links_phrase(topology: TopologyDescription) -> str:
    """Return the mesh, and the axes that close to a ring."""
    axes = [axis for axis, wraps in zip("xyz", topology.wraps, strict=True) if wraps]
    mesh = "×".join(str(side) for side in topology.mesh)
    phrase = f"mesh {mesh} (x, y, z)"
    if axes:
        listed = " and ".join(filter(None, [", ".join(axes[:-1]), axes[-1]]))
        phrase += f", links wrap around along {listed}"
    if topology.merged:
        phrase += "; a chip's 2 TensorCores act as one core"
    if topology.num_hosts > 1 and topology.num_chips == _V5E_HOST * topology.num_hosts:
        phrase += "; a host is 2 workers on TPU VMs"
    return phrase


def assignment_phrase(topology: TopologyDescription) -> str:
    """Return the device assignment in a line; empty without a device assignment."""
    if not topology.num_replicas:
        return ""
    phrase = counted(topology.num_replicas, "replica")
    if topology.num_logical_devices > 1:
        phrase += f" of {topology.num_logical_devices} logical devices (replica.device)"
    idle = sum(replica == UNASSIGNED for replica in topology.replicas)
    return f"{phrase}, {counted(idle, 'core')} unassigned" if idle else phrase


def program_phrase(topology: TopologyDescription) -> str:
    """Return the compiled program's share of a core's memory; empty without a program."""
    if not topology.usable_bytes:
        return ""
    needed, usable = byte_count(topology.needed_bytes), byte_count(topology.usable_bytes)
    over = topology.needed_bytes - topology.usable_bytes
    end = f": {byte_count(over)} too much" if over > 0 else ""
    return f"the compiled program needs {needed} of {usable} usable a core{end}"


def core_label(topology: TopologyDescription, core: int) -> str:
    """Return the label of a core: its number, or its part of a replica."""
    if not topology.num_replicas:
        return str(core)
    replica = topology.replicas[core]
    if replica == UNASSIGNED:
        return "–"
    if topology.num_logical_devices == 1:
        return f"r{replica}"
    return f"r{replica}.{topology.logical_devices[core]}"


WIDTH = 100
"""The longest line, in characters."""

MAX_CORES = 512
"""Topologies of more cores are not drawn as text."""

_MAX_LINES = 60


def topology_text(topology: TopologyDescription) -> str:
    """Draw a topology with box characters: hosts as boxes, chips in brackets.

    Args:
        topology: The topology. If it is too large for a drawing of at most 100
            columns, the text has only the totals.
    """
    lines = topology_phrases(topology)
    lines[0] = " · ".join(filter(None, [topology.name, lines[0]]))
    drawing = _drawing(topology) if topology.num_cores <= MAX_CORES else []
    if drawing and len(drawing) <= _MAX_LINES and max(map(len, drawing)) <= WIDTH:
        lines += ["", *drawing]
    return plain("\n".join(lines))


def _drawing(topology: TopologyDescription) -> list[str]:
    """Return the planes of the mesh, as many beside each other as fit."""
    planes = planes_of(topology)
    labels = {
        cores: f"[{' '.join(core_label(topology, core) for core in cores)}]"
        for plane in planes
        for cores in plane.chips.values()
    }
    width = max(map(len, labels.values()))
    drawn = []
    for plane in planes:
        cells = {place: labels[cores].ljust(width) for place, cores in plane.chips.items()}
        title = [f"z = {plane.z}"] if topology.mesh[2] > 1 else []
        drawn.append(title + _plane(plane, cells))
    # Fill a row from left to right with as many planes as fit, then begin the next row.
    width = max(len(line) for plane in drawn for line in plane)
    fit = max(1, (WIDTH + 3) // (width + 3))
    lines: list[str] = []
    for begin in range(0, len(drawn), fit):
        row = itertools.zip_longest(*drawn[begin : begin + fit], fillvalue="")
        lines += [""] if lines else []
        lines += ["   ".join(part.ljust(width) for part in parts).rstrip() for parts in row]
    return lines


def _plane(plane: Plane, cells: dict[Position, str]) -> list[str]:
    """Return one plane: a box for each host, or bare chips if hosts do not form blocks."""
    if not plane.blocks:
        return _rows(cells, Block(0, 0, 1 + max(x for x, _ in cells), 1 + max(y for _, y in cells)))
    ordered = sorted(plane.blocks.items(), key=lambda item: (item[1].top, item[1].left))
    widest = len(f"host {max(plane.blocks)}")
    lines = []
    for _, row in itertools.groupby(ordered, key=lambda item: item[1].top):
        boxes = []
        for host, block in row:
            rows = _rows(cells, block)
            inside = max(widest + 3, len(rows[0]) + 2)
            top = f"┌─ host {host} ".ljust(inside + 1, "─") + "┐"
            sides = [f"│ {line.ljust(inside - 2)} │" for line in rows]
            boxes.append([top, *sides, f"└{'─' * inside}┘"])
        lines += [" ".join(parts) for parts in zip(*boxes, strict=True)]
    return lines


def _rows(cells: dict[Position, str], block: Block) -> list[str]:
    # All cells are equally wide; a missing chip leaves a gap of that width.
    gap = " " * len(next(iter(cells.values())))
    across = range(block.left, block.left + block.width)
    down = range(block.top, block.top + block.height)
    return [" ".join(cells.get((x, y), gap) for x in across) for y in down]
