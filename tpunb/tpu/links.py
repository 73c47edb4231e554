"""The links between the cores of a TPU type, and a ring of cores that follows them."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence

from tpunb.errors import TpunbError
from tpunb.tpu.families import Shape
from tpunb.tpu.types import Accelerator


def neighbours(acc: Accelerator) -> list[tuple[int, ...]]:
    """Return, for each core, the cores that it reaches directly.

    These are the other core of its chip, and the cores of the chips at the end of a link.
    """
    cores = _cores_by_chip(acc)
    found: list[tuple[int, ...]] = [()] * acc.num_devices
    for chip, own in cores.items():
        linked = [core for other in _linked_chips(acc, chip) for core in cores[other]]
        for core in own:
            found[core] = tuple(sorted({*own, *linked} - {core}))
    return found


def route(acc: Accelerator, source: int, target: int) -> list[int]:
    """Return the cores on a shortest way from a core to another, with both ends."""
    links = neighbours(acc)
    before: dict[int, int] = {source: source}
    waiting = collections.deque([source])
    while waiting and target not in before:
        core = waiting.popleft()
        for other in links[core]:
            if other not in before:
                before[other] = core
                waiting.append(other)
    way = [target]
    while way[-1] != source:
        way.append(before[way[-1]])
    return way[::-1]


def ring_order(acc: Accelerator) -> list[int]:
    """Return all cores in an order in which each reaches the next directly, and the last the first.

    Raises:
        TpunbError: The links of this TPU form no such ring.
    """
    chips = _ring_of_chips(acc)
    if chips is None:
        raise TpunbError(
            f"The chips of {acc.name} form no ring: they are a line, or an odd number in a mesh "
            "whose axes do not close.",
            fix="Choose a TPU with an even number of rows or columns, such as v5e-8.",
        )
    cores, order = _cores_by_chip(acc), list[int]()
    for before, chip, after in zip(
        [chips[-1], *chips], chips, [*chips[1:], chips[0]], strict=False
    ):
        # Leave the chip at the side of the next chip, so that no arrow crosses a core.
        rightwards = (chip[0] - before[0] or after[0] - chip[0]) >= 0
        order += cores[chip] if rightwards else cores[chip][::-1]
    return order[order.index(0) :] + order[: order.index(0)]


def _cores_by_chip(acc: Accelerator) -> dict[Shape, list[int]]:
    chips: dict[Shape, list[int]] = {}
    places = (place for host in acc.device_coordinates() for place in host)
    for core, (x, y, z, _) in enumerate(places):
        chips.setdefault((x, y, z), []).append(core)
    return chips


def _linked_chips(acc: Accelerator, chip: Shape) -> list[Shape]:
    linked = []
    for axis, (side, wraps) in enumerate(zip(acc.mesh, acc.wraps, strict=True)):
        for step in (1, -1):
            place = chip[axis] + step
            if 0 <= place < side or (wraps and side > 1):
                linked.append(_moved(chip, axis, place % side))
    return linked


def _moved(place: Shape, axis: int, to: int) -> Shape:
    """Return a place with another number on an axis."""
    moved = list(place)
    moved[axis] = to
    return moved[0], moved[1], moved[2]


def _ring_of_chips(acc: Accelerator) -> list[Shape] | None:
    """Return the chips of a ring, or None. A ring of two chips uses a link in both directions."""
    long = [axis for axis in range(3) if acc.mesh[axis] > 1]
    if math.prod(acc.mesh) <= 2:
        return _line(acc.mesh, (0, 1, 2))
    if len(long) == 1:
        return _line(acc.mesh, (0, 1, 2)) if acc.wraps[long[0]] else None
    for first in long:
        others = [axis for axis in range(3) if axis != first]
        if (ring := _comb(acc.mesh, first, others)) is not None:
            return ring
    return None


def _line(mesh: Shape, axes: Sequence[int]) -> list[Shape]:
    """Return the places on some axes, each beside the one before; 0 on the other axes."""
    places: list[Shape] = [(0, 0, 0)]
    for axis in axes:
        turns = []
        for number in range(mesh[axis]):
            row = places if number % 2 == 0 else places[::-1]
            turns += [_moved(place, axis, number) for place in row]
        places = turns
    return places


def _comb(mesh: Shape, axis: int, others: Sequence[int]) -> list[Shape] | None:
    """Return a ring through a mesh: out along the first place of the axis, and back in turns.

    The other axes together are a line of chips. The ring returns to its beginning if that line has
    an even number of chips.
    """
    line = _line(mesh, others)
    if len(line) % 2 or mesh[axis] < 2:
        return None

    ring = [_moved(line[0], axis, 0)]
    for row, place in enumerate(line):
        along = range(1, mesh[axis]) if row % 2 == 0 else range(mesh[axis] - 1, 0, -1)
        ring += [_moved(place, axis, number) for number in along]
    return ring + [_moved(place, axis, 0) for place in line[:0:-1]]
