"""The families of TPU types: their slices, memory, speed and links.

The facts are from the Cloud TPU documentation. A *device* is a TPU core as TensorFlow sees it.
On v2, v3 and tpu7x it is a TensorCore. On the other families it is a chip, which has two
TensorCores that act as one (v4, v5p) or just one (v5e, v6e).
"""

from __future__ import annotations

import dataclasses

Shape = tuple[int, int, int]
GIB = 2**30

# From the number of chips of a slice to its mesh. The smaller side comes first, as in "2x4".
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
class Family:
    """The common properties of a family's types.

    Attributes:
        name: The canonical prefix.
        meshes: The mesh of each slice, by its number of chips.
        hbm_gib: Memory of one device in GiB.
        counted_per_chip: What the number in a name counts per chip: 1 for the chip itself, 2 for
            its two TensorCores.
        devices_per_chip: TensorFlow devices per chip.
        aliases: Other prefixes, all in lower case.
        host_chips: The block of chips of one host, in a slice of several hosts.
        one_host: The most chips that a single host can have.
        full_side: The side of a full 2D Pod; 0 for a 3D torus.
    """

    name: str
    meshes: dict[int, Shape]
    hbm_gib: int
    counted_per_chip: int = 1
    devices_per_chip: int = 1
    aliases: tuple[str, ...] = ()
    host_chips: Shape = (2, 2, 1)
    one_host: int = 4
    full_side: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers that may follow the prefix."""
        return tuple(chips * self.counted_per_chip for chips in self.meshes)

    def wraps(self, mesh: Shape) -> tuple[bool, bool, bool]:
        """Return, for each axis of a slice, whether it closes to a ring.

        Google's pages promise a 3D torus for slices of whole cubes of 4x4x4 chips
        (cloud.google.com/tpu/docs/v5p: "all 4x4x4 and larger slices have full 3D torus";
        .../v4: "where each dimension is a multiple of 4") and nothing for smaller slices.
        """
        if self.full_side:
            x, y, z = (side == self.full_side for side in mesh)
            return x, y, z
        cubes = all(side % 4 == 0 for side in mesh)
        return cubes, cubes, cubes


def _slices(meshes: dict[int, Shape], smallest: int, largest: int) -> dict[int, Shape]:
    return {chips: mesh for chips, mesh in meshes.items() if smallest <= chips <= largest}


# A slice of several hosts starts at 4x4: v2-16, v3-16 and v2-64 do not exist.
_V2_MESHES = {4: (2, 2, 1), 16: (4, 4, 1), **_slices(_MESHES_2D, 64, 256)}
_V3_MESHES = {4: (2, 2, 1), **_slices(_MESHES_2D, 16, 1024)}
_POD_256 = _slices(_MESHES_2D, 1, 256)

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("v2", _V2_MESHES, 8, counted_per_chip=2, devices_per_chip=2, full_side=16),
        Family("v3", _V3_MESHES, 16, counted_per_chip=2, devices_per_chip=2, full_side=32),
        Family("v4", _MESHES_3D, 32, counted_per_chip=2),
        Family(
            "v5e",
            _POD_256,
            16,
            aliases=("v5litepod", "v5lite"),
            host_chips=(2, 4, 1),
            one_host=8,
            full_side=16,
        ),
        Family("v5p", {**_MESHES_3D, 8960: (16, 20, 28)}, 95, counted_per_chip=2),
        Family("v6e", _POD_256, 32, one_host=8, full_side=16),
        # A chip has 192 GiB, and each of its two devices has half of them.
        Family(
            "tpu7x",
            {**_MESHES_3D, 9216: (16, 24, 24)},
            96,
            devices_per_chip=2,
            aliases=("v7x",),
        ),
    )
}
BY_PREFIX: dict[str, Family] = {
    prefix: family for family in FAMILIES.values() for prefix in (family.name, *family.aliases)
}


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """The speed and the memory of a core.

    Attributes:
        usable_bytes: HBM that a program can use.
        clock: The clock in Hz.
        flops: The peak of multiplications and additions per second in bfloat16.
        hbm: HBM bandwidth in bytes per second.
        link: The bandwidth of one link between chips in one direction, in bytes per second.
        matrix_units: The matrix units of a TensorCore; 0 if Google does not say.
        sustained_flops: The part of the peak that large products reach.
        sustained_hbm: The part of the bandwidth that a long stream of reads and writes reaches.
        sustained_link: The part of a link's bandwidth that a collective reaches.
    """

    usable_bytes: int
    clock: float
    flops: float
    hbm: float
    link: float
    matrix_units: int
    sustained_flops: float = 0.94
    sustained_hbm: float = 0.9
    sustained_link: float = 0.9


def _hardware(
    gib: float,
    ghz: float,
    tflops: float,
    hbm: float,
    link: float,
    matrix_units: int,
    *,
    cores: int = 1,
    sustained: tuple[float, ...] = (),
) -> Hardware:
    """Return a core with `gib` of memory. Other figures are a chip's; bandwidths are in GB/s."""
    return Hardware(
        int(gib * GIB),
        ghz * 1e9,
        tflops * 1e12 / cores,
        hbm * 1e9 / cores,
        link * 1e9,
        matrix_units,
        *sustained,
    )


_NO_LOSS_ON_LINKS = (0.94, 0.9, 1.0)
HARDWARE: dict[str, Hardware] = {
    "v2": _hardware(7.48, 0.7, 46, 700, 62, 1, cores=2, sustained=_NO_LOSS_ON_LINKS),
    "v3": _hardware(15.48, 0.94, 123, 900, 82, 2, cores=2, sustained=_NO_LOSS_ON_LINKS),
    "v4": _hardware(30.75, 1.05, 275, 1200, 50, 4),
    "v5e": _hardware(15.75, 1.5, 197, 819, 50, 4),
    "v5p": _hardware(95.73, 1.75, 459, 2765, 100, 4),
    "v6e": _hardware(31.24, 1.75, 918, 1640, 100, 2, sustained=(0.78, 0.8)),
    "tpu7x": _hardware(94.74, 2.2, 2307, 7380, 100, 0, cores=2),
}
"""A core of each family, by the family's name.

A core is a TensorFlow device: half a chip on v2, v3 and tpu7x. Usable memory is the limit for
programs of libtpu 0.0.52, as its refusals print it; libtpu keeps the rest for itself. Clocks,
multiplications, matrix units and bandwidths are from Jouppi et al., "A domain-specific
supercomputer for training deep neural networks" (2020: v2, v3), Jouppi et al., "TPU v4" (2023)
and the pages of each generation in the Cloud TPU documentation (docs.cloud.google.com/tpu/docs/v3,
v4, v5e, v5p, v6e, tpu7x). These give the bandwidth of a chip's links in both directions together:
v5e has 400 GB/s on 4 links, so a link has 50 GB/s each way. Austin et al., "How to Scale Your
Model" (2025), count on a tenth less. The clock of tpu7x is not published: a core multiplies
2,307 / 2 TFLOPS with four units of 256 × 256, as libtpu counts the cycles of its products, which
takes 2.2 GHz.
"""

DEVICE_KINDS: dict[str, str] = {
    "v2": "TPU v2",
    "v3": "TPU v3",
    "v4": "TPU v4",
    "v5e": "TPU v5 lite",
    "v5p": "TPU v5",
    "v6e": "TPU v6 lite",
    "tpu7x": "TPU7x",
}
"""JAX's `device_kind` of each family, as the topologies of libtpu 0.0.52 have it."""
