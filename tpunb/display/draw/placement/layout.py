"""The words and the grid in which text and HTML show where JAX arrays are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tpunb._util.plain_text import listed
from tpunb._util.units import byte_count, counted, grouped, percent, shape_phrase
from tpunb.display.describe.placement import (
    ArrayPlacement,
    Holder,
    LeafPlacement,
    Part,
    Range,
    TreePlacement,
)

MOST_ROWS, MOST_COLUMNS, MOST_PLANES = 8, 8, 4
"""The most parts along each direction of a picture; the first ones and the last are drawn."""

MOST_LEAVES = 200
"""The most arrays of a tree that get a row."""

_FEW = 4
"""The most holders of a part that are listed one by one."""

Line = Range | None
"""A row or a column of a picture; None for a gap."""


@dataclass(frozen=True, slots=True)
class Plane:
    """A part of the picture: two axes of the array, at one place on its other cut axes.

    Attributes:
        title: The place on the other axes, such as `"axis 0 at 0:4"`; empty if there are none.
        rows: The positions on the vertical axis.
        columns: The positions on the horizontal axis.
        parts: The parts by row and column.
    """

    title: str
    rows: tuple[Line, ...]
    columns: tuple[Line, ...]
    parts: Mapping[tuple[Range, Range], Part]


@dataclass(frozen=True, slots=True)
class Picture:
    """An array's parts as rows and columns, in one plane or several.

    Attributes:
        planes: The planes that are drawn.
        omitted: The number of further planes.
        vertical: The array's axis from top to bottom; None if an axis is missing.
        horizontal: The axis from left to right.
    """

    planes: tuple[Plane, ...]
    omitted: int
    vertical: int | None
    horizontal: int | None


_WHOLE: Range = (0, 1)
"""The only position on an axis that a picture needs and the array does not have."""


def picture_of(placement: ArrayPlacement) -> Picture:
    """Return the picture of an array. Axes that are not cut are drawn only if there is room."""
    ranges = placement.ranges or tuple(() for _ in placement.shape)
    vertical, horizontal = _axes(ranges)
    others = [axis for axis, places in enumerate(ranges) if len(places) > 1]
    others = [axis for axis in others if axis not in (vertical, horizontal)]
    by_plane: dict[tuple[Range, ...], dict[tuple[Range, Range], Part]] = {}
    for part in placement.parts:
        plane = by_plane.setdefault(tuple(part.ranges[axis] for axis in others), {})
        plane[_at(part, vertical), _at(part, horizontal)] = part
    drawn = list(itertools.islice(by_plane.items(), MOST_PLANES))
    planes = tuple(
        Plane(
            ", ".join(
                f"axis {axis} at {_range_text(place)}"
                for axis, place in zip(others, places, strict=True)
            ),
            _lines({row for row, _ in parts}, MOST_ROWS),
            _lines({column for _, column in parts}, MOST_COLUMNS),
            parts,
        )
        for places, parts in drawn
    )
    return Picture(planes, len(by_plane) - len(planes), vertical, horizontal)


def _axes(ranges: Sequence[Sequence[Range]]) -> tuple[int | None, int | None]:
    """Return the vertical and the horizontal axis: the last two that are cut, if there are two."""
    rank = len(ranges)
    if rank < 2:
        return None, 0 if rank else None
    cut = [axis for axis, places in enumerate(ranges) if len(places) > 1]
    if len(cut) > 1:
        return cut[-2], cut[-1]
    only = cut[0] if cut else rank - 1
    return (only - 1, only) if only == rank - 1 else (only, rank - 1)


def _at(part: Part, axis: int | None) -> Range:
    return _WHOLE if axis is None else part.ranges[axis]


def _lines(places: set[Range], most: int) -> tuple[Line, ...]:
    ordered = sorted(places)
    if len(ordered) <= most:
        return tuple(ordered)
    return (*ordered[: most - 2], None, ordered[-1])


def _range_text(place: Range) -> str:
    return f"{place[0]}:{place[1]}"


def slice_text(part: Part, shape: Sequence[int]) -> str:
    """Return a part's slice: `"[0:16, :]"`; `"[]"` for an array without axes."""
    pairs = zip(part.ranges, shape, strict=True)
    return (
        f"[{', '.join(':' if place == (0, size) else _range_text(place) for place, size in pairs)}]"
    )


def holder_lines(part: Part) -> list[str]:
    """Return a line for each device that holds a part, or one for many devices."""
    holders = part.holders
    if len(holders) <= _FEW:
        return [holder_text(holder) for holder in holders]
    kind = holders[0].name.rpartition(" ")[0]
    numbers = [holder.name.rpartition(" ")[2] for holder in holders]
    shown = [*numbers[:3], "…", numbers[-1]] if len(numbers) > 8 else numbers
    return [f"{kind} {', '.join(shown)}"]


def holder_text(holder: Holder) -> str:
    """Return a device with its coordinates in the mesh: `"TPU 3 (1, 1)"`."""
    place = f" ({', '.join(map(str, holder.position))})" if holder.position else ""
    process = "" if holder.process is None else f", process {holder.process}"
    return f"{holder.name}{place}{process}"


def copies_text(part: Part) -> str:
    """Return the number of copies: `"4 copies"`; empty for a single one."""
    return f"{grouped(len(part.holders))} copies" if len(part.holders) > 1 else ""


def array_title(placement: ArrayPlacement) -> str:
    """Return the array's type, size, and how it is cut."""
    facts = [f"{placement.dtype}{shape_phrase(placement.shape)}", byte_count(placement.bytes)]
    return " · ".join([*facts, _how_cut(placement)])


def _how_cut(placement: ArrayPlacement) -> str:
    counts = [len(places) for places in placement.ranges if len(places) > 1]
    if not counts:
        devices = placement.devices
        return f"replicated on {counted(devices, 'device')}" if devices > 1 else "not cut"
    parts = " × ".join(map(str, counts))
    cut = f"cut into {parts} parts" + (f" over {axes}" if (axes := _cutting(placement)) else "")
    return cut if placement.copies < 2 else f"{cut}, {placement.copies} copies of each"


def _cutting(placement: ArrayPlacement) -> str:
    return listed([" × ".join(axes) for axes in placement.spec if axes])


def array_facts(placement: ArrayPlacement) -> list[str]:
    """Return sentences on the mesh, on what each device holds, and on what is unusual."""
    return [*_mesh_sentence(placement), *_held(placement), *_elsewhere(placement), *placement.notes]


def _mesh_sentence(placement: ArrayPlacement) -> Iterator[str]:
    if placement.mesh:
        axes = " × ".join(f"{name} {size}" for name, size in placement.mesh)
        names = ", ".join(name for name, _ in placement.mesh)
        listed = any(len(part.holders) <= _FEW for part in placement.parts)
        place = f" In parentheses: the place on ({names})." if listed else ""
        yield f"Mesh: {axes}.{place}"


def _held(placement: ArrayPlacement) -> Iterator[str]:
    devices = placement.devices
    if not devices:
        yield "No device holds it."
        return
    sizes = {part.bytes for part in placement.parts}
    each = " or ".join(byte_count(size) for size in sorted(sizes)[:2])
    if len(placement.parts) == 1:
        (part,) = placement.parts
        who = part.holders[0].name if devices == 1 else f"Each of {counted(devices, 'device')}"
        sentence = f"{who} holds all of it: {each}"
    else:
        fraction = f", 1/{len(placement.parts)} of it" if len(sizes) == 1 else ""
        sentence = f"Each of {counted(devices, 'device')} holds {each}{fraction}"
    if placement.copies > 1:
        along = listed(placement.copied_along)
        sentence += f"; there are {grouped(placement.copies)} copies" + (
            f", along {along}" if along else ""
        )
    yield f"{sentence}."


def _elsewhere(placement: ArrayPlacement) -> Iterator[str]:
    if placement.others:
        holds = "holds" if placement.others == 1 else "hold"
        yield f"{counted(placement.others, 'other device')} {holds} nothing of it."
    if placement.memory:
        yield f"It is in the host's memory ({placement.memory})."
    away = {holder.name for part in placement.parts for holder in part.holders if _is_away(holder)}
    if away:
        yield f"{counted(len(away), 'device')} of these belong to other processes."


def _is_away(holder: Holder) -> bool:
    return holder.process is not None


def holders_of(placement: ArrayPlacement) -> list[tuple[Holder, Part]]:
    """Return each device with its part, in the order of the parts' first devices."""
    pairs = [(holder, part) for part in placement.parts for holder in part.holders]
    return sorted(pairs, key=lambda pair: (pair[0].position, _number(pair[0])))


def _number(holder: Holder) -> int:
    number = holder.name.rpartition(" ")[2]
    return int(number) if number.isdigit() else 0


def tree_summary(tree: TreePlacement) -> str:
    """Return a sentence such as `"87% of 1.3 GiB is replicated on every device."`."""
    size = byte_count(tree.bytes)
    if tree.devices < 2:
        where = next((leaf.where for leaf in tree.leaves if leaf.where), "one device")
        return f"All of {size} is on {where}." if tree.devices else "No device holds any of it."
    share = tree.replicated / tree.bytes if tree.bytes else 0.0
    if not tree.replicated:
        return f"Nothing of {size} is replicated on every device."
    whole = tree.replicated == tree.bytes
    part = "All" if whole else ">99%" if share > 0.995 else percent(share)
    return f"{part} of {size} is replicated on every device."


def tree_facts(tree: TreePlacement) -> list[str]:
    """Return sentences on what a device holds, and on what has no row."""
    facts = []
    if tree.devices > 1:
        even = byte_count(tree.bytes / tree.devices)
        facts.append(
            f"Of {counted(tree.devices, 'device')}, the fullest holds "
            f"{byte_count(tree.on_each)}; without copies, each would hold {even}."
        )
    if tree.idle and tree.devices:
        holds = "holds" if tree.idle == 1 else "hold"
        facts.append(f"{counted(tree.idle, 'other device')} {holds} nothing of it.")
    if tree.others:
        leaves = "1 leaf is" if tree.others == 1 else f"{grouped(tree.others)} leaves are"
        facts.append(f"{leaves} not of JAX, and not listed.")
    return facts


TREE_HEAD = ("array", "placed", "on a device", "size", "type", "spec")


def leaf_cells(leaf: LeafPlacement) -> tuple[str, ...]:
    """Return an array's row under `TREE_HEAD`."""
    return (
        leaf.path,
        leaf.note or placed_text(leaf),
        byte_count(leaf.on_each),
        byte_count(leaf.bytes),
        f"{leaf.dtype}{shape_phrase(leaf.shape)}",
        leaf.spec,
    )


def placed_text(leaf: LeafPlacement) -> str:
    """Return how an array is placed: `"replicated"`, `"8 parts"`, `"4 parts, 2 copies"`."""
    if leaf.where:
        return f"only on {leaf.where}"
    if leaf.parts == 1:
        return "replicated" if leaf.everywhere else f"replicated on {leaf.copies}"
    parts = counted(leaf.parts, "part")
    return parts if leaf.copies == 1 else f"{parts}, {leaf.copies} copies"


def heaviest_leaves(tree: TreePlacement, most: int) -> TreePlacement:
    """Return a tree with the largest arrays on a device, in their order."""
    if len(tree.leaves) <= most:
        return tree
    by_size = sorted(range(len(tree.leaves)), key=lambda at: -tree.leaves[at].on_each)
    return replace(tree, leaves=tuple(tree.leaves[at] for at in sorted(by_size[:most])))


def aspect(placement: ArrayPlacement, picture: Picture) -> float:
    """Return the height of the array by its width, as the picture shows it; 0 without a height."""
    if picture.vertical is None or picture.horizontal is None:
        return 0.0
    height, width = placement.shape[picture.vertical], placement.shape[picture.horizontal]
    return height / width if height and width else 1.0


def axis_label(placement: ArrayPlacement, axis: int) -> str:
    """Return an axis with its size and the mesh axes that cut it: `"axis 0 of 64, over data"`."""
    cutting = " × ".join(placement.spec[axis]) if placement.spec else ""
    return f"axis {axis} of {grouped(placement.shape[axis])}" + (
        f", over {cutting}" if cutting else ""
    )
