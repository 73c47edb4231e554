"""Logical CPU devices that act as a TPU's hosts and cores."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tpunb.errors import VirtualDevicesError
from tpunb.tensorflow.virtual.private_names import context
from tpunb.tensorflow.virtual.runtime.tensorflow_state import has_started
from tpunb.tpu.types import Accelerator
from tpunb.tpu.types import accelerator as any_accelerator

# TensorFlow's default is a thread for each processor. Input pipelines of many logical devices can
# then wait for each other: with 2 threads they hung, in TensorFlow 2.21. With 1 thread, a dataset
# on one device hangs in the same way: https://github.com/tensorflow/tensorflow/issues/48418
_LEAST_THREADS = 16

# Logical devices cost next to nothing, and none can be added later. With this number, a notebook
# can move on to a larger TPU without a restart of its kernel.
_LEAST_DEVICES = 160


@dataclasses.dataclass(frozen=True)
class VirtualDevices:
    """The devices of one virtual TPU.

    Attributes:
        hosts: One device for each TPU host.
        cores: The devices of each host's cores, in the order of their ordinals.
    """

    hosts: tuple[str, ...]
    cores: tuple[tuple[str, ...], ...]


def virtual_devices(accelerator: Accelerator) -> VirtualDevices:
    """Return logical CPU devices for a TPU, and make them if TensorFlow still allows it.

    Args:
        accelerator: The TPU.

    Returns:
        Devices that any number of virtual TPUs in the process may share.

    Raises:
        VirtualDevicesError: TensorFlow has started with fewer devices.
    """
    hosts, cores = accelerator.num_hosts, accelerator.num_devices
    needed = hosts + cores
    names = [full_name(f"/device:CPU:{number}") for number in range(_available(needed))]
    if len(names) < needed:
        smaller = map(any_accelerator, range(1, len(names)))
        sizes = [
            candidate.num_devices
            for candidate in smaller
            if candidate.num_devices + candidate.num_hosts <= len(names)
        ]
        fits = max(sizes, default=0)
        raise VirtualDevicesError(
            f"A virtual TPU {_called(accelerator)} needs {needed} logical CPU devices "
            f"({cores} cores, {hosts} host{'s' if hosts > 1 else ''}), and TensorFlow has "
            f"already started with {len(names)}.",
            fix="Restart the kernel and connect before anything else uses TensorFlow"
            + (f", or connect to one of at most {fits} cores." if fits else "."),
        )
    per_host = accelerator.devices_per_host
    flat = names[hosts:needed]
    return VirtualDevices(
        tuple(names[:hosts]),
        tuple(tuple(flat[k : k + per_host]) for k in range(0, cores, per_host)),
    )


def prepare() -> None:
    """Make the logical devices of later virtual TPUs, unless TensorFlow has started already.

    Call this before TensorFlow starts for another purpose. No device can be added afterwards, and a
    virtual TPU must remain possible as a last resort.
    """
    if not has_started():
        _configure(_LEAST_DEVICES)


def _called(accelerator: Accelerator) -> str:
    return f"of {accelerator.name}" if accelerator.family == "generic" else accelerator.name


def _available(needed: int) -> int:
    """Return the number of logical CPU devices, now or once TensorFlow starts."""
    if has_started():
        # tf.config's list is not used, because an installed virtual TPU changes it.
        devices = context.context().list_logical_devices("CPU")
        return sum("/job:worker" not in device.name for device in devices)
    _configure(max(needed, _LEAST_DEVICES))
    cpu = tf.config.list_physical_devices("CPU")[0]
    return len(tf.config.get_logical_device_configuration(cpu))


def _configure(needed: int) -> None:
    """Make logical CPU devices, unless the process has chosen its own number."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(needed)]
        )
    if not tf.config.threading.get_inter_op_parallelism_threads():
        tf.config.threading.set_inter_op_parallelism_threads(_LEAST_THREADS)


def full_name(name: str) -> str:
    """Return a device's name in the form that TensorFlow's runtime uses."""
    return str(
        tf.DeviceSpec.from_string(name).replace(job="localhost", replica=0, task=0).to_string()
    )


def replica_devices(
    devices: VirtualDevices, assignment: tf.tpu.experimental.DeviceAssignment | None
) -> np.ndarray:
    """Return the device of each logical core of each replica, shaped `[replicas, logical]`."""
    if assignment is None:
        return np.array([[core] for cores in devices.cores for core in cores], dtype=object)
    return np.array(
        [
            [
                devices.cores[_task(assignment, replica, core)][
                    assignment.tpu_ordinal(replica=replica, logical_core=core)
                ]
                for core in range(assignment.num_cores_per_replica)
            ]
            for replica in range(assignment.num_replicas)
        ],
        dtype=object,
    )


def _task(assignment: tf.tpu.experimental.DeviceAssignment, replica: int, logical_core: int) -> int:
    device = assignment.host_device(replica=replica, logical_core=logical_core, job="worker")
    return int(tf.DeviceSpec.from_string(device).task)
