"""What libtpu calls a TPU type, and how many replicas of a program it runs."""

from __future__ import annotations

import dataclasses

from tpunb.compiler.program import CompileError
from tpunb.tpu.core_figures import HARDWARE, Hardware
from tpunb.tpu.types import Accelerator, accelerator

__all__ = ["Target", "target"]

# Both TensorCores of a chip as one device, as TensorFlow has them.
_CHIPS = {"v4": "megacore"}


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What a program is compiled for.

    Attributes:
        tpu: The TPU type.
        replicas: How many run it.
        partitions: Cores of a replica, over which XLA partitions it.
    """

    tpu: Accelerator
    replicas: int
    partitions: int = 1

    @property
    def topology(self) -> str:
        """The name that libtpu has for it: `"v5e:2x4"`; of one core as few chips as there are."""
        x, y, z = self.tpu.mesh if self.replicas * self.partitions > 1 else (1, 1, 1)
        flat = self.tpu.family in {"v2", "v3", "v5e", "v6e"}
        return f"{self.tpu.family}:{x}x{y}" if flat else f"{self.tpu.family}:{x}x{y}x{z}"

    @property
    def chip(self) -> str:
        """The name of the chip's configuration, where it is not the default."""
        return _CHIPS.get(self.tpu.family, "")

    @property
    def hardware(self) -> Hardware:
        """What a core of it has."""
        return HARDWARE[self.tpu.family]


def target(tpu: str, replicas: int | None, partitions: int = 1) -> Target:
    """What to compile for.

    Args:
        tpu: A TPU type such as `"v5e-8"`.
        replicas: How many run it; None for as many as there is room for.
        partitions: Cores of a replica.

    Raises:
        AcceleratorTypeError: There is no such type.
        CompileError: A plain number of cores, which no compiler knows; or too few cores.
    """
    kind = accelerator(tpu)
    if kind.family not in HARDWARE:
        raise CompileError(
            f"{kind.name}: a number of cores is no TPU that a compiler knows.",
            fix="Name a TPU type: tpu='v5e-8'.",
        )
    if kind.num_devices < partitions:
        raise CompileError(
            f"A replica has {partitions} cores, and a {kind.name} has {kind.num_devices}.",
            fix="Choose a larger type, or fewer logical devices.",
        )
    return Target(kind, replicas or kind.num_devices // partitions, partitions)
