"""The `TPUClusterResolver` in force while TensorFlow's names find a virtual TPU."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from tpunb.errors import VirtualDevicesError
from tpunb.tensorflow.virtual import private_names as private
from tpunb.tensorflow.virtual.patch.device_names import TPUNames
from tpunb.tensorflow.virtual.resolver import VirtualTPUClusterResolver
from tpunb.virtual.installation import ADDRESS, current, set_failure

_LOCAL = "local"


class InstalledTPUClusterResolver(VirtualTPUClusterResolver):
    """A resolver that finds the virtual TPU under any name that a notebook gives it.

    `tpu="local"` is a TPU of this machine, as on a TPU VM: it has no address. Any other name is a
    TPU at an address, as formerly in Colab and Kaggle.
    """

    def __init__(
        self,
        tpu: Any = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        coordinator_name: str | None = None,
        coordinator_address: str | None = None,
        credentials: Any = "default",
        service: Any = None,
        discovery_url: str | None = None,
    ) -> None:
        del zone, project, credentials, service, discovery_url
        installation = current()
        if installation is None:
            raise RuntimeError("tpunb.virtual.install has been undone.")
        try:
            super().__init__(
                installation.accelerator,
                strict=installation.strictness,
                arithmetic=installation.arithmetic,
            )
        except VirtualDevicesError as error:
            set_failure(error)
            raise
        self.names: TPUNames = installation.names
        self.task_type = job_name
        self._coordinator = (coordinator_name, coordinator_address)
        self._tpu = _called(tpu)
        self._addresses = _addresses(self._tpu, self.accelerator.num_hosts)
        installation.addresses.update(self._addresses)

    @property
    def _local(self) -> bool:
        return self._tpu == _LOCAL

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return a worker's address, by default the first's; empty for a TPU of this machine."""
        del task_type, rpc_layer
        return "" if self._local else f"grpc://{self._addresses[task_id or 0]}"

    def get_job_name(self) -> str:
        """Return the job that the devices belong to."""
        return self.task_type

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Return the workers' addresses; none for a TPU of this machine."""
        if self._local:
            return tf.train.ClusterSpec({})
        cluster = {self.task_type: list(self._addresses)}
        name, address = self._coordinator
        if name and address:
            cluster[name] = [address]
        return tf.train.ClusterSpec(cluster)

    def get_tpu_system_metadata(self) -> Any:
        """Return the TPU system, and log TensorFlow's own lines about it."""
        metadata = super().get_tpu_system_metadata()
        private.logging.info("Found TPU system:")
        private.logging.info("*** Num TPU Cores: %d", metadata.num_cores)
        private.logging.info("*** Num TPU Workers: %d", metadata.num_hosts)
        private.logging.info("*** Num TPU Cores Per Worker: %d", metadata.num_of_cores_per_host)
        for device in metadata.devices:
            private.logging.info("*** Available Device: %s", device)
        return metadata

    def _devices(self) -> tuple[Any, ...]:
        return tuple(
            private.DeviceAttributes(name, device_type, 0, 0)
            for name, device_type in sorted(self.names.attributes(), key=_order)
        )

    def connected(self) -> None:
        """Name the TPU's devices as they are named after connecting to the TPU."""
        self.names.job = "localhost" if self._local else "worker"


def _order(device: tuple[str, str]) -> tuple[Any, ...]:
    """Return a sort key for TensorFlow's order of logged devices: cores before their system."""
    name, device_type = device
    spec = tf.DeviceSpec.from_string(name)
    return spec.job, spec.replica, spec.task, device_type, spec.device_index


def _called(tpu: Any) -> str:
    """Return the TPU's name or address from the notebook, or else from the environment."""
    if isinstance(tpu, (list, tuple)) and tpu:
        tpu = tpu[0]
    if isinstance(tpu, bytes):
        tpu = tpu.decode()
    if tpu:
        return str(tpu)
    named, address = os.environ.get("TPU_NAME"), os.environ.get("COLAB_TPU_ADDR")
    return named or f"grpc://{address or ADDRESS}"


def _addresses(tpu: str, hosts: int) -> list[str]:
    """Return an address for each host; the first is the notebook's own if it names an address."""
    if tpu == _LOCAL:
        return []
    addresses = tpu.rpartition("://")[2].split(",")
    first = addresses[0] if ":" in addresses[0] else ADDRESS
    network, _, port = ADDRESS.partition(":")
    stem, _, last = network.rpartition(".")
    return [first, *(f"{stem}.{int(last) + k}:{port}" for k in range(1, hosts))]
