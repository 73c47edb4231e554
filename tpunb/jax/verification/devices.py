"""Claims about the devices of JAX and the order of meshes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import mesh_utils

from tpunb.jax.verification.jax_suite import JaxSuite
from tpunb.machine.detect import find_tpu
from tpunb.tpu.families import DEVICE_KINDS
from tpunb.tpu.types import accelerator
from tpunb.verification.suite import NotRunError, Outcome, equal


@dataclasses.dataclass(frozen=True)
class _Listed:
    """A device of the table of TPU types, with the attributes by which JAX orders a mesh."""

    id: int
    coords: list[int]
    core_on_chip: int
    device_kind: str
    num_cores: int
    platform: str = "tpu"
    process_index: int = 0
    slice_index: int = 0


class Devices(JaxSuite):
    """Claims about the devices that JAX lists."""

    group = "JAX devices"

    def type_of_the_TPU(self) -> Outcome:
        """Check that the type that the machine names has these devices."""
        self.need_hardware("a virtual TPU has the type that was asked for")
        named = find_tpu().slice.accelerator_type
        if not named:
            raise NotRunError("this machine does not name the type of its TPU")
        return equal(accelerator(named).name, self.connection.tpu)

    def number(self) -> Outcome:
        """Check that there are as many devices as the table of TPU types says."""
        return equal(self.type.num_devices, len(self.devices))

    def kind(self) -> Outcome:
        """Check that `device_kind` is the name of the type's family."""
        return self._each(DEVICE_KINDS[self.type.family], lambda device: device.device_kind)

    def platform(self) -> Outcome:
        """Check that the platform of the devices and the default backend are `tpu`."""
        found = [jax.default_backend(), *sorted({device.platform for device in self.devices})]
        return equal(["tpu", "tpu"], found)

    def ids(self) -> Outcome:
        """Check that the ids count the devices from 0 in the order of `jax.devices()`."""
        devices = self.devices
        return equal(list(range(len(devices))), [device.id for device in devices])

    def coordinates(self) -> Outcome:
        """Check that each device has the `coords` that the table of TPU types lists."""
        return equal(
            [device.coords for device in self._listed],
            [list(device.coords) for device in self.devices],
        )

    def cores_on_chips(self) -> Outcome:
        """Check that `core_on_chip` numbers the cores of each chip from 0."""
        return equal(
            [device.core_on_chip for device in self._listed],
            [device.core_on_chip for device in self.devices],
        )

    def TensorCores_of_a_device(self) -> Outcome:
        """Check that `num_cores` is 2 where two TensorCores act as one device, and else 1."""
        return self._each(2 if self.type.is_merged else 1, lambda device: device.num_cores)

    def slices(self) -> Outcome:
        """Check that all devices belong to slice 0."""
        return self._each(0, lambda device: device.slice_index)

    def processes(self) -> Outcome:
        """Check that one process has all devices."""
        found = {device.process_index for device in self.devices}
        return equal([1, {0}], [jax.process_count(), found])

    def texts(self) -> Outcome:
        """Check that the last device is written with its id, coordinates and core."""
        listed = self._listed[-1]
        where = ",".join(map(str, listed.coords))
        expected = (
            f"TpuDevice(id={listed.id}, process_index=0, coords=({where}), "
            f"core_on_chip={listed.core_on_chip})"
        )
        return equal(expected, repr(self.devices[-1]))

    def host(self) -> Outcome:
        """Check that `jax.devices("cpu")` lists the machine's own CPU."""
        return equal(["cpu"], sorted({device.platform for device in jax.devices("cpu")}))

    def mesh_of_one_axis(self) -> Outcome:
        """Check that `jax.make_mesh` puts the devices in the order that suits the type's links."""
        return self._ordered(len(self.devices))

    def mesh_of_two_axes(self) -> Outcome:
        """Check that `jax.make_mesh` orders a mesh of two axes as suits the type's links."""
        self.need_replicas()
        return self._ordered(len(self.devices) // 2, 2)

    def _ordered(self, *sizes: int) -> Outcome:
        expected = mesh_utils.create_device_mesh(sizes, self._listed)
        found = self.mesh(*sizes).devices
        return equal([device.id for device in expected.flat], [device.id for device in found.flat])

    def _each(self, expected: Any, answer: Callable[[Any], Any]) -> Outcome:
        """Compare the answer of every device."""
        return equal([expected], sorted({answer(device) for device in self.devices}))

    @property
    def _listed(self) -> list[_Listed]:
        """The devices of the type, as the table lists them."""
        tpu = self.type
        places = [place for host in tpu.device_coordinates() for place in host]
        kind, cores = DEVICE_KINDS[tpu.family], 2 if tpu.is_merged else 1
        return [
            _Listed(number, list(coords), core, kind, cores)
            for number, (*coords, core) in enumerate(places)
        ]
