"""The parts of one chip of a TPU type, with the figures that are known."""

from __future__ import annotations

from dataclasses import dataclass

from tpunb.errors import TpunbError
from tpunb.tpu.default_tpu import DEFAULT_TPU
from tpunb.tpu.families import BY_PREFIX, HARDWARE
from tpunb.tpu.types import Accelerator


@dataclass(frozen=True, slots=True)
class ChipParts:
    """One chip.

    Attributes:
        name: The TPU type.
        tensor_cores: The TensorCores of the chip.
        devices: The cores that a program sees: TensorFlow's or JAX's devices.
        matrix_units: The matrix units of a TensorCore; 0 if Google does not say.
        flops: The peak of a TensorCore, in multiplications and additions per second in bfloat16.
        hbm_bytes: The memory of the whole chip in bytes.
        hbm_bandwidth: The chip's bytes per second to and from its memory.
        link_bandwidth: The bytes per second of a link in one direction.
        links: The most links to neighbours: 4 in a plane, 6 in a cube.
    """

    name: str
    tensor_cores: int
    devices: int
    matrix_units: int
    flops: float
    hbm_bytes: int
    hbm_bandwidth: float
    link_bandwidth: float
    links: int


def chip_of(acc: Accelerator) -> ChipParts:
    """Return the parts of a TPU type's chip.

    Raises:
        TpunbError: The type is only a number of cores.
    """
    family = BY_PREFIX.get(acc.family)
    if family is None:
        raise TpunbError(
            f"The chips of {acc.name} are not known, because no type is given.",
            fix=f"Name a type, such as {DEFAULT_TPU}.",
        )
    hardware = HARDWARE[family.name]
    # tpu7x counts chips, and has two TensorCores that a program sees.
    tensor_cores = max(family.counted_per_chip, family.devices_per_chip)
    per_device = tensor_cores // family.devices_per_chip
    return ChipParts(
        acc.name,
        tensor_cores,
        family.devices_per_chip,
        hardware.matrix_units,
        hardware.flops / per_device,
        acc.hbm_bytes * family.devices_per_chip,
        hardware.hbm * family.devices_per_chip,
        hardware.link,
        4 if family.full_side else 6,
    )
