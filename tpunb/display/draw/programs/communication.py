"""The communication of a compiled program: its cores on the mesh, and the words for its figures.

The picture is a table for each way in which cores are grouped; cores of the same colour exchange
data. It needs no script and no style sheet.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

from tpunb._util.plain_text import listed
from tpunb._util.tables import Markup, Tile, block, escaped, tiles
from tpunb._util.units import and_more, byte_count, counted, duration, grouped, percent
from tpunb.display.draw.colours import HOST_COLOURS
from tpunb.tpu.compiled_program import Communication, CoreGroups, MeshAxis, Transfer

MOST_PICTURES = 6
"""The most ways of grouping that are drawn, those with the most time first."""

_MOST_ROWS, _MOST_COLUMNS = 16, 16
_CORE = "border-radius:2px;padding:1px 7px;font-size:11px;line-height:16px;text-align:center"
_IN_A_ROW = 8
"""The cores in a row, if there is no mesh with several axes."""


def along_phrase(communication: Communication, group: CoreGroups) -> str:
    """Return the cores that exchange data: `"along model"`, `"all 8 cores"`, `"groups of 2"`."""
    if not group.known:
        return "cores not known"
    if group.axes:
        return f"along {listed(group.axes)}"
    if not group.groups:
        return f"all {grouped(communication.cores)} cores"
    sizes = sorted({len(each) for each in group.groups})
    most = f"up to {grouped(sizes[-1])}" if len(sizes) > 1 else grouped(sizes[0])
    return f"groups of {most} cores"


def transfer_name(transfer: Transfer) -> str:
    """Return a collective: `"2 × all-gather of 1 MiB, 8 runs"`."""
    many = f"{grouped(transfer.count)} × " if transfer.count > 1 else ""
    name = f"{many}{transfer.kind} of {byte_count(transfer.bytes)}"
    if round(transfer.runs, 2) == transfer.count:
        return name
    return f"{name}, {transfer.runs:.4g} {'run' if transfer.runs == 1 else 'runs'}"


def summary(communication: Communication) -> str:
    """Return what a core sends in a call, and the time."""
    transfers = communication.transfers
    count = sum(transfer.count for transfer in transfers)
    sends = "sends" if count == 1 else "send"
    figures = _figures(transfers, " from each core in a call")
    return f"{counted(count, 'collective')} {sends} {figures}."


def _figures(transfers: Sequence[Transfer], where: str = "") -> str:
    seconds = sum(transfer.seconds for transfer in transfers)
    time = f"about {duration(seconds)} on the links" if seconds else ""
    if seconds and all(transfer.fraction is not None for transfer in transfers):
        share = percent(sum(transfer.fraction or 0.0 for transfer in transfers))
        time = f"about {duration(seconds)}, {share} of the step"
    sent = byte_count(sum(transfer.sent for transfer in transfers))
    return ": ".join(filter(None, [f"{sent}{where}", time]))


def by_group(communication: Communication) -> list[tuple[CoreGroups, list[Transfer]]]:
    """Return each way of grouping with its collectives, those with the most time first."""
    found: dict[int, list[Transfer]] = {}
    for transfer in communication.transfers:
        found.setdefault(transfer.group, []).append(transfer)
    pairs = [(communication.groups[number], transfers) for number, transfers in found.items()]
    return sorted(pairs, key=lambda pair: -sum(transfer.seconds for transfer in pair[1]))


def communication_html(communication: Communication) -> Markup:
    """Return the mesh of a program's cores, once for each way in which they exchange data."""
    pairs = by_group(communication)
    pictures = "".join(_picture(communication, *pair) for pair in pairs[:MOST_PICTURES])
    more = and_more(len(pairs) - MOST_PICTURES) if len(pairs) > MOST_PICTURES else ""
    style = "display:flex;flex-wrap:wrap;gap:10px 26px;margin:4px 0 8px"
    return Markup(
        f'{block(summary(communication))}<div style="{style}">{pictures}</div>{block(more)}'
    )


def _picture(
    communication: Communication, group: CoreGroups, transfers: Sequence[Transfer]
) -> Markup:
    along = along_phrase(communication, group)
    kinds = Counter[str]()
    for transfer in transfers:
        kinds[transfer.kind] += transfer.count
    which = ", ".join(f"{grouped(count)} × {kind}" for kind, count in kinds.most_common())
    lines = "".join(f"<div>{escaped(line)}</div>" for line in (which, _figures(transfers)))
    drawn = _mesh(communication, group, along) if group.known else ""
    return Markup(
        f'<div style="font-size:12px;max-width:100%"><b>{escaped(along)}</b>{lines}{drawn}</div>'
    )


def _mesh(communication: Communication, group: CoreGroups, along: str) -> str:
    """Return the cores as rows and columns, with a colour for each group."""
    axes, cores = communication.mesh, communication.cores
    columns = axes[-1].size if len(axes) > 1 else min(cores, _IN_A_ROW)
    rows = -(-cores // columns)
    colours = {
        core: HOST_COLOURS[number % len(HOST_COLOURS)]
        for number, members in enumerate(group.groups or (tuple(range(cores)),))
        for core in members
    }
    places = (
        range(row * columns, min((row + 1) * columns, cores))
        for row in range(min(rows, _MOST_ROWS))
    )
    drawn = [row[:_MOST_COLUMNS] for row in places]
    picture = tiles(
        ([_core(core, axes, colours.get(core, "")) for core in row] for row in drawn),
        "border-spacing:2px;width:auto;margin:2px 0",
        spoken=False,
    )
    label = escaped(f"The mesh of {cores} cores; cores of the same colour exchange data {along}")
    shown = sum(map(len, drawn))
    more = f"<div>{escaped(and_more(cores - shown))}</div>" if shown < cores else ""
    return (
        f'<div style="font-size:11px">{escaped(_axes_label(axes))}</div>'
        f'<div role="img" aria-label="{label}" style="max-width:100%;overflow:hidden">'
        f"{picture}</div>{more}"
    )


def _axes_label(axes: Sequence[MeshAxis]) -> str:
    if len(axes) < 2:
        return "".join(f"→ {axis.name} {axis.size}" for axis in axes)
    down = " × ".join(f"{axis.name} {axis.size}" for axis in axes[:-1])
    return f"↓ {down}  → {axes[-1].name} {axes[-1].size}"


def _core(core: int, axes: Sequence[MeshAxis], colour: str) -> Tile:
    """Return a core in the colour of its group, or without a colour if it takes no part."""
    places = _place(core, axes)
    named = ", ".join(f"{axis.name} {at}" for axis, at in zip(axes, places, strict=True))
    ground = "background:none;border:1px dotted rgba(128,128,128,.6)"
    if colour:
        ground = f"background:{colour}40;border:1px solid {colour}"
    style = f"{ground};{_CORE}"
    return Tile(_name(core, axes), style, f"core {core}" + (f": {named}" if named else ""))


def _name(core: int, axes: Sequence[MeshAxis]) -> str:
    """Return a core's coordinates in the mesh, or its number without a mesh.

    The picture of an array has the same coordinates beside the numbers of the devices, which
    `jax.make_mesh` does not take in order.
    """
    return f"({', '.join(map(str, _place(core, axes)))})" if axes else str(core)


def _place(core: int, axes: Sequence[MeshAxis]) -> list[int]:
    """Return a core's coordinates in the mesh."""
    sizes = [axis.size for axis in axes]
    strides = [math.prod(sizes[number + 1 :]) for number in range(len(sizes))]
    return [core // stride % size for stride, size in zip(strides, sizes, strict=True)]


def group_lines(communication: Communication) -> list[str]:
    """Return a line for each way of grouping, for the text: its cores by group."""
    lines = []
    for group, _ in by_group(communication)[:MOST_PICTURES]:
        if group.known and group.groups:
            shown = itertools.islice(group.groups, 8)
            between = " " if communication.mesh else ","
            cores = "  ".join(
                between.join(_name(core, communication.mesh) for core in each) for each in shown
            )
            lines.append(f"{along_phrase(communication, group)}: {cores}")
    return lines
