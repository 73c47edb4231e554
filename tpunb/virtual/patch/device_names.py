"""Names of TPU devices for the logical CPU devices that stand for them, and back."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpunb.tpu.types import Accelerator
from tpunb.virtual._tensorflow import DeviceAttributes
from tpunb.virtual.devices import VirtualDevices

WORKER_OF_A_SESSION = "tpu_worker"
"""The job of a TPU's worker, as itself calls it: with a session by its address."""

_XLA_BYTES = 16 * 2**30

_FRAMEWORKS = frozenset({"tensorflow", "keras", "tf_keras", "tpunb"})


class TPUNames:
    """The names of one virtual TPU's devices.

    Args:
        accelerator: The TPU.
        devices: The logical CPU devices that stand for it.

    Attributes:
        job: The job that the TPU's devices belong to: `"localhost"` for a TPU of this
            machine, `"worker"` for one that was connected to.
    """

    def __init__(self, accelerator: Accelerator, devices: VirtualDevices) -> None:
        self.accelerator = accelerator
        self.job = "localhost"
        self._devices = devices
        self._place = {
            core: (host, ordinal)
            for host, cores in enumerate(devices.cores)
            for ordinal, core in enumerate(cores)
        }
        # tf.device is asked all the time, with few names.
        self.cpu = functools.lru_cache(maxsize=4096)(self._cpu)

    def tpu(self, name: Any) -> Any:
        """A device's name as a TPU's user knows it: that of a core where it stands for one."""
        place = self._place.get(name)
        return name if place is None else self._full("TPU", *place)

    def _cpu(self, name: Any) -> Any:
        """The device that stands for a TPU's; another name, or what is none, as it is."""
        if not isinstance(name, str):
            return name
        try:
            spec = tf.DeviceSpec.from_string(name)
        except ValueError:
            return name  # TensorFlow explains better what is wrong with it
        remote = spec.job in {"worker", WORKER_OF_A_SESSION}
        hosts, cores = self._devices.hosts, self._devices.cores
        task, index = spec.task or 0, spec.device_index or 0
        if task >= len(hosts):
            return name
        if spec.device_type == "TPU":
            return cores[task][index] if index < len(cores[task]) else name
        if spec.device_type == "TPU_SYSTEM" or (
            remote and (spec.device_type is None or spec.device_type == "CPU")
        ):
            return hosts[task]
        return name

    def logical(self) -> list[tf.config.LogicalDevice]:
        """The TPU devices as `tf.config.list_logical_devices` lists them."""
        return [tf.config.LogicalDevice(name, kind) for kind, name in self._listed()]

    def physical(self) -> list[tf.config.PhysicalDevice]:
        """The TPU devices as `tf.config.list_physical_devices` lists them."""
        cores = range(self.accelerator.num_devices)
        return [
            tf.config.PhysicalDevice("/physical_device:TPU_SYSTEM:0", "TPU_SYSTEM"),
            *(tf.config.PhysicalDevice(f"/physical_device:TPU:{k}", "TPU") for k in cores),
        ]

    def attributes(self) -> list[tuple[str, str]]:
        """The full name and the type of each device, as the TPU's metadata has them."""
        found = [("/job:localhost/replica:0/task:0/device:CPU:0", "CPU")]
        for host in range(len(self._devices.hosts)):
            if self.job != "localhost":
                found.append((self._full("CPU", host, 0), "CPU"))
            found.append((self._full("TPU_SYSTEM", host, 0), "TPU_SYSTEM"))
            for ordinal in range(self.accelerator.devices_per_host):
                found.append((self._full("TPU", host, ordinal), "TPU"))
        return found

    def of_session(self, found: Sequence[Any], *, remote: bool) -> list[Any]:
        """The devices that a session of TensorFlow 1's lists.

        As notebooks recorded them on TPUs: a worker that is connected to by its address calls
        its job `tpu_worker`, and every device of XLA claims 16 GiB.

        Args:
            found: The devices that there are, of which the CPUs but one stand for the TPU's.
            remote: Whether the session is one with the TPU's worker.
        """
        cpus = [device for device in found if device.device_type == "CPU"]
        mine = [*cpus[:1], *(device for device in found if device.device_type != "CPU")]
        if not remote and self.job != "localhost":
            return mine
        job = WORKER_OF_A_SESSION if remote else self.job
        numbers = {device.name: device.incarnation for device in found}
        tpu: list[Any] = []
        for task, (host, cores) in enumerate(
            zip(self._devices.hosts, self._devices.cores, strict=True)
        ):
            kinds = [("CPU", [host], -1)] if remote else []
            kinds += [("TPU", [*cores], _XLA_BYTES), ("TPU_SYSTEM", [host], _XLA_BYTES)]
            tpu += [
                DeviceAttributes(full(job, task, kind, index), kind, size, numbers.get(device, 0))
                for kind, devices, size in kinds
                for index, device in enumerate(devices)
            ]
        return tpu if remote else [*mine, *tpu]

    def _listed(self) -> list[tuple[str, str]]:
        short = self.job == "localhost" and len(self._devices.hosts) == 1
        return [
            (kind, "/device:" + name.rpartition("/device:")[2] if short else name)
            for name, kind in self.attributes()
            # The host's CPU is this process's, and MirroredStrategy takes all CPUs listed.
            if kind != "CPU"
        ]

    def _full(self, kind: str, host: int, index: int) -> str:
        return full(self.job, host, kind, index)


def full(job: str, task: int, kind: str, index: int) -> str:
    """A device's full name."""
    return f"/job:{job}/replica:0/task:{task}/device:{kind}:{index}"


def translated_property(original: Any, translate: Callable[[Any], Any]) -> property:
    """A property that gives a notebook the names of TPU devices.

    TensorFlow and Keras themselves compare the names and place operations by them: they
    get the names of the devices that there are.

    Args:
        original: The property, or C descriptor, in its place.
        translate: From a device's name to the one that a notebook gets.
    """

    def get(self: Any) -> Any:
        value = original.__get__(self, type(self))
        asking = sys._getframe(1).f_globals.get("__name__", "")
        return value if asking.partition(".")[0] in _FRAMEWORKS else translate(value)

    return property(get, doc=original.__doc__)
