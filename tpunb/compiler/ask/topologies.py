"""libtpu's names of TPU types, and the number of replicas that run on each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from tpunb.compiler.program import CompileError
from tpunb.tpu.families import HARDWARE, Hardware
from tpunb.tpu.types import Accelerator, accelerator, accelerator_types
from tpunb.virtual import current_type

# Both TensorCores of a chip form one device, as in TensorFlow.
_CHIPS = {"v4": "megacore"}


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A TPU type, or a part of it, as the target of a compilation.

    Attributes:
        tpu: The TPU type.
        replicas: The number of replicas.
        partitions: The cores of a replica, over which XLA partitions it.
    """

    tpu: Accelerator
    replicas: int
    partitions: int = 1

    @property
    def cores(self) -> int:
        """The number of cores that run the program."""
        return self.replicas * self.partitions

    @property
    def topology(self) -> str:
        """The name in libtpu: `"v5e:2x4"`. For one core, it has as few chips as possible."""
        x, y, z = self.tpu.mesh if self.cores > 1 else (1, 1, 1)
        flat = self.tpu.family in {"v2", "v3", "v5e", "v6e"}
        return f"{self.tpu.family}:{x}x{y}" if flat else f"{self.tpu.family}:{x}x{y}x{z}"

    @property
    def chip(self) -> str:
        """The name of the chip's configuration, if it is not the default."""
        return _CHIPS.get(self.tpu.family, "")

    @property
    def hardware(self) -> Hardware:
        """The memory and the speed of one core."""
        return HARDWARE[self.tpu.family]


def target(tpu: str, replicas: int | None, partitions: int = 1) -> Target:
    """Return the target to compile for.

    Args:
        tpu: A TPU type such as `"v5e-8"`.
        replicas: The number of replicas; None for as many as fit.
        partitions: The cores of a replica.

    Raises:
        AcceleratorTypeError: The TPU type does not exist.
        CompileError: The type is a plain number of cores, which no compiler knows, or it has too
            few cores.
    """
    kind = accelerator(tpu)
    if kind.family not in HARDWARE:
        raise CompileError(
            f"{kind.name}: the compiler needs a TPU type, not a number of cores.",
            fix="Name a type, such as tpu='v5e-8'.",
        )
    if kind.num_devices < partitions:
        raise CompileError(
            f"A replica has {partitions} cores, but a {kind.name} has {kind.num_devices}.",
            fix="Choose a larger type, or fewer logical devices.",
        )
    return Target(kind, replicas or kind.num_devices // partitions, partitions)


def family_of(kind: Target) -> Iterator[Target]:
    """Yield the types of a target's family that have room for a replica, smallest first."""
    for name in accelerator_types():
        other = accelerator(name)
        if other.family == kind.tpu.family and other.num_devices >= kind.partitions:
            yield Target(other, other.num_devices // kind.partitions, kind.partitions)


def names_of(tpu: str | Sequence[str] | None) -> list[str]:
    """Return the names in an argument `tpu`: a TPU type, several, or None."""
    return [tpu] if isinstance(tpu, str) else list(tpu or ())


def targets(tpus: Sequence[str], strategy: Any = None) -> list[Target]:
    """Return the targets to compile for: types by name, or by default the connected type.

    Raises:
        CompileError: No type is given, and neither the strategy nor JAX has one.
        AcceleratorTypeError: A TPU type does not exist.
    """
    extended = getattr(strategy, "extended", None)
    resolver = getattr(extended, "_tpu_cluster_resolver", None)
    kind = getattr(resolver, "accelerator", None) or current_type.get()
    own = kind.name if kind is not None and kind.hbm_bytes else None  # not for a number of cores
    names = list(tpus) or ([own] if own else [])
    if not names:
        raise CompileError(
            "No TPU type to compile for is given.",
            fix="Name a type, with --for v5e-8 or tpu='v5e-8', or connect to a TPU.",
        )
    devices = getattr(extended, "_tpu_devices", None)
    replicas, partitions = (1, 1) if devices is None else map(int, devices.shape)
    return [target(name, replicas if name == own else None, partitions) for name in names if name]
