"""A connection to the TPU of this machine for JAX, which uses it by itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpunb.connection.plan import Plan
from tpunb.errors import ConnectError
from tpunb.jax.connection.devices import JaxDevices
from tpunb.jax.virtual.import_jax import import_jax
from tpunb.tpu.families import DEVICE_KINDS
from tpunb.tpu.types import Accelerator, accelerator, accelerator_types

if TYPE_CHECKING:
    from tpunb.compiler.program import TpuProgram
    from tpunb.jax.virtual.memory import LiveArray


class JaxHardwareConnection(JaxDevices):
    """The TPU of this machine, whose devices are JAX's own.

    Connecting changes nothing in JAX. It shows the TPU and gives `%%tpu_run` its devices.

    Args:
        plan: The plan of the connection.

    Raises:
        ConnectError: JAX has no TPU here.
    """

    programs: tuple[TpuProgram, ...] = ()
    """No programs: the TPU itself refuses what it cannot run."""

    def __init__(self, plan: Plan) -> None:
        import_jax()
        jax: Any = sys.modules["jax"]
        if jax.process_count() > 1:
            raise ConnectError(
                "JAX runs in several processes here, and a notebook is one of them.",
                fix="Use a TPU of one host, or write the same program for all processes.",
            )
        devices = jax.devices()
        super().__init__(plan, _accelerator_of(devices), devices, plan.notes)

    def live_arrays(self) -> list[LiveArray]:
        """Return no arrays: `memory_per_core` has what the TPU itself counts."""
        return []

    def memory_per_core(self) -> tuple[int, ...]:
        """Return the bytes in use on each device, as the TPU counts them."""
        stats = [device.memory_stats() or {} for device in self._devices]
        return tuple(int(each.get("bytes_in_use", 0)) for each in stats)

    def close(self, *, shut_down: bool = True) -> None:
        """Forget the cells. JAX keeps its devices."""
        del shut_down
        self.closed = True
        if self._cells is not None:
            self._cells.close()


def _accelerator_of(devices: Sequence[Any]) -> Accelerator:
    """Return the TPU type of JAX's devices."""
    kinds = {kind: family for family, kind in DEVICE_KINDS.items()}
    kind = devices[0].device_kind
    if kind not in kinds:
        raise ConnectError(
            f"JAX has no TPU here: its devices are {devices[0].platform}.",
            fix='Install JAX for TPUs, %pip install -U "jax[tpu]", and restart the kernel. Or '
            "simulate a TPU: %tpu_connect --simulate v5e-8 --framework jax.",
        )
    types = [accelerator(name) for name in accelerator_types() if name.startswith(kinds[kind])]
    fitting = (each for each in types if each.num_devices == len(devices))
    return next(fitting, None) or accelerator(len(devices))
