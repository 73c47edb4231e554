"""Logical CPU devices that stand for a TPU's hosts and cores."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tpunb.errors import VirtualDevicesError
from tpunb.tpu.types import Accelerator
from tpunb.tpu.types import accelerator as any_accelerator
from tpunb.virtual._tensorflow import context
from tpunb.virtual.tensorflow_state import has_started

# TensorFlow's own default is one thread per processor. Input pipelines of many
# logical devices can then wait for each other: with 2 threads they hung.
_LEAST_THREADS = 16

# Logical devices cost next to nothing, and none can be added later: with these
# a notebook can go on to a larger TPU without a restart of its kernel.
_LEAST_DEVICES = 160


WORKER_JOB = "worker"
"""TensorFlow's job of a Pod's workers, as TPUClusterResolver calls it."""


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
    """Takes logical CPU devices for a TPU, making them if TensorFlow allows it still.

    Args:
        accelerator: The TPU.

    Returns:
        Devices that any number of virtual TPUs in the process may share.

    Raises:
        VirtualDevicesError: TensorFlow has started with fewer.
    """
    hosts, cores = accelerator.num_hosts, accelerator.num_devices
    needed = hosts + cores
    names = [full_name(f"/device:CPU:{number}") for number in range(_available(needed))]
    if len(names) < needed:
        smaller = map(any_accelerator, range(1, len(names)))
        sizes = [
            one.num_devices for one in smaller if one.num_devices + one.num_hosts <= len(names)
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


def worker_devices(accelerator: Accelerator) -> VirtualDevices:
    """The CPU devices of a virtual Pod's workers: of each the first is the host's.

    Args:
        accelerator: The TPU; TensorFlow is connected to a worker for each of its hosts.
    """

    def name(worker: int, number: int) -> str:
        return f"/job:{WORKER_JOB}/replica:0/task:{worker}/device:CPU:{number}"

    workers, cores = range(accelerator.num_hosts), range(1, accelerator.devices_per_host + 1)
    return VirtualDevices(
        tuple(name(worker, 0) for worker in workers),
        tuple(tuple(name(worker, core) for core in cores) for worker in workers),
    )


def is_elsewhere(device: str) -> bool:
    """Return whether a device is a worker's."""
    return f"/job:{WORKER_JOB}/" in device


def prepare() -> None:
    """Makes the logical devices of later virtual TPUs, if TensorFlow has not started yet.

    Whoever starts TensorFlow for another purpose calls this first: no device can be
    added afterwards, and a virtual TPU has to be within reach when all else fails.
    """
    if not has_started():
        _configure(_LEAST_DEVICES)


def _called(accelerator: Accelerator) -> str:
    return f"of {accelerator.name}" if accelerator.family == "generic" else accelerator.name


def _available(needed: int) -> int:
    """Return the number of logical CPU devices, now or once TensorFlow starts."""
    if has_started():
        # Not tf.config's list, which a virtual TPU that is installed has a say in.
        devices = context.context().list_logical_devices("CPU")
        return sum("/job:worker" not in device.name for device in devices)
    _configure(max(needed, _LEAST_DEVICES))
    cpu = tf.config.list_physical_devices("CPU")[0]
    return len(tf.config.get_logical_device_configuration(cpu))


def _configure(needed: int) -> None:
    """Makes logical CPU devices, unless the process has chosen its own number."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(needed)]
        )
    if not tf.config.threading.get_inter_op_parallelism_threads():
        tf.config.threading.set_inter_op_parallelism_threads(_LEAST_THREADS)


def full_name(name: str) -> str:
    """A device's name in the form that TensorFlow's runtime uses."""
    return str(
        tf.DeviceSpec.from_string(name).replace(job="localhost", replica=0, task=0).to_string()
    )


def process_of(device: str) -> str:
    """The process that a device belongs to, as its name begins."""
    return device.partition("/device:")[0]


def replica_devices(
    devices: VirtualDevices, assignment: tf.tpu.experimental.DeviceAssignment | None
) -> np.ndarray:
    """The device of each logical core of each replica, shaped `[replicas, logical]`."""
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
