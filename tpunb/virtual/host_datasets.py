"""Datasets of several hosts in one process: cloned for each, or read once for all.

TensorFlow copies a distributed dataset for each worker. Workers that are processes shuffle their
copies alike, by the seed, and divide among them what comes out. In one process the copies share
a generator of seeds: each host would shuffle in its own way, and read some of the data that another
reads too, and some not at all.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import (
    IN_MEMORY_DATASETS,
    FuncGraph,
    LegacyRebatchDataset,
    dataset_distribution,
    dataset_readers,
    dtypes,
    ops,
)
from tpunb.virtual.devices import is_elsewhere
from tpunb.virtual.patch.patch_tools import Replaced

_STATE = ("SeedGenerator", "MemoryCache")


def _replicated(replicate: Any, dataset: Any, devices: Sequence[str]) -> Mapping[str, Any]:
    here = tf.executing_eagerly() and not any(map(is_elsewhere, devices))
    if not here or len(devices) == 1 or not isinstance(dataset, tf.data.Dataset):
        return replicate(dataset, devices)  # type: ignore[no-any-return]
    return _Clones(dataset, devices)


CLONED_FOR_EACH_HOST = Replaced(dataset_distribution, "replicate", _replicated)
"""Inside, each of several hosts in this process gets a dataset that depends on no other's.

For one worker, and for workers that are processes, TensorFlow does what it did.
"""


class _Clones(Mapping[str, Any]):
    """The copies of a dataset, by their devices: hosts on one device get theirs one by one.

    Args:
        dataset: The dataset.
        devices: The device of each copy.
    """

    def __init__(self, dataset: tf.data.Dataset, devices: Sequence[str]) -> None:
        with ops.colocate_with(dataset._variant_tensor):
            # For workers elsewhere TensorFlow strips devices, and spoils that of a py_function.
            graph = dataset._apply_debug_options()._as_serialized_graph(
                external_state_policy=tf.data.experimental.ExternalStatePolicy.WARN,
            )
        definition = tf.compat.v1.GraphDef.FromString(graph.numpy())
        handles = _handles_of_state(definition)
        names = [handle.name for handle in handles]
        self._left: dict[str, list[Any]] = defaultdict(list)
        for number, device in enumerate(devices):
            if handles:
                for handle, name in zip(handles, names, strict=True):
                    handle.name = f"{name}/host_{number}"
                graph = tf.constant(definition.SerializeToString())
            clone = dataset_distribution._RemoteDataset(graph, device, dataset.element_spec)
            self._left[device].append(clone)

    def __getitem__(self, device: str) -> Any:
        return self._left[device].pop(0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._left)

    def __len__(self) -> int:
        return len(self._left)


def _handles_of_state(definition: Any) -> list[Any]:
    """The handles of what a dataset keeps from one iterator to the next.

    A dataset that does not find it by its name makes its own, a generator of seeds from its
    seeds: so do remote workers'.
    """
    return [
        handle
        for node in definition.node
        if node.op == "Const" and node.attr["dtype"].type == dtypes.resource.as_datatype_enum
        for handle in node.attr["value"].tensor.resource_handle_val
        if any(kind in handle.maybe_type_name for kind in _STATE)
    ]


_BY_BATCHES = {tf.data.experimental.AutoShardPolicy.AUTO, tf.data.experimental.AutoShardPolicy.DATA}
"""How hosts divide a dataset that has no files."""
_READER = re.compile("Record|TextLine|SSTable")
"""The operations by which TensorFlow finds out that a dataset is made of files."""


def can_be_read_once(dataset: Any) -> bool:
    """Whether hosts divide a dataset among them by its batches, and not by its files.

    Args:
        dataset: What a strategy is to distribute.
    """
    return (
        tf.executing_eagerly()
        and isinstance(dataset, tf.data.Dataset)
        and _are_batches(dataset)
        and dataset.options().experimental_distribute.auto_shard_policy in _BY_BATCHES
        and _is_in_memory(dataset)
    )


def divides_batches(dataset: tf.data.Dataset) -> bool | None:
    """Whether hosts divide each batch of a dataset among them, not its files.

    TensorFlow then cuts every batch into as many parts of one size as there can be; else it
    counts batches of full size from the first example on, across those that are not full.

    Args:
        dataset: What a strategy distributes.

    Returns:
        Whether they do; None if that is not known.
    """
    policies = tf.data.experimental.AutoShardPolicy
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy is not policies.AUTO:
        return bool(policy is policies.DATA)
    if _is_in_memory(dataset):
        return True
    return False if _has_files(dataset) else None


def _has_files(dataset: Any) -> bool:
    """Whether it is seen that a dataset, or a function that it calls, reads files."""
    return (
        type(dataset).__module__ == dataset_readers.__name__
        or any(_has_readers(function.function.graph) for function in dataset._functions())
        or any(map(_has_files, dataset._inputs()))
    )


def _has_readers(graph: FuncGraph) -> bool:
    if any(_READER.search(operation.type) for operation in graph.get_operations()):
        return True
    return any(one is not None and _has_readers(one) for one in _called(graph))


def _called(graph: FuncGraph) -> list[FuncGraph | None]:
    """The functions that a function calls; None for what is not known."""
    return [getattr(one, "_cached_graph", None) for one in graph._functions.values()]


def _are_batches(dataset: tf.data.Dataset) -> bool:
    specs = tf.nest.flatten(dataset.element_spec)
    return bool(specs) and all(type(one) is tf.TensorSpec and one.shape.rank for one in specs)


def _is_in_memory(dataset: Any) -> bool:
    """Whether nothing in a dataset, or in the functions that it calls, reads files."""
    if type(dataset).__module__ == dataset_readers.__name__:
        return False
    if any(_reads(function.function.graph) for function in dataset._functions()):
        return False
    inputs = dataset._inputs()
    return all(map(_is_in_memory, inputs)) if inputs else isinstance(dataset, IN_MEMORY_DATASETS)


def _reads(graph: FuncGraph) -> bool:
    """Whether a function reads files, or calls one of which that is not known."""
    if any(_READER.search(operation.type) for operation in graph.get_operations()):
        return True
    return any(one is None or _reads(one) for one in _called(graph))


def cut_for(dataset: tf.data.Dataset, replicas: int) -> tf.data.Dataset:
    """A dataset of each batch's parts for the replicas, as hosts cut it who share by batches."""
    cut = LegacyRebatchDataset(dataset, replicas)
    return cut.prefetch(replicas)


def replicas_of_parts(hosts: int, each: int) -> list[int]:
    """The replica to which each part of a batch goes: of W hosts each takes every W-th part.

    Args:
        hosts: How many hosts there are.
        each: How many replicas each of them has.
    """
    return [host * each + place for place in range(each) for host in range(hosts)]
