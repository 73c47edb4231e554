"""The common part of connections for JAX, whose replicas are JAX's devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpunb import framework
from tpunb._util.units import counted
from tpunb.connection.plan import Plan
from tpunb.connection.tpu_connection import TpuConnection
from tpunb.framework import RunsCells
from tpunb.machine.framework import JAX
from tpunb.tpu.types import Accelerator

if TYPE_CHECKING:
    from tpunb.display.describe.connection import ConnectionDescription


class JaxDevices(TpuConnection):
    """A connection to the devices of JAX in this process.

    Args:
        plan: The plan of the connection.
        tpu: The TPU type.
        devices: JAX's devices.
        notes: Sentences to show to the user.
    """

    framework = JAX

    def __init__(
        self, plan: Plan, tpu: Accelerator, devices: Sequence[Any], notes: tuple[str, ...]
    ) -> None:
        super().__init__(plan, tpu.name, notes)
        self._accelerator, self._devices = tpu, devices

    @property
    def replicas(self) -> int:
        """The number of devices. A cell runs on each device."""
        return len(self._devices)

    @property
    def phrase(self) -> str:
        """The TPU and its devices: `"virtual TPU v5e-8 for JAX, 8 devices"`."""
        return f"{self.target} for JAX, {counted(self.replicas, 'device')}"

    def _new_cells(self) -> RunsCells:
        return framework.jax().cell_runner(self._devices)

    def lost(self) -> tuple[str, ...]:
        """Return no address: all devices are in this process."""
        return ()

    def describe(self) -> ConnectionDescription:
        """Return a description of the connection, for displays and programs."""
        from tpunb.display.describe.connection import ConnectionDescription
        from tpunb.display.describe.topology_description import describe_accelerator

        return ConnectionDescription(
            kind=self.kind,
            tpu=self.plan.tpu if self.kind == "hardware" else "",
            accelerator=self.tpu,
            replicas=0,
            cores=self.replicas,
            hosts=self._accelerator.num_hosts,
            topology=describe_accelerator(self._accelerator),
            notes=self.notes,
            framework="JAX",
        )
