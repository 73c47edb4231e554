"""A dataset for each host of a virtual Pod in one process, as each worker of a Pod has its own.

TensorFlow copies a distributed dataset for each worker. Workers that are processes shuffle their
copies alike, by the seed, and divide among them what comes out. In one process the copies share
a generator of seeds: each host would shuffle in its own way, and read some of the data that another
reads too, and some not at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import dataset_distribution, dtypes, ops
from tpunb.virtual.devices import is_elsewhere

__all__ = ["clone_for_each_host"]

_replicate = dataset_distribution.replicate
_STATE = ("SeedGenerator", "MemoryCache")


def clone_for_each_host() -> None:
    """Gives each of several hosts in this process a dataset that depends on no other's.

    The name of what copies datasets is replaced, once. For one worker, and for workers that are
    processes, it does what it did.
    """
    dataset_distribution.replicate = _replicated


def _replicated(dataset: Any, devices: Sequence[str]) -> Mapping[str, Any]:
    here = tf.executing_eagerly() and not any(map(is_elsewhere, devices))
    if not here or len(devices) == 1 or not isinstance(dataset, tf.data.Dataset):
        return _replicate(dataset, devices)  # type: ignore[no-any-return]
    return _Clones(dataset, devices)


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
