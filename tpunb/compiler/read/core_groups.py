"""The cores that a collective joins, read from a program's text, and the mesh axes they lie along.

XLA writes them in four ways (`hlo/ir/collective_device_list.cc` and `replica_group.cc`):
`{{0,1},{2,3}}`; `[2,4]<=[4,2]T(1,0)`, the numbers of an array that is transposed and cut into rows;
`mesh['a'=4,'b'=2] {'b'}`, the axes of a mesh, or parts of them: `'a':(1)2`; and
`source_target_pairs={{0,1},{1,0}}` of a permutation.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Sequence

from tpunb.compiler.read.hlo import numbers

Groups = tuple[tuple[int, ...], ...]
"""The numbers of the cores in each group, in order."""

Mesh = Sequence[tuple[str, int]]
"""The name and the size of each axis. The last axis counts fastest."""

_LISTED = re.compile(r"replica_groups=\{(\{.*?\})?\}")
_COUNTED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_OF_A_MESH = re.compile(r"replica_groups=mesh\[((?:'[^']+'=\d+,?)+)\] \{([^}]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{(\{.*?\})?\}")
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_PART_OF_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def groups_in(attributes: str) -> Groups | None:
    """Return the groups of a collective.

    Args:
        attributes: The text of the instruction's attributes.

    Returns:
        The groups; empty if all cores are one group; None if the text is of another kind.
    """
    if pairs := _PAIRS.search(attributes):
        return _joined(_lists(pairs[1] or ""))
    if match := _LISTED.search(attributes):
        return tuple(_lists(match[1] or ""))
    if match := _COUNTED.search(attributes):
        return _counted(*(numbers(part or "") for part in match.groups()))
    if match := _OF_A_MESH.search(attributes):
        return _of_a_mesh(match[1], match[2])
    return None if "replica_groups=" in attributes else ()


def _lists(text: str) -> list[tuple[int, ...]]:
    return [numbers(part) for part in text.strip("{}").split("},{") if part]


def _joined(pairs: Iterable[Sequence[int]]) -> Groups:
    """Return the cores that are connected by pairs of a sender and a receiver."""
    found: list[set[int]] = []
    for pair in pairs:
        touched = [group for group in found if not group.isdisjoint(pair)]
        found = [group for group in found if group.isdisjoint(pair)]
        found.append(set(pair).union(*touched))
    return tuple(sorted(tuple(sorted(group)) for group in found if len(group) > 1))


def _counted(shape: Sequence[int], sizes: Sequence[int], order: Sequence[int]) -> Groups | None:
    axes = order or tuple(range(len(sizes)))
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    places = itertools.product(*(range(sizes[axis]) for axis in axes))
    flat = [
        sum(place * strides[axis] for place, axis in zip(each, axes, strict=True))
        for each in places
    ]
    if len(shape) != 2 or math.prod(shape) != len(flat):
        return None
    return tuple(tuple(flat[row * shape[1] : (row + 1) * shape[1]]) for row in range(shape[0]))


def _of_a_mesh(mesh: str, along: str) -> Groups | None:
    """Return the groups along axes of a mesh. A part of an axis is an axis of its own."""
    parts = {name: (int(before or 1), int(size or 0)) for name, before, size in
             _PART_OF_AXIS.findall(along)}  # fmt: skip
    axes: list[tuple[str, int]] = []
    chosen = set()
    for name, text in _AXIS.findall(mesh):
        size = int(text)
        if name not in parts:
            axes.append((name, size))
            continue
        before, inside = parts[name][0], parts[name][1] or size
        after, rest = divmod(size, before * inside)
        if rest:
            return None
        axes += [(f"{name}<", before), (name, inside), (f"{name}>", after)]
        chosen.add(name)
    return groups_along(axes, chosen)


def groups_along(mesh: Mesh, axes: Collection[str]) -> Groups:
    """Return the groups of cores that differ only in their places on some axes."""
    found: dict[tuple[int, ...], list[int]] = {}
    for number, place in enumerate(itertools.product(*(range(size) for _, size in mesh))):
        fixed = tuple(at for at, (name, _) in zip(place, mesh, strict=True) if name not in axes)
        found.setdefault(fixed, []).append(number)
    return tuple(map(tuple, found.values()))


def axes_of(groups: Groups, mesh: Mesh, *, partly: bool = False) -> tuple[str, ...] | None:
    """Return the axes of a mesh along which groups lie; None if they are not known.

    Args:
        groups: The groups; empty for all cores.
        mesh: The mesh.
        partly: Whether a group need not have all cores along its axes, as in a permutation.
    """
    cores = math.prod(size for _, size in mesh)
    if not mesh or max(map(max, groups), default=0) >= cores:
        return None
    if not groups:
        return tuple(name for name, size in mesh if size > 1)
    places = list(itertools.product(*(range(size) for _, size in mesh)))
    axes = tuple(
        name
        for axis, (name, _) in enumerate(mesh)
        if any(len({places[core][axis] for core in group}) > 1 for group in groups)
    )
    whole = {frozenset(group) for group in groups_along(mesh, axes)}
    return axes if partly or all(frozenset(group) in whole for group in groups) else None
