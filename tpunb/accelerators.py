"""The catalogue of TPU types: chips, cores, hosts, mesh and memory of each.

Facts are from the Cloud TPU documentation. A *device* is what TensorFlow sees
as one TPU core: a TensorCore on v2, v3 and tpu7x, and a chip on the families
whose two TensorCores act as one (v4, v5p) or that have just one (v5e, v6e).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re

from tpunb.errors import AcceleratorTypeError, nearest

__all__ = [
    "MAX_GENERIC_CORES",
    "Accelerator",
    "accelerator",
    "accelerator_types",
    "generic_accelerator",
]

MAX_GENERIC_CORES = 1024
"""The most cores that a plain number may ask for."""

_GIB = 2**30
_SEE = "See tpunb.accelerator_types()."

Shape = tuple[int, int, int]

# Chips of a slice -> its mesh. The smaller side comes first, as in "2x4".
_MESHES_2D: dict[int, Shape] = {
    1: (1, 1, 1),
    4: (2, 2, 1),
    8: (2, 4, 1),
    16: (4, 4, 1),
    32: (4, 8, 1),
    64: (8, 8, 1),
    128: (8, 16, 1),
    256: (16, 16, 1),
    512: (16, 32, 1),
    1024: (32, 32, 1),
}
_MESHES_3D: dict[int, Shape] = {
    4: (2, 2, 1),
    8: (2, 2, 2),
    16: (2, 2, 4),
    32: (2, 4, 4),
    64: (4, 4, 4),
    128: (4, 4, 8),
    256: (4, 8, 8),
    512: (8, 8, 8),
    1024: (8, 8, 16),
    2048: (8, 16, 16),
    4096: (16, 16, 16),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Accelerator:
    """One TPU type, real or generic.

    Attributes:
        name: As a user would write it: `"v5e-8"`, `"tpu7x-8"`, or `"8 cores"`
            for a plain number.
        family: `"v5e"`, `"v3"`, …; `"generic"` for a plain number.
        chips: How many chips the slice has.
        devices_per_chip: TensorFlow devices (cores) in a chip.
        mesh: Chips along x, y and z.
        host_bounds: Chips of one host along x, y and z; hosts are rectangular
            blocks that tile the mesh.
        hbm_bytes: Memory of one device in bytes; 0 where nothing is known.
        wraps: Which of the axes x, y and z close to a ring. A 3D torus closes
            the axes whose size is a multiple of 4, a 2D torus those that span
            the whole Pod (16 chips on v2, v5e and v6e, 32 on v3).
    """

    name: str
    family: str
    chips: int
    devices_per_chip: int
    mesh: Shape
    host_bounds: Shape
    hbm_bytes: int
    wraps: tuple[bool, bool, bool]

    @property
    def chips_per_host(self) -> int:
        """Chips that one host drives."""
        return math.prod(self.host_bounds)

    @property
    def num_devices(self) -> int:
        """Cores of the whole slice, as TensorFlow counts them."""
        return self.chips * self.devices_per_chip

    @property
    def num_hosts(self) -> int:
        """Hosts, each of which is one task of the TPU's cluster."""
        return self.chips // self.chips_per_host

    @property
    def devices_per_host(self) -> int:
        """Cores that one host drives."""
        return self.chips_per_host * self.devices_per_chip

    @property
    def topology_mesh_shape(self) -> list[int]:
        """`[x, y, z, core]`, as `tf.tpu.experimental.Topology` wants it."""
        return [*self.mesh, self.devices_per_chip]

    def device_coordinates(self) -> list[list[list[int]]]:
        """Where each core is on the mesh.

        Returns:
            A list shaped `[num_hosts, devices_per_host, 4]` of `[x, y, z, core]`:
            hosts in the order of their blocks, x fastest, and within a host the
            cores in the order of their ordinals, the core of a chip fastest.
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Family:
    """What the types of one family share.

    Attributes:
        name: The canonical prefix.
        aliases: Other prefixes, all in lower case.
        counted_per_chip: What the number in a name counts: 1 for chips, 2 for
            TensorCores, of which each of these chips has two.
        devices_per_chip: TensorFlow devices in a chip.
        hbm_gib: Memory of one device in GiB.
        meshes: Chips of a slice -> its mesh.
        host_chips: Chips of a host in a slice of several hosts, as a block.
        one_host: The most chips that a single host can have.
        full_side: The side of a 2D Pod; 0 for a 3D torus.
    """

    name: str
    aliases: tuple[str, ...]
    counted_per_chip: int
    devices_per_chip: int
    hbm_gib: int
    meshes: dict[int, Shape]
    host_chips: Shape
    one_host: int
    full_side: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers that may follow the prefix."""
        return tuple(chips * self.counted_per_chip for chips in self.meshes)

    def build(self, size: int) -> Accelerator:
        """The type `name-size`; the size must be one of `sizes`."""
        chips = size // self.counted_per_chip
        mesh = self.meshes[chips]
        return Accelerator(
            name=f"{self.name}-{size}",
            family=self.name,
            chips=chips,
            devices_per_chip=self.devices_per_chip,
            mesh=mesh,
            host_bounds=mesh if chips <= self.one_host else self.host_chips,
            hbm_bytes=self.hbm_gib * _GIB,
            wraps=(self._wraps(mesh[0]), self._wraps(mesh[1]), self._wraps(mesh[2])),
        )

    def _wraps(self, side: int) -> bool:
        return side == self.full_side if self.full_side else side % 4 == 0


def _slices(meshes: dict[int, Shape], smallest: int, largest: int) -> dict[int, Shape]:
    return {chips: mesh for chips, mesh in meshes.items() if smallest <= chips <= largest}


def _family(
    name: str,
    meshes: dict[int, Shape],
    *,
    hbm_gib: int,
    counted: int = 1,
    devices: int = 1,
    aliases: tuple[str, ...] = (),
    host: Shape = (2, 2, 1),
    one_host: int = 4,
    full_side: int = 0,
) -> _Family:
    return _Family(name, aliases, counted, devices, hbm_gib, meshes, host, one_host, full_side)


# A slice of several hosts starts at 4x4: there is no v2-16 or v3-16, nor a v2-64.
_V2_MESHES = {4: (2, 2, 1), 16: (4, 4, 1), **_slices(_MESHES_2D, 64, 256)}
_V3_MESHES = {4: (2, 2, 1), **_slices(_MESHES_2D, 16, 1024)}
_POD_256 = _slices(_MESHES_2D, 1, 256)

_FAMILIES: dict[str, _Family] = {
    family.name: family
    for family in (
        _family("v2", _V2_MESHES, hbm_gib=8, counted=2, devices=2, full_side=16),
        _family("v3", _V3_MESHES, hbm_gib=16, counted=2, devices=2, full_side=32),
        _family("v4", _MESHES_3D, hbm_gib=32, counted=2),
        _family(
            "v5e",
            _POD_256,
            hbm_gib=16,
            aliases=("v5litepod", "v5lite"),
            host=(2, 4, 1),
            one_host=8,
            full_side=16,
        ),
        _family("v5p", {**_MESHES_3D, 8960: (16, 20, 28)}, hbm_gib=95, counted=2),
        _family("v6e", _POD_256, hbm_gib=32, one_host=8, full_side=16),
        _family(
            "tpu7x",
            {**_MESHES_3D, 9216: (16, 24, 24)},
            hbm_gib=96,  # 192 GiB a chip, of which each of its two devices has half.
            devices=2,
            aliases=("v7x",),
        ),
    )
}
_BY_PREFIX: dict[str, _Family] = {
    prefix: family for family in _FAMILIES.values() for prefix in (family.name, *family.aliases)
}

_NUMBER = re.compile(r"(-?[0-9]{1,9})(?:\s*cores?)?")
_TYPE = re.compile(r"([a-z][a-z0-9]*)-(-?[0-9]{1,9})")


@functools.cache
def accelerator_types() -> tuple[str, ...]:
    """The canonical names of all TPU types, by family and then by size."""
    return tuple(f"{family.name}-{size}" for family in _FAMILIES.values() for size in family.sizes)


def accelerator(spec: str | int) -> Accelerator:
    """Finds a TPU type by its name, or makes a generic one of so many cores.

    Args:
        spec: A type such as `"v5e-8"`, `"v5litepod-8"`, `"v3-32"` or
            `"tpu7x-8"`, in any case; or a number of cores, 1 to 1024, as an
            integer or a string.

    Returns:
        The type. A plain number gives chips of one core each on a mesh as square
        as the number allows, on hosts of at most 8 chips.

    Raises:
        AcceleratorTypeError: There is no such type; it names the nearest ones.
    """
    if isinstance(spec, bool) or not isinstance(spec, str | int):
        raise AcceleratorTypeError(
            f"A TPU type is a name such as 'v5e-8' or a number of cores, not {_short(spec)}.",
            mend=_SEE,
        )
    if isinstance(spec, int):
        return _generic(spec)
    text = spec.strip().lower()
    if number := _NUMBER.fullmatch(text):
        return _generic(int(number[1]))
    match = _TYPE.fullmatch(text)
    family = _BY_PREFIX.get(match[1]) if match else None
    if match is None or family is None:
        raise _unknown(spec, text)
    size = int(match[2])
    if size not in family.sizes:
        raise _wrong_size(family, size)
    return family.build(size)


def generic_accelerator(hosts: int, cores_per_host: int) -> Accelerator:
    """A TPU of no particular type, whose cores are spread over so many hosts.

    Raises:
        AcceleratorTypeError: There would be no core, or too many.
    """
    cores = hosts * cores_per_host
    plain = _generic(cores)
    grid = _near_square(hosts, hosts, hosts)
    block = _near_square(cores_per_host, cores_per_host, cores_per_host)
    return dataclasses.replace(
        plain, mesh=(grid[0] * block[0], grid[1] * block[1], 1), host_bounds=(*block, 1)
    )


def _unknown(spec: str, text: str) -> AcceleratorTypeError:
    """The error for a name that is not a family and a number."""
    message = f"There is no TPU type {_short(spec)}."
    if family := _BY_PREFIX.get(text.rstrip("-")):
        examples = [f"{family.name}-{size}" for size in family.sizes[:3]]
        return AcceleratorTypeError(
            f"The TPU type {_short(spec)} lacks its size.", mend=_did_you_mean(examples)
        )
    return AcceleratorTypeError(
        message, mend=_did_you_mean(nearest(text[:40], accelerator_types()))
    )


def _wrong_size(family: _Family, size: int) -> AcceleratorTypeError:
    """The error for a slice size that a family does not have."""
    around = [
        max((known for known in family.sizes if known < size), default=None),
        min((known for known in family.sizes if known > size), default=None),
    ]
    names = [f"{family.name}-{known}" for known in around if known is not None]
    names.sort(key=lambda name: abs(int(name.rpartition("-")[2]) - size))
    counts = "chips" if family.counted_per_chip == 1 else "TensorCores, 2 a chip"
    return AcceleratorTypeError(
        f"There is no TPU type {family.name}-{size}: a {family.name} slice has "
        f"{_listed(family.sizes)} (it counts {counts}).",
        mend=_did_you_mean(names),
    )


def _listed(sizes: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, sizes[:-1]))} or {sizes[-1]}"


def _did_you_mean(names: list[str]) -> str:
    return f"Did you mean {' or '.join(names)}? {_SEE}" if names else _SEE


def _short(value: object) -> str:
    # Of anything else the type says enough, and its repr may be long or fail.
    if not isinstance(value, str | int | float | None):
        return f"a {type(value).__name__}"
    if isinstance(value, int) and value.bit_length() > 200:
        return "so many"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _generic(cores: int) -> Accelerator:
    """A TPU of so many one-core chips, for a plain number."""
    if not 1 <= cores <= MAX_GENERIC_CORES:
        raise AcceleratorTypeError(
            f"There is no TPU of {_short(cores)} cores.",
            mend=f"Ask for 1 to {MAX_GENERIC_CORES} cores, or for a type such as v5e-8. {_SEE}",
        )
    width, height = _near_square(cores, cores, cores)
    on_host = max(chips for chips in range(1, 9) if cores % chips == 0)
    host_width, host_height = _near_square(on_host, width, height)
    return Accelerator(
        name=f"{cores} core" if cores == 1 else f"{cores} cores",
        family="generic",
        chips=cores,
        devices_per_chip=1,
        mesh=(width, height, 1),
        host_bounds=(host_width, host_height, 1),
        hbm_bytes=0,
        wraps=(False, False, False),
    )


def _near_square(area: int, width: int, height: int) -> tuple[int, int]:
    """The squarest block of an area whose sides divide a width and a height."""
    sides = [
        (side, area // side)
        for side in range(1, area + 1)
        if area % side == 0 and width % side == 0 and height % (area // side) == 0
    ]
    return min(sides, key=lambda block: (abs(block[1] - block[0]), block[0]))


def _cells(shape: Shape) -> list[Shape]:
    """All places of a block, x fastest."""
    width, height, depth = shape
    return [(x, y, z) for z in range(depth) for y in range(height) for x in range(width)]
