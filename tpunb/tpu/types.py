"""TPU types: their chips, cores, hosts, mesh and memory."""

from __future__ import annotations

import dataclasses
import functools
import math
import re

from tpunb.errors import AcceleratorTypeError, nearest
from tpunb.tpu.default_tpu import DEFAULT_TPU
from tpunb.tpu.families import BY_PREFIX, FAMILIES, GIB, Family, Shape

MAX_GENERIC_CORES = 1024
"""The largest number of cores of a generic TPU."""

_SEE = f"TPUs are {', '.join(FAMILIES)}, with a size: {DEFAULT_TPU}."


@dataclasses.dataclass(frozen=True, slots=True)
class Accelerator:
    """One TPU type, real or generic.

    Attributes:
        name: The name as a user would write it: `"v5e-8"`, `"tpu7x-8"`, or `"8 cores"`
            for a plain number.
        family: `"v5e"`, `"v3"`, …; `"generic"` for a plain number.
        num_chips: The number of chips of the slice.
        devices_per_chip: The TensorFlow devices (cores) per chip.
        mesh: The chips along x, y and z.
        host_bounds: The chips of one host along x, y and z. Hosts are rectangular
            blocks that tile the mesh.
        hbm_bytes: The memory of one device in bytes; 0 if unknown.
        wraps: Whether each of the axes x, y and z closes to a ring. A slice of whole cubes of
            4x4x4 chips is a 3D torus, and a smaller slice is taken to be a mesh. In a 2D torus,
            an axis closes if it spans the whole Pod (16 chips on v2, v5e and v6e, 32 on v3).
    """

    name: str
    family: str
    num_chips: int
    devices_per_chip: int
    mesh: Shape
    host_bounds: Shape
    hbm_bytes: int
    wraps: tuple[bool, bool, bool]

    @property
    def chips_per_host(self) -> int:
        """The number of chips of one host."""
        return math.prod(self.host_bounds)

    @property
    def is_merged(self) -> bool:
        """True if the two TensorCores of a chip act as one core ("megacore")."""
        family = BY_PREFIX.get(self.family)
        return family is not None and family.counted_per_chip > self.devices_per_chip

    @property
    def num_devices(self) -> int:
        """The number of cores of the whole slice, as TensorFlow counts them."""
        return self.num_chips * self.devices_per_chip

    @property
    def num_hosts(self) -> int:
        """The number of hosts. Each host is a task of the TPU's cluster."""
        return self.num_chips // self.chips_per_host

    @property
    def devices_per_host(self) -> int:
        """The number of cores of one host."""
        return self.chips_per_host * self.devices_per_chip

    @property
    def topology_mesh_shape(self) -> list[int]:
        """`[x, y, z, core]`, as `tf.tpu.experimental.Topology` expects it."""
        return [*self.mesh, self.devices_per_chip]

    def device_coordinates(self) -> list[list[list[int]]]:
        """Return the position of each core on the mesh.

        Returns:
            A list of shape `[num_hosts, devices_per_host, 4]` with `[x, y, z, core]`. Hosts are
            in the order of their blocks, x fastest; within a host, cores are in the order of
            their ordinals, the core of a chip fastest.
        """
        inside = [
            (x, y, z, core)
            for x, y, z in _cells(self.host_bounds)
            for core in range(self.devices_per_chip)
        ]
        width, height, depth = self.host_bounds
        blocks = (
            self.mesh[0] // width,
            self.mesh[1] // height,
            self.mesh[2] // depth,
        )
        return [
            [[bx * width + x, by * height + y, bz * depth + z, core] for x, y, z, core in inside]
            for bx, by, bz in _cells(blocks)
        ]


_NUMBER = re.compile(r"(-?[0-9]{1,9})(?:\s*cores?)?")
_TYPE = re.compile(r"([a-z][a-z0-9]*)-(-?[0-9]{1,9})")


@functools.cache
def accelerator_types() -> tuple[str, ...]:
    """Return the canonical names of all TPU types, by family and size.

    Example:
        >>> [name for name in accelerator_types() if name.startswith("v3-")][:3]
        ['v3-8', 'v3-32', 'v3-64']
    """
    return tuple(f"{family.name}-{size}" for family in FAMILIES.values() for size in family.sizes)


def largest_memory() -> int:
    """Return the memory in bytes of one device of the TPU type with the most memory."""
    return max(family.hbm_gib for family in FAMILIES.values()) * GIB


def accelerator(spec: str | int) -> Accelerator:
    """Return the TPU type of a name, or a generic type for a number of cores.

    Example:
        >>> tpu = tpunb.accelerator("v4-32")
        >>> tpu.num_chips, tpu.num_hosts, tpu.topology_mesh_shape
        (16, 4, [2, 2, 4, 1])

    Args:
        spec: A type such as `"v5e-8"`, `"v5litepod-8"`, `"v3-32"` or
            `"tpu7x-8"`, in any case; or a number of cores, 1 to 1024, as an
            integer or a string.

    Returns:
        The type. For a plain number, chips of one core each on a mesh as square as the number
        allows, with at most 8 chips on a host.

    Raises:
        AcceleratorTypeError: The type does not exist. The error names the nearest types.
    """
    if isinstance(spec, bool) or not isinstance(spec, str | int):
        raise AcceleratorTypeError(
            f"A TPU type is a name such as 'v5e-8' or a number of cores, not {_short(spec)}.",
            fix=_SEE,
        )
    if isinstance(spec, int):
        return _generic(spec)
    text = spec.strip().lower()
    if number := _NUMBER.fullmatch(text):
        return _generic(int(number[1]))
    match = _TYPE.fullmatch(text)
    family = BY_PREFIX.get(match[1]) if match else None
    if match is None or family is None:
        raise _unknown(spec, text)
    size = int(match[2])
    if size not in family.sizes:
        raise _wrong_size(family, size)
    chips = size // family.counted_per_chip
    mesh = family.meshes[chips]
    return Accelerator(
        name=f"{family.name}-{size}",
        family=family.name,
        num_chips=chips,
        devices_per_chip=family.devices_per_chip,
        mesh=mesh,
        host_bounds=mesh if chips <= family.one_host else family.host_chips,
        hbm_bytes=family.hbm_gib * GIB,
        wraps=family.wraps(mesh),
    )


def _unknown(spec: str, text: str) -> AcceleratorTypeError:
    """Return the error for a name that is not a family with a size."""
    message = f"There is no TPU type {_short(spec)}."
    if family := BY_PREFIX.get(text.rstrip("-")):
        examples = [f"{family.name}-{size}" for size in family.sizes[:3]]
        return AcceleratorTypeError(
            f"The TPU type {_short(spec)} lacks a size.", fix=_did_you_mean(examples)
        )
    if (meant := _spelled_differently(text)) is not None:
        return AcceleratorTypeError(message, fix=_did_you_mean([meant]))
    parts = re.fullmatch(r"([a-z0-9]+)[^a-z0-9]+([0-9]{1,9})", text)
    if parts is not None and (family := BY_PREFIX.get(parts[1])):
        return _wrong_size(family, int(parts[2]))
    if (named := re.fullmatch(r"(?:tpu-?)?v?7x?-(\d+)", text)) is not None:
        return AcceleratorTypeError(message, fix=_did_you_mean([f"tpu7x-{named[1]}"]))
    return AcceleratorTypeError(message, fix=_did_you_mean(nearest(text[:40], accelerator_types())))


def _spelled_differently(text: str) -> str | None:
    """Return the only type with the same letters and digits, such as v3-8 for `v3_8`."""
    letters = _letters(text)
    names = {
        f"{family.name}-{size}"
        for prefix, family in BY_PREFIX.items()
        for size in family.sizes
        if letters in (_letters(f"{prefix}-{size}"), _letters(f"tpu-{prefix}-{size}"))
    }
    return names.pop() if len(names) == 1 else None


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text)


def _wrong_size(family: Family, size: int) -> AcceleratorTypeError:
    """Return the error for a slice size that a family does not have."""
    around = [
        max((known for known in family.sizes if known < size), default=None),
        min((known for known in family.sizes if known > size), default=None),
    ]
    names = [f"{family.name}-{known}" for known in around if known is not None]
    names.sort(key=lambda name: abs(int(name.rpartition("-")[2]) - size))
    counts = "chips" if family.counted_per_chip == 1 else "TensorCores, 2 a chip"
    if family.counted_per_chip > family.devices_per_chip:
        counts += ", which act as one core"
    return AcceleratorTypeError(
        f"There is no TPU type {family.name}-{size}: a {family.name} slice has "
        f"{', '.join(map(str, family.sizes[:-1]))} or {family.sizes[-1]} (it counts {counts}).",
        fix=_did_you_mean(names),
    )


def _did_you_mean(names: list[str]) -> str:
    return f"Did you mean {' or '.join(names)}? {_SEE}" if names else _SEE


def _short(value: object) -> str:
    # For other types the name is enough: a repr may be long or fail.
    if not isinstance(value, str | int | float | None):
        return f"a {type(value).__name__}"
    if isinstance(value, int) and value.bit_length() > 200:
        return "so many"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _generic(cores: int) -> Accelerator:
    """Return a generic TPU of one-core chips, up to 8 of them per host."""
    if not 1 <= cores <= MAX_GENERIC_CORES:
        raise AcceleratorTypeError(
            f"There is no TPU of {_short(cores)} cores.",
            fix=f"Choose 1 to {MAX_GENERIC_CORES} cores, or a type such as {DEFAULT_TPU}. {_SEE}",
        )
    width, height = _near_square(cores, cores, cores)
    on_host = max(chips for chips in range(1, 9) if cores % chips == 0)
    host_width, host_height = _near_square(on_host, width, height)
    return Accelerator(
        name=f"{cores} core" if cores == 1 else f"{cores} cores",
        family="generic",
        num_chips=cores,
        devices_per_chip=1,
        mesh=(width, height, 1),
        host_bounds=(host_width, host_height, 1),
        hbm_bytes=0,
        wraps=(False, False, False),
    )


def _near_square(area: int, width: int, height: int) -> tuple[int, int]:
    """Return the squarest block of an area whose sides divide a width and a height."""
    sides = [
        (side, area // side)
        for side in range(1, area + 1)
        if area % side == 0 and width % side == 0 and height % (area // side) == 0
    ]
    return min(sides, key=lambda block: (abs(block[1] - block[0]), block[0]))


def _cells(shape: Shape) -> list[Shape]:
    """Return all positions in a block, x fastest."""
    width, height, depth = shape
    return [(x, y, z) for z in range(depth) for y in range(height) for x in range(width)]
