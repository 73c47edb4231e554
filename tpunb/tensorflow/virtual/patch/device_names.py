"""Names of TPU devices for the logical CPU devices that act as them, and back."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpunb.tensorflow.virtual.private_names import DeviceAttributes
from tpunb.tensorflow.virtual.runtime.devices import VirtualDevices
from tpunb.tpu.types import Accelerator

WORKER_OF_A_SESSION = "tpu_worker"
"""The job name that a TPU's worker uses for itself, in a session that is opened by its address."""

_XLA_BYTES = 16 * 2**30

_FRAMEWORKS = frozenset({"tensorflow", "keras", "tf_keras", "tpunb"})


class TPUNames:
    """The names of one virtual TPU's devices.

    Args:
        accelerator: The TPU.
        devices: The logical CPU devices that act as the TPU.

    Attributes:
        job: The job that the TPU's devices belong to: `"localhost"` for a TPU of this machine,
            `"worker"` for a TPU that was connected to.
    """

    def __init__(self, accelerator: Accelerator, devices: VirtualDevices) -> None:
        self.accelerator = accelerator
        self.job = "localhost"
        self._devices = devices
        self._host_and_index = {
            core: (host, ordinal)
            for host, cores in enumerate(devices.cores)
            for ordinal, core in enumerate(cores)
        }
        # TensorFlow calls tf.device all the time, with few names.
        self.cpu = functools.lru_cache(maxsize=4096)(self._cpu)

    def tpu(self, name: Any) -> Any:
        """Return a device's name as a TPU's user knows it: a core's name if it acts as a core."""
        where = self._host_and_index.get(name)
        return name if where is None else self._full("TPU", *where)

    def _cpu(self, name: Any) -> Any:
        """Return the CPU device that acts as a TPU device; return other values unchanged."""
        if not isinstance(name, str):
            return name
        try:
            spec = tf.DeviceSpec.from_string(name)
        except ValueError:
            return name  # TensorFlow explains the mistake better
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
        """Return the TPU devices as `tf.config.list_logical_devices` lists them."""
        return [tf.config.LogicalDevice(name, device_type) for device_type, name in self._listed()]

    def physical(self) -> list[tf.config.PhysicalDevice]:
        """Return the TPU devices as `tf.config.list_physical_devices` lists them."""
        cores = range(self.accelerator.num_devices)
        return [
            tf.config.PhysicalDevice("/physical_device:TPU_SYSTEM:0", "TPU_SYSTEM"),
            *(tf.config.PhysicalDevice(f"/physical_device:TPU:{k}", "TPU") for k in cores),
        ]

    def attributes(self) -> list[tuple[str, str]]:
        """Return the full name and the type of each device, as in the TPU's metadata."""
        devices = [("/job:localhost/replica:0/task:0/device:CPU:0", "CPU")]
        for host in range(len(self._devices.hosts)):
            if self.job != "localhost":
                devices.append((self._full("CPU", host, 0), "CPU"))
            devices.append((self._full("TPU_SYSTEM", host, 0), "TPU_SYSTEM"))
            for ordinal in range(self.accelerator.devices_per_host):
                devices.append((self._full("TPU", host, ordinal), "TPU"))
        return devices

    def of_session(self, existing: Sequence[Any], *, remote: bool) -> list[Any]:
        """Return the devices that a TensorFlow 1 session lists.

        The list matches recordings of notebooks on TPUs: a worker that is connected to by its
        address calls its job `tpu_worker`, and every XLA device claims 16 GiB.

        Args:
            existing: The existing devices. All CPUs but one act as the TPU.
            remote: Whether the session is with the TPU's worker.
        """
        cpus = [device for device in existing if device.device_type == "CPU"]
        mine = [*cpus[:1], *(device for device in existing if device.device_type != "CPU")]
        if not remote and self.job != "localhost":
            return mine
        job = WORKER_OF_A_SESSION if remote else self.job
        numbers = {device.name: device.incarnation for device in existing}
        tpu: list[Any] = []
        for task, (host, cores) in enumerate(
            zip(self._devices.hosts, self._devices.cores, strict=True)
        ):
            listed = [("CPU", [host], -1)] if remote else []
            listed += [("TPU", [*cores], _XLA_BYTES), ("TPU_SYSTEM", [host], _XLA_BYTES)]
            tpu += [
                DeviceAttributes(
                    full(job, task, device_type, index), device_type, size, numbers.get(device, 0)
                )
                for device_type, devices, size in listed
                for index, device in enumerate(devices)
            ]
        return tpu if remote else [*mine, *tpu]

    def _listed(self) -> list[tuple[str, str]]:
        short = self.job == "localhost" and len(self._devices.hosts) == 1
        return [
            (device_type, "/device:" + name.rpartition("/device:")[2] if short else name)
            for name, device_type in self.attributes()
            # The host's CPU is this process's CPU, and MirroredStrategy takes all listed CPUs.
            if device_type != "CPU"
        ]

    def _full(self, device_type: str, host: int, index: int) -> str:
        return full(self.job, host, device_type, index)


def full(job: str, task: int, device_type: str, index: int) -> str:
    """Return a device's full name."""
    return f"/job:{job}/replica:0/task:{task}/device:{device_type}:{index}"


def translated_property(original: Any, translate: Callable[[Any], Any]) -> property:
    """Return a property that gives a notebook the names of TPU devices.

    TensorFlow and Keras themselves compare the names and place operations by them, so they get the
    names of the existing devices.

    Args:
        original: The property, or C descriptor, that it replaces.
        translate: Converts a device's name to the name that a notebook gets.
    """

    def get(self: Any) -> Any:
        value = original.__get__(self, type(self))
        asking = sys._getframe(1).f_globals.get("__name__", "")
        return value if asking.partition(".")[0] in _FRAMEWORKS else translate(value)

    return property(get, doc=original.__doc__)
