"""Where the chips and hosts of a topology go on a page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tpunb.display.describe.topology import TopologyDescription

__all__ = ["Block", "Plane", "host_shades", "planes", "replica_shades"]

Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Block:
    """The chips of one host in one plane; they fill a rectangle.

    Attributes:
        left: The smallest x.
        top: The smallest y.
        width: Chips along x.
        height: Chips along y.
    """

    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Plane:
    """The chips with one z.

    Attributes:
        z: Which plane this is.
        chips: The cores of the chip at each `(x, y)`.
        blocks: The block of each host, all of the same size on a regular grid;
            empty where the hosts are not like that.
    """

    z: int
    chips: dict[Position, tuple[int, ...]]
    blocks: dict[int, Block]


def planes(topology: TopologyDescription) -> list[Plane]:
    """The planes of a mesh, by z."""
    chips: dict[int, dict[Position, list[int]]] = defaultdict(lambda: defaultdict(list))
    for core, (x, y, z, _) in enumerate(topology.coordinates):
        chips[z][x, y].append(core)
    return [
        Plane(
            z,
            {place: tuple(cores) for place, cores in chips[z].items()},
            _blocks(topology, chips[z]),
        )
        for z in sorted(chips)
    ]


def _blocks(topology: TopologyDescription, chips: dict[Position, list[int]]) -> dict[int, Block]:
    places: dict[int, list[Position]] = defaultdict(list)
    for place, cores in chips.items():
        places[topology.hosts[cores[0]]].append(place)
    blocks = {host: _block(at) for host, at in places.items()}
    full = all(block.width * block.height == len(places[host]) for host, block in blocks.items())
    return blocks if full and _regular(blocks.values()) else {}


def _block(places: Sequence[Position]) -> Block:
    left, top = min(x for x, _ in places), min(y for _, y in places)
    right, bottom = max(x for x, _ in places), max(y for _, y in places)
    return Block(left, top, right - left + 1, bottom - top + 1)


def _regular(blocks: Iterable[Block]) -> bool:
    """Whether blocks of one size lie on a grid of that size and fill it."""
    blocks = list(blocks)
    width, height = blocks[0].width, blocks[0].height
    aligned = all(
        (block.width, block.height) == (width, height)
        and block.left % width == 0
        and block.top % height == 0
        for block in blocks
    )
    columns = {block.left for block in blocks}
    rows = {block.top for block in blocks}
    return aligned and len(blocks) == len(columns) * len(rows)


def host_shades(topology: TopologyDescription, shades: int) -> list[int]:
    """A colour's number for each host, other than its neighbours'.

    Args:
        topology: Whose hosts to colour.
        shades: How many colours there are; eight are enough.

    Returns:
        For each host id up to the largest one a number below `shades`.
    """
    return _shades(topology, topology.hosts, shades)


def replica_shades(topology: TopologyDescription, shades: int) -> list[int]:
    """A colour's number for each replica, as `host_shades` for hosts."""
    return _shades(topology, topology.replicas, shades)


def _shades(topology: TopologyDescription, groups: Sequence[int], shades: int) -> list[int]:
    """Colours groups of cores by where the first core of each group is."""
    if max(groups, default=0) < shades:
        return list(range(shades))
    origins: dict[int, tuple[int, int, int]] = {}
    for group, (x, y, z, core) in zip(groups, topology.coordinates, strict=True):
        if group >= 0:
            origins.setdefault(group, (x * topology.cores_per_chip + core, y, z))
    ranks = [
        {side: rank for rank, side in enumerate(sorted({at[axis] for at in origins.values()}))}
        for axis in range(3)
    ]
    numbers = [0] * (1 + max(origins, default=-1))
    for group, (x, y, z) in origins.items():
        # Steps of 1, 3 and 5 keep neighbours apart along each axis.
        numbers[group] = (ranks[0][x] + 3 * ranks[1][y] + 5 * ranks[2][z]) % shades
    return numbers
