"""A dataset that is read once for all hosts in this process, which get the parts of a Pod's hosts.

Each host of a Pod reads the whole of a dataset that is in memory, cuts its batches for all
replicas and keeps each W-th part, of W hosts. In one process that is W times the work for the
same parts. What is read from files stays with the hosts: there each reads files of its own.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import (
    IN_MEMORY_DATASETS,
    FuncGraph,
    LegacyRebatchDataset,
    dataset_readers,
)

__all__ = ["can_be_read_once", "cut_for", "divides_batches", "replicas_of_parts"]

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
