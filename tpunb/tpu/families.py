"""The families of TPU types: the slices of each, and what they share.

Facts are from the Cloud TPU documentation. A *device* is what TensorFlow sees
as one TPU core: a TensorCore on v2, v3 and tpu7x, and a chip on the families
whose two TensorCores act as one (v4, v5p) or that have just one (v5e, v6e).
"""

from __future__ import annotations

import dataclasses

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
class Family:
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

    def wraps(self, mesh: Shape) -> tuple[bool, bool, bool]:
        """Which axes of a slice close to a ring.

        Google's pages promise a 3D torus for slices of whole cubes of 4x4x4 chips
        (cloud.google.com/tpu/docs/v5p: "all 4x4x4 and larger slices have full 3D torus";
        .../v4: "where each dimension is a multiple of 4"), and nothing for smaller ones.
        """
        if self.full_side:
            x, y, z = (side == self.full_side for side in mesh)
            return x, y, z
        cubes = all(side % 4 == 0 for side in mesh)
        return cubes, cubes, cubes


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
) -> Family:
    return Family(name, aliases, counted, devices, hbm_gib, meshes, host, one_host, full_side)


# A slice of several hosts starts at 4x4: there is no v2-16 or v3-16, nor a v2-64.
_V2_MESHES = {4: (2, 2, 1), 16: (4, 4, 1), **_slices(_MESHES_2D, 64, 256)}
_V3_MESHES = {4: (2, 2, 1), **_slices(_MESHES_2D, 16, 1024)}
_POD_256 = _slices(_MESHES_2D, 1, 256)

FAMILIES: dict[str, Family] = {
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
BY_PREFIX: dict[str, Family] = {
    prefix: family for family in FAMILIES.values() for prefix in (family.name, *family.aliases)
}
