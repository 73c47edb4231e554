"""A TPU's topology and device assignment: where cores, chips and hosts are on the mesh."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tpunb.errors import AcceleratorTypeError
from tpunb.tpu.compiled_program import Program
from tpunb.tpu.types import Accelerator, accelerator

UNASSIGNED = -1
"""The replica id and the logical device of a core that has no replica."""

Coordinates = tuple[int, int, int, int]
Wraps = tuple[bool, bool, bool]


@dataclass(frozen=True, slots=True)
class TopologyDescription:
    """Cores on their mesh; core `i` is item `i` of each of the tuples.

    The order of the cores is TensorFlow's: by host, then by ordinal.

    Attributes:
        name: The TPU type or another name; empty without a name.
        mesh: Chips along x, y and z.
        cores_per_chip: TensorFlow devices in a chip.
        wraps: Which of the axes close to a ring; all false if unknown.
        hbm_bytes: Memory of one core in bytes; 0 if unknown.
        coordinates: `(x, y, z, core)` of each core.
        hosts: The host (task) of each core.
        ordinals: The device ordinal of each core on its host.
        replicas: The replica id of each core, or `UNASSIGNED`.
        logical_devices: The logical device of each core within its replica, or
            `UNASSIGNED`.
        needed_bytes: The memory that a compiled program needs on each core that has a
            replica; 0 without a program.
        usable_bytes: The memory of a core that a program can use; 0 without a program.
        merged: Whether a core is the two TensorCores of a chip, which act as one.
    """

    name: str
    mesh: tuple[int, int, int]
    cores_per_chip: int
    wraps: Wraps
    hbm_bytes: int
    coordinates: tuple[Coordinates, ...]
    hosts: tuple[int, ...]
    ordinals: tuple[int, ...]
    replicas: tuple[int, ...]
    logical_devices: tuple[int, ...]
    needed_bytes: int = 0
    usable_bytes: int = 0
    merged: bool = False

    @property
    def num_cores(self) -> int:
        """The number of cores."""
        return len(self.coordinates)

    @property
    def num_chips(self) -> int:
        """The number of chips in the mesh."""
        width, height, depth = self.mesh
        return width * height * depth

    @property
    def num_hosts(self) -> int:
        """The number of hosts that drive the cores."""
        return len(set(self.hosts))

    @property
    def num_replicas(self) -> int:
        """The number of assigned replicas; 0 without a device assignment."""
        return 1 + max(self.replicas, default=UNASSIGNED)

    @property
    def num_logical_devices(self) -> int:
        """Logical devices of one replica; 0 without a device assignment."""
        return 1 + max(self.logical_devices, default=UNASSIGNED)


def describe_accelerator(acc: Accelerator) -> TopologyDescription:
    """Describe the topology of a TPU type from the catalogue."""
    return _description(acc.device_coordinates(), acc.name, acc.mesh, acc.devices_per_chip, acc)


def describe_topology(topology: Any, name: str | None = None) -> TopologyDescription:
    """Describe TensorFlow's topology of a connected TPU.

    Args:
        topology: A `tf.tpu.experimental.Topology`, or any object with its
            `mesh_shape` `[x, y, z, cores]` and `device_coordinates` of shape
            `[tasks, devices per task, 4]`.
        name: The TPU type, if known. A topology has no data about memory and
            wrap-around links. They come from the catalogue, if it has a type of
            this name and mesh.

    Returns:
        The description, without a device assignment.
    """
    width, height, depth, cores = (int(size) for size in topology.mesh_shape)
    known = None
    with contextlib.suppress(AcceleratorTypeError):
        known = accelerator(name) if name else None
    if known is not None and known.topology_mesh_shape != [width, height, depth, cores]:
        known = None
    tasks = np.asarray(topology.device_coordinates).tolist()
    title = known.name if known else name or ""
    return _description(tasks, title, (width, height, depth), cores, known)


def _description(
    tasks: Iterable[Iterable[Sequence[int]]],
    name: str,
    mesh: tuple[int, int, int],
    cores_per_chip: int,
    known: Accelerator | None,
) -> TopologyDescription:
    # TensorFlow marks a missing device by negative coordinates.
    cores = [
        ((x, y, z, core), host, ordinal)
        for host, devices in enumerate(tasks)
        for ordinal, (x, y, z, core) in enumerate(devices)
        if x >= 0
    ]
    unassigned = (UNASSIGNED,) * len(cores)
    return TopologyDescription(
        name=name,
        mesh=mesh,
        cores_per_chip=cores_per_chip,
        wraps=known.wraps if known else (False, False, False),
        hbm_bytes=known.hbm_bytes if known else 0,
        coordinates=tuple(place for place, _, _ in cores),
        hosts=tuple(host for _, host, _ in cores),
        ordinals=tuple(ordinal for _, _, ordinal in cores),
        replicas=unassigned,
        logical_devices=unassigned,
        merged=known.is_merged if known else False,
    )


def with_program(
    topology: TopologyDescription, programs: Program | Iterable[Program] | None
) -> TopologyDescription:
    """Add the memory that a compiled program needs on each core.

    Args:
        topology: The topology.
        programs: A program, or several if one of them may be for this TPU type; None for
            no program.
    """
    several = [programs] if isinstance(programs, Program) else programs or []
    for program in several:
        memory = program.memory
        if program.tpu == topology.name and memory is not None and not memory.bound:
            return replace(topology, needed_bytes=memory.peak, usable_bytes=memory.available)
    return topology


def describe_device_assignment(assignment: Any, name: str | None = None) -> TopologyDescription:
    """Describe which core computes which part of which replica.

    Args:
        assignment: A `tf.tpu.experimental.DeviceAssignment`, or any object with
            its `topology` and a `core_assignment` of shape
            `[replicas, logical devices, 4]`.
        name: The TPU type, if known.

    Returns:
        The topology's description with replicas and logical devices; cores
        without a part are `UNASSIGNED`.
    """
    topology = describe_topology(assignment.topology, name)
    parts = {
        tuple(place): (replica, logical)
        for replica, cores in enumerate(np.asarray(assignment.core_assignment).tolist())
        for logical, place in enumerate(cores)
    }
    nothing = (UNASSIGNED, UNASSIGNED)
    assigned = [parts.get(place, nothing) for place in topology.coordinates]
    return replace(
        topology,
        replicas=tuple(replica for replica, _ in assigned),
        logical_devices=tuple(logical for _, logical in assigned),
    )


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
        z: The plane's z.
        chips: The cores of the chip at each `(x, y)`.
        blocks: The block of each host, all of the same size on a regular grid;
            empty if the hosts do not form such blocks.
    """

    z: int
    chips: dict[Position, tuple[int, ...]]
    blocks: dict[int, Block]


def planes_of(topology: TopologyDescription) -> list[Plane]:
    """Return the planes of a mesh, by z."""
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
    blocks = {}
    for host, at in places.items():
        left, top = min(x for x, _ in at), min(y for _, y in at)
        right, bottom = max(x for x, _ in at), max(y for _, y in at)
        blocks[host] = Block(left, top, right - left + 1, bottom - top + 1)
    first = next(iter(blocks.values()))
    size = first.width, first.height
    # Regular hosts have full blocks of one size, which fill a grid of that size.
    regular = all(
        (block.width, block.height) == size
        and block.left % block.width == 0
        and block.top % block.height == 0
        and block.width * block.height == len(places[host])
        for host, block in blocks.items()
    )
    columns = {block.left for block in blocks.values()}
    rows = {block.top for block in blocks.values()}
    return blocks if regular and len(blocks) == len(columns) * len(rows) else {}


def group_shades(topology: TopologyDescription, groups: Sequence[int], shades: int) -> list[int]:
    """Return a colour's number for each group of cores, different from its neighbours' colours.

    Args:
        topology: The topology whose cores are coloured.
        groups: The host or the replica of each core; a group is where its first core is.
        shades: The number of colours; eight are enough.

    Returns:
        A number below `shades` for each id up to the largest id.
    """
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
