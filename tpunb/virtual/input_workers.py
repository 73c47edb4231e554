"""The hosts' input pipelines, as the strategy makes them."""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import TPUExtended
from tpunb.virtual.devices import VirtualDevices
from tpunb.virtual.input_pipelines import without_tuning


class InputWorkers(TPUExtended):  # type: ignore[misc]
    """`TPUExtended` with input pipelines for virtual cores and hosts."""

    def _assign_input_workers(self, devices: VirtualDevices) -> None:
        """One input pipeline for each host, feeding the first core of its replicas."""
        host_of = {
            core: host
            for host, cores in zip(devices.hosts, devices.cores, strict=True)
            for core in cores
        }
        fed: collections.OrderedDict[str, list[str]] = collections.OrderedDict()
        for core in self._tpu_devices[:, 0]:
            fed.setdefault(host_of[core], []).append(core)
        self._device_input_worker_devices = fed
        self._host_input_worker_devices = collections.OrderedDict(
            (host, [host] * len(cores)) for host, cores in fed.items()
        )

    def _get_input_workers(self, options: Any) -> Any:
        workers = super()._get_input_workers(options)
        return type(workers)(
            tuple((self._options.place_of(host), fed) for host, fed in workers._worker_device_pairs)
        )

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        return super()._experimental_distribute_dataset(without_tuning(dataset), options)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        def untuned(context: Any) -> Any:
            return without_tuning(dataset_fn(context))

        return super()._distribute_datasets_from_function(untuned, options)

    def _make_dataset_iterator(self, dataset: Any) -> Any:
        # TensorFlow 1's: closing a session waits for the tuning of each of its iterators.
        return super()._make_dataset_iterator(without_tuning(dataset))

    def _make_input_fn_iterator(
        self,
        input_fn: Any,
        replication_mode: Any = tf.distribute.InputReplicationMode.PER_WORKER,
    ) -> Any:
        def untuned(context: Any) -> Any:
            return without_tuning(input_fn(context))

        return super()._make_input_fn_iterator(untuned, replication_mode)
