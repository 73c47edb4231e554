"""The TPU system that TensorFlow asks for: resolver, metadata and topology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tpunb.tensorflow.virtual.private_names import (
    DeviceAttributes,
    TPUClusterResolver,
    TPUSystemMetadata,
)
from tpunb.tensorflow.virtual.runtime.devices import VirtualDevices, virtual_devices
from tpunb.tpu.default_tpu import DEFAULT_TPU
from tpunb.tpu.types import Accelerator, accelerator
from tpunb.virtual.arithmetic import arithmetic_of
from tpunb.virtual.strictness import Strictness


def virtual_topology(tpu: Accelerator) -> tf.tpu.experimental.Topology:
    """Return the topology that `initialize_tpu_system` would return for a TPU type."""
    return tf.tpu.experimental.Topology(
        mesh_shape=tpu.topology_mesh_shape, device_coordinates=tpu.device_coordinates()
    )


class VirtualTPUClusterResolver(TPUClusterResolver):  # type: ignore[misc]
    """A resolver that finds a virtual TPU, as `TPUClusterResolver` finds a real TPU.

    Args:
        tpu: A TPU type such as `"v5e-8"`, a number of cores, or an `Accelerator`.
        strict: The rules that a strategy made under TensorFlow's names enforces: all rules (True),
            none, or a mapping from a rule's name to whether it holds.
        arithmetic: The arithmetic in which such a strategy multiplies matrices, as for
            `VirtualTPUStrategy`.

    Attributes:
        accelerator: The TPU type.
        strictness: The rules that a strategy made under TensorFlow's names enforces.
        arithmetic: The arithmetic in which such a strategy multiplies matrices.
        devices: The logical CPU devices that act as its hosts and cores.
        task_type: `"worker"`, as on a TPU VM.
        task_id: 0.

    Raises:
        AcceleratorTypeError: The TPU type does not exist.
        ArithmeticNameError: The arithmetic does not exist.
        VirtualDevicesError: TensorFlow has started with too few devices.
    """

    def __init__(
        self,
        tpu: str | int | Accelerator,
        *,
        strict: bool | Mapping[str, bool] | Strictness = True,
        arithmetic: str | None = None,
    ) -> None:
        # TPUClusterResolver's own __init__ looks for a TPU in Google's cloud.
        self.accelerator = tpu if isinstance(tpu, Accelerator) else accelerator(tpu)
        self.strictness = Strictness.of(strict)
        self.arithmetic = arithmetic_of(arithmetic)
        self.devices: VirtualDevices = virtual_devices(self.accelerator)
        self.task_type = "worker"
        self.task_id = 0
        self.rpc_layer = None
        self._tpu = "local"
        self._tpu_topology = None

    def __repr__(self) -> str:
        """Return a description without the address, which changes from run to run."""
        return f"<resolver of a virtual TPU {self.accelerator.name}>"

    @staticmethod
    def connect(
        tpu: str | int | Accelerator | None = None,
        zone: str | None = None,
        project: str | None = None,
    ) -> VirtualTPUClusterResolver:
        """Return the resolver of a virtual TPU, without connecting to anything."""
        del zone, project
        return VirtualTPUClusterResolver(DEFAULT_TPU if tpu is None else tpu)

    @property
    def environment(self) -> str:
        """An empty string, because this is not Google's environment."""
        return ""

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return an empty string: the cores are in this process."""
        del task_type, task_id, rpc_layer
        return ""

    def get_master(self) -> str:
        """Return the address of the first worker; empty if the cores are in this process."""
        return self.master()

    def get_job_name(self) -> str:
        """Return the job that the devices belong to."""
        return "localhost"

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Return an empty cluster, because there is nothing to connect to."""
        return tf.train.ClusterSpec({})

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Return the number of cores of each host."""
        del task_type, task_id, config_proto
        return {"TPU": self.accelerator.devices_per_host}

    def get_tpu_system_metadata(self) -> Any:
        """Return the TPU system as `TPUStrategy` reads it."""
        tpu = self.accelerator
        return TPUSystemMetadata(
            num_cores=tpu.num_devices,
            num_hosts=tpu.num_hosts,
            num_of_cores_per_host=tpu.devices_per_host,
            topology=virtual_topology(tpu),
            devices=self._devices(),
        )

    def _devices(self) -> tuple[Any, ...]:
        """Return the TPU's cores as a session lists them."""
        job = self.get_job_name()
        return tuple(
            DeviceAttributes(f"/job:{job}/replica:0/task:{host}/device:TPU:{ordinal}", "TPU", 0, 0)
            for host in range(self.accelerator.num_hosts)
            for ordinal in range(self.accelerator.devices_per_host)
        )

    def __enter__(self) -> VirtualTPUClusterResolver:
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing, because there is nothing to release."""
