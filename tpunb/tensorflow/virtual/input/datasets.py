"""Datasets on their way to the replicas: which host reads them, and how batches are cut.

TensorFlow cuts each batch of a distributed dataset into as many parts as there are replicas, and
copies the dataset for each worker. A TPU's workers are processes: they shuffle their copies alike,
by the seed, and divide the elements among them. In one process the copies share a generator of
seeds: each host would shuffle in its own way. Some data would be read by several hosts, and some by
none. So the virtual TPU's hosts get copies that share nothing, or the data is read once for all.

Only this module uses `tf.data`'s private attributes. `tests/virtual/test_tensorflow_adapters.py`
lists them and reports if a release of TensorFlow no longer has them.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tpunb._util.patching import Replaced
from tpunb.tensorflow.virtual.graph.tensorflow_graphs import body_of, functions_of
from tpunb.tensorflow.virtual.private_names import (
    IN_MEMORY_DATASETS,
    AutoShardDataset,
    FuncGraph,
    LegacyRebatchDataset,
    RebatchDataset,
    dataset_distribution,
    dataset_ops,
    dataset_readers,
    dtypes,
    ops,
    tensor_util,
)

_STATE = ("SeedGenerator", "MemoryCache")
_BY_BATCHES = {tf.data.experimental.AutoShardPolicy.AUTO, tf.data.experimental.AutoShardPolicy.DATA}
"""The policies by which hosts divide a dataset that has no files."""
_READER = re.compile("Record|TextLine|SSTable")
"""The operations by which TensorFlow finds out that a dataset is made of files."""
_WRAPPERS = (dataset_ops._OptionsDataset, dataset_ops.PrefetchDataset, AutoShardDataset)
"""Datasets that neither change nor drop elements if there is a single input pipeline."""
_SAME_ELEMENTS = {"_CacheDataset", "CacheDataset", "_ShuffleDataset", "ShuffleDataset"}
_SAME_ELEMENTS |= {"_RepeatDataset", "RepeatDataset"}


def without_tuning(dataset: Any) -> Any:
    """Return a dataset that does not tune itself, unless its options ask for it.

    tf.data tunes each iterator in a thread of its own, which sleeps for growing times, at last for
    a minute. Ending an iterator waits for that thread, which can miss the call to end: in
    TensorFlow up to 2.21, `CancellationManager` wakes the sleeping `Model::OptimizeLoop`
    (tensorflow/core/framework/model.cc) before `IsCancelled` returns true. A TPU's input ends once
    in a long run. In a notebook it ends with every short epoch: 12 epochs of `fit` on 8 virtual
    cores waited for 3 minutes. Tuning gains nothing here either, as host and cores share one
    processor.

    Args:
        dataset: A `tf.data.Dataset`; any other value is returned as it is.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return dataset
    with warnings.catch_warnings():
        # In a graph, TensorFlow up to 2.21 warns that options that were read from a file are not
        # known.
        warnings.simplefilter("ignore", UserWarning)
        if dataset.options().autotune.enabled is not None:
            return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def copied(element: Any) -> Any:
    """Return an element in memory of its own.

    Batches from Python functions use the memory of NumPy arrays. TensorFlow forgets that when it
    slices the batches for the replicas. A replica that uses its slice last writes its results
    there, so training changed the arrays that it was fed.
    """
    return tf.nest.map_structure(_copy, element, expand_composites=True)


def _copy(value: Any) -> Any:
    if value is None:
        return None
    if value.dtype in {tf.variant, tf.resource}:
        return tf.identity(value)
    return tf.raw_ops.DeepCopy(x=value)


def mapped(dataset: tf.data.Dataset, function: Any, element_spec: Any, *others: Any) -> Any:
    """Return a dataset mapped by a concrete function.

    In contrast, `Dataset.map` traces a function for each iterator, and Keras makes two iterators an
    epoch.

    Args:
        dataset: The dataset.
        function: Takes the tensors of an element, and `others`; returns a flat list.
        element_spec: The type of the function's result.
        others: Further arguments, which are tensors.
    """
    specs = tf.nest.flatten(element_spec)
    variant = tf.raw_ops.MapDataset(
        input_dataset=dataset._variant_tensor,
        other_arguments=list(others),
        f=function,
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
        use_inter_op_parallelism=False,
        preserve_cardinality=True,
    )
    result = tf.data.experimental.from_variant(variant, element_spec)
    # The result must keep alive everything that the dataset calls, such as a Python generator.
    result._source = dataset
    return result


# How batches are cut.


class Cut(NamedTuple):
    """The way a dataset cuts batches.

    Attributes:
        batches: The batches.
        sizes: The sizes of a full batch's parts. Zeros mean as many parts of one size as possible,
            and a remainder, by each component's own rows.
        usual: The size of every part of most batches; None if the parts differ or the size is not
            known.
    """

    batches: tf.data.Dataset
    sizes: Sequence[int]
    usual: int | None


def cut_of(dataset: Any, count: int) -> Cut | None:
    """Return how a dataset cuts batches into parts; None if it does not.

    Either no size of a part is known, or all are, and are a part of their batch's known size.
    """
    cut, parts = _cut(dataset, count), tf.nest.flatten(dataset.element_spec)
    if cut is None or not all(map(are_rows, parts)):
        return None
    if all(part.shape[0] is None for part in parts):
        return cut
    batches = tf.nest.flatten(cut.batches.element_spec)
    pairs = zip(parts, batches, strict=True)
    known = all(part.shape.is_fully_defined() for part in parts)
    even = known and all(batch.shape[0] == count * part.shape[0] for part, batch in pairs)
    return cut._replace(sizes=[0] * count) if even else None


def _cut(dataset: Any, count: int) -> Cut | None:
    is_divided = False
    while type(dataset) in _WRAPPERS:
        is_divided |= type(dataset) is AutoShardDataset
        dataset = dataset._input_dataset
    if type(dataset) not in {LegacyRebatchDataset, RebatchDataset}:
        return None
    batches = dataset._input_dataset
    specs = tf.nest.flatten(batches.element_spec)
    if not all(map(are_rows, specs)):
        return None
    full = _sizes_of_full(dataset, count)
    usual = full[0] if full and len(set(full)) == 1 else None
    if usual and all(spec.shape[0] == count * usual for spec in specs):
        return Cut(batches, full, usual)
    cuts_each: bool | None = type(dataset) is LegacyRebatchDataset
    if not cuts_each and is_divided:
        cuts_each = _divides_batches(batches)
    if cuts_each:
        return Cut(batches, [0] * count, usual)
    return Cut(batches, full, usual) if full and cuts_each is not None else None


def _sizes_of_full(dataset: Any, count: int) -> Sequence[int]:
    """Return the sizes of a full batch's parts; an empty list if the cutting dataset has none."""
    if type(dataset) is RebatchDataset:
        sizes = tensor_util.constant_value(dataset._batch_sizes)
        return [int(size) for size in sizes] if sizes is not None and len(sizes) == count else []
    # The older dataset cuts a batch of any size into as many parts as there are replicas.
    size = tf.nest.flatten(dataset.element_spec)[0].shape[0]
    if size is not None:
        return [int(size)] * count
    rows = _rows_of_slices(dataset)
    return [rows // count] * count if rows and rows % count == 0 else []


def _rows_of_slices(dataset: Any) -> int | None:
    """Return the rows that a dataset's function slices first, as Keras slices batches."""
    for function in dataset._functions():
        for operation in function.function.graph.get_operations():
            if operation.type == "TensorSliceDataset":
                shape = tf.TensorShape(operation.get_attr("output_shapes")[0])
                return shape[0] if shape.rank else None
    return next(filter(None, map(_rows_of_slices, dataset._inputs())), None)


def are_rows(spec: Any) -> bool:
    """Return whether a component of an element is a tensor that can be cut along axis 0."""
    is_dense = type(spec) is tf.TensorSpec and spec.dtype not in {tf.variant, tf.resource}
    return is_dense and bool(spec.shape.rank)


class BatchSizes(NamedTuple):
    """The sizes of a full batch and of a smaller last batch, and all examples; None if unknown."""

    full: int | None = None
    last: int | None = None
    examples: int | None = None


def sizes_of_batching(dataset: Any) -> BatchSizes:
    """Return the sizes of the batches that a dataset itself makes of single elements."""
    if not hasattr(dataset, "_drop_remainder") or not hasattr(dataset, "_batch_size"):
        return BatchSizes()
    full, drops = map(tensor_util.constant_value, (dataset._batch_size, dataset._drop_remainder))
    examples = int(dataset._input_dataset.cardinality()) if tf.executing_eagerly() else -1
    if full is None or drops is None or examples < 0 or drops:
        return BatchSizes(None if full is None else int(full))
    return BatchSizes(int(full), examples % int(full), examples)


# The parts of a dataset.


def keeps_all_elements(dataset: Any) -> bool:
    """Return whether a dataset's elements are all elements of its only input."""
    return type(dataset) in _WRAPPERS or type(dataset).__name__ in _SAME_ELEMENTS


def keeps_elements(dataset: Any) -> bool:
    """Return whether a dataset's elements are its only input's, not necessarily all or in order."""
    return isinstance(dataset, (*_WRAPPERS, dataset_ops.UnaryUnchangedStructureDataset))


def inputs_of(dataset: Any) -> Sequence[Any]:
    """Return the datasets that a dataset is made of."""
    return dataset._inputs()  # type: ignore[no-any-return]


def rows_of_batches(dataset: Any) -> int | None:
    """Return the size of the full batches that a dataset makes; None if it makes no batches."""
    batch_size = getattr(dataset, "_batch_size", None)
    rows = tensor_util.constant_value(dataset._batch_sizes if is_recut(dataset) else batch_size)
    return None if rows is None or not rows.size else int(rows.max())


def is_recut(dataset: Any) -> bool:
    """Return whether a dataset makes batches of batches."""
    return isinstance(dataset, RebatchDataset)


def mapped_by(dataset: Any) -> FuncGraph | None:
    """Return the graph of the function that maps each element; None if there is none."""
    if not type(dataset).__name__.endswith("MapDataset") or len(dataset._functions()) != 1:
        return None
    return dataset._functions()[0].function.graph


def serialized(dataset: tf.data.Dataset) -> Any:
    """Return a dataset as a `GraphDef` that shares no state with it."""
    graph = dataset._as_serialized_graph(
        external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE
    )
    definition = tf.compat.v1.GraphDef.FromString(graph.numpy())
    for handle in _handles_of_state(definition):
        handle.name = f"{handle.name}/copy_{ops.uid()}"
    return definition


def deserialized(definition: Any, element_spec: Any) -> tf.data.Dataset:
    """Return a dataset that was written as a `GraphDef`."""
    with tf.device("CPU:0"):
        graph = tf.constant(definition.SerializeToString())
        return dataset_distribution._RemoteDataset(graph, "CPU:0", element_spec)


# How hosts share a dataset.


def can_be_read_once(dataset: Any) -> bool:
    """Return whether hosts divide a dataset by its batches, and not by its files.

    Args:
        dataset: The dataset that a strategy will distribute.
    """
    if not tf.executing_eagerly() or not isinstance(dataset, tf.data.Dataset):
        return False
    specs = tf.nest.flatten(dataset.element_spec)
    return (
        bool(specs)
        and all(type(spec) is tf.TensorSpec and spec.shape.rank for spec in specs)
        and dataset.options().experimental_distribute.auto_shard_policy in _BY_BATCHES
        and _reads_files(dataset) is False
    )


def _divides_batches(dataset: tf.data.Dataset) -> bool | None:
    """Return whether hosts divide each batch of a dataset, not its files.

    TensorFlow then cuts every batch into as many parts of one size as possible. Otherwise it counts
    batches of full size from the first example on, across batches that are not full.

    Returns:
        Whether they do; None if that is not known.
    """
    policies = tf.data.experimental.AutoShardPolicy
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy is not policies.AUTO:
        return bool(policy is policies.DATA)
    reads = _reads_files(dataset)
    return None if reads is None else not reads


def _reads_files(dataset: Any) -> bool | None:
    """Return whether a dataset, or a function that it calls, reads files; None if unknown."""
    if type(dataset).__module__ == dataset_readers.__name__:
        return True
    answers = [_has_readers(function.function.graph) for function in dataset._functions()]
    inputs = dataset._inputs()
    answers += map(_reads_files, inputs)
    if not inputs and not isinstance(dataset, IN_MEMORY_DATASETS):
        answers.append(None)
    return _any(answers)


def _has_readers(graph: FuncGraph) -> bool | None:
    if any(_READER.search(operation.type) for operation in graph.get_operations()):
        return True
    called = (body_of(graph, name) for name in functions_of(graph))
    return _any(None if body is None else _has_readers(body) for body in called)


def _any(answers: Iterable[bool | None]) -> bool | None:
    """Return whether any answer is True; None if that depends on an unknown answer."""
    distinct = set(answers)
    return True if True in distinct else None if None in distinct else False


def cut_for(dataset: tf.data.Dataset, replicas: int) -> tf.data.Dataset:
    """Return a dataset of each batch's parts, cut for replicas as hosts that share batches do."""
    return LegacyRebatchDataset(dataset, replicas).prefetch(replicas)


def replicas_of_parts(hosts: int, each: int) -> list[int]:
    """Return the replica that gets each part of a batch: each of W hosts takes every W-th part.

    Args:
        hosts: The number of hosts.
        each: The number of replicas of each host.
    """
    return [host * each + index for index in range(each) for host in range(hosts)]


def _replicated(replicate: Any, dataset: Any, devices: Sequence[str]) -> Mapping[str, Any]:
    alone = len(devices) == 1
    if alone or not tf.executing_eagerly() or not isinstance(dataset, tf.data.Dataset):
        return replicate(dataset, devices)  # type: ignore[no-any-return]
    return _Clones(dataset, devices)


CLONED_FOR_EACH_HOST = Replaced(dataset_distribution, "replicate", _replicated)
"""Inside this context, each of several hosts gets an independent dataset."""


class _Clones(Mapping[str, Any]):
    """The copies of a dataset, by their devices: each host on a device takes the next copy."""

    def __init__(self, dataset: tf.data.Dataset, devices: Sequence[str]) -> None:
        with ops.colocate_with(dataset._variant_tensor):
            # TensorFlow's own `replicate` sets `strip_device_assignment`, up to TensorFlow 2.21: it
            # removes devices for workers elsewhere, and makes a py_function's device wrong.
            graph = dataset._apply_debug_options()._as_serialized_graph(
                external_state_policy=tf.data.experimental.ExternalStatePolicy.WARN,
            )
        definition = tf.compat.v1.GraphDef.FromString(graph.numpy())
        handles = _handles_of_state(definition)
        names = [handle.name for handle in handles]
        self._remaining: dict[str, list[Any]] = defaultdict(list)
        for number, device in enumerate(devices):
            if handles:
                for handle, name in zip(handles, names, strict=True):
                    handle.name = f"{name}/host_{number}"
                graph = tf.constant(definition.SerializeToString())
            clone = dataset_distribution._RemoteDataset(graph, device, dataset.element_spec)
            self._remaining[device].append(clone)

    def __getitem__(self, device: str) -> Any:
        return self._remaining[device].pop(0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._remaining)

    def __len__(self) -> int:
        return len(self._remaining)


def _handles_of_state(definition: Any) -> list[Any]:
    """Return the handles of the state that a dataset keeps from one iterator to the next.

    A dataset that does not find its state by name makes its own. A generator of seeds is made from
    the dataset's seeds, as on remote workers.
    """
    return [
        handle
        for node in definition.node
        if node.op == "Const" and node.attr["dtype"].type == dtypes.resource.as_datatype_enum
        for handle in node.attr["value"].tensor.resource_handle_val
        if any(name in handle.maybe_type_name for name in _STATE)
    ]
