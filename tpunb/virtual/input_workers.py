"""The hosts' input pipelines as the strategy makes them, and the distributed datasets over them."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import TPUExtended, input_lib, input_lib_v1, input_util
from tpunb.virtual.devices import VirtualDevices, is_elsewhere
from tpunb.virtual.fit_notes import data_arrives
from tpunb.virtual.host_datasets import (
    CLONED_FOR_EACH_HOST,
    can_be_read_once,
    cut_for,
    replicas_of_parts,
)
from tpunb.virtual.iterators import UNTUNED, SettledIterator, without_tuning
from tpunb.virtual.whole_batches import iterator_of_whole_batches


def with_settled_types(dataset: Any) -> Any:
    """A distributed dataset with iterators for virtual cores.

    Args:
        dataset: What a strategy has distributed, which is changed.
    """
    settled = _SETTLED.get(type(dataset))
    if settled is not None:
        dataset.__class__ = settled
    return dataset


class _Dataset(input_lib.DistributedDataset):  # type: ignore[misc]
    def __iter__(self) -> Any:
        if not _can_be_read(self):
            return super().__iter__()  # which says why
        whole = iterator_of_whole_batches(self)
        return SettledIterator.over(self, self._cloned_datasets) if whole is None else whole

    @property
    def _type_spec(self) -> Any:
        spec = super()._type_spec
        spec.__class__ = _DatasetSpec
        return spec


class _DatasetSpec(input_lib.DistributedDatasetSpec):  # type: ignore[misc]
    @property
    def value_type(self) -> type:
        return _Dataset

    def _from_components(self, components: Any) -> Any:
        return with_settled_types(super()._from_components(components))


class _DatasetsFromFunction(input_lib.DistributedDatasetsFromFunction):  # type: ignore[misc]
    def __iter__(self) -> Any:
        if not _can_be_read(self):
            return super().__iter__()  # which says why
        return SettledIterator.over(self, self._datasets)

    @property
    def _type_spec(self) -> Any:
        spec = super()._type_spec
        spec.__class__ = _DatasetsFromFunctionSpec
        return spec


class _DatasetsFromFunctionSpec(
    input_lib.DistributedDatasetsFromFunctionSpec  # type: ignore[misc]
):
    @property
    def value_type(self) -> type:
        return _DatasetsFromFunction

    def _from_components(self, components: Any) -> Any:
        return with_settled_types(super()._from_components(components))


def _can_be_read(dataset: Any) -> bool:
    return bool(dataset._built and (tf.executing_eagerly() or tf.inside_function()))


class _DatasetV1(input_lib_v1.DistributedDatasetV1):  # type: ignore[misc]
    def _get_iterator(self) -> Any:
        with UNTUNED:
            return super()._get_iterator()


class _DatasetsFromFunctionV1(
    input_lib_v1.DistributedDatasetsFromFunctionV1  # type: ignore[misc]
):
    def _get_iterator(self) -> Any:
        with UNTUNED:
            return super()._get_iterator()


_SETTLED = {
    input_lib.DistributedDataset: _Dataset,
    input_lib.DistributedDatasetsFromFunction: _DatasetsFromFunction,
    input_lib_v1.DistributedDatasetV1: _DatasetV1,
    input_lib_v1.DistributedDatasetsFromFunctionV1: _DatasetsFromFunctionV1,
}


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
        untuned = without_tuning(dataset)
        if options is None and self._hosts_are_in_one_place() and can_be_read_once(untuned):
            distributed = self._distribute_once(untuned)
        else:
            with CLONED_FOR_EACH_HOST:
                distributed = super()._experimental_distribute_dataset(untuned, options)
        data_arrives(self._num_replicas_in_sync, dataset, distributed)
        return with_settled_types(distributed)

    def _hosts_are_in_one_place(self) -> bool:
        """Whether there are several hosts, alike, which are one device of this process."""
        fed = self._device_input_worker_devices
        places = {self._options.place_of(host) for host in fed}
        alike = len(set(map(len, fed.values()))) == 1
        return len(fed) > 1 and alike and len(places) == 1 and not any(map(is_elsewhere, places))

    def _distribute_once(self, dataset: tf.data.Dataset) -> Any:
        """Distributes a dataset as the hosts would, by one input pipeline for all."""
        fed = self._device_input_worker_devices
        cores = list(itertools.chain.from_iterable(fed.values()))
        order = replicas_of_parts(len(fed), len(cores) // len(fed))
        place = self._options.place_of(next(iter(fed)))
        workers = super()._get_input_workers(None)
        return input_util.get_distributed_dataset(
            cut_for(dataset, len(cores)),
            type(workers)(((place, [cores[replica] for replica in order]),)),
            self._container_strategy(),
            replica_order=sorted(range(len(order)), key=order.__getitem__),
        )

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        def untuned(context: Any) -> Any:
            return without_tuning(dataset_fn(context))

        return with_settled_types(super()._distribute_datasets_from_function(untuned, options))

    def _make_dataset_iterator(self, dataset: Any) -> Any:
        # TensorFlow 1's: closing a session waits for the tuning of each of its iterators.
        with CLONED_FOR_EACH_HOST, UNTUNED:
            return super()._make_dataset_iterator(without_tuning(dataset))

    def _make_input_fn_iterator(
        self,
        input_fn: Any,
        replication_mode: Any = tf.distribute.InputReplicationMode.PER_WORKER,
    ) -> Any:
        def untuned(context: Any) -> Any:
            return without_tuning(input_fn(context))

        with UNTUNED:
            return super()._make_input_fn_iterator(untuned, replication_mode)
