"""Batches of unknown size: one iterator gives them whole, with the sizes of the replicas' parts.

TensorFlow cuts them in the input pipeline and asks for each replica's part whether there is one:
on many cores that takes longer than a small step. Here one operation cuts each component of a
batch, by its own rows, into the same parts, behind which it is still seen to be one.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tpunb.virtual._tensorflow import (
    AutoShardDataset,
    LegacyRebatchDataset,
    RebatchDataset,
    distribute_values,
    input_lib,
    iterator_ops,
    tensor_util,
)
from tpunb.virtual.devices import is_elsewhere
from tpunb.virtual.host_datasets import divides_batches
from tpunb.virtual.input_rounds import WRAPPERS, copied
from tpunb.virtual.iterators import SettledIterator, SettledIteratorSpec
from tpunb.virtual.replicate.batch_parts import BatchParts, chosen


def iterator_of_whole_batches(distributed: Any) -> Any | None:
    """An iterator over a distributed dataset that is cut into parts of unknown size.

    Args:
        distributed: A `DistributedDataset`.

    Returns:
        The iterator; None if TensorFlow's own is to be taken: what is distributed is not one
        batch after the other for the replicas of one process, or its sizes are known.
    """
    pairs = distributed._input_workers._worker_device_pairs
    if len(pairs) != 1 or len(pairs[0][1]) < 2 or distributed._options is not None:
        return None
    host, devices = pairs[0]
    if is_elsewhere(host):
        return None
    with tf.device(host):
        report = getattr(distributed, "when_empty", None)
        key = 0 if report is None else id(report)
        if report is not None:
            _reports[key] = report
        dataset = distributed._cloned_datasets[0]
        cut = parts_of(dataset, len(devices))
        if cut is None:
            return None
        iterator = iter(_whole_batches(cut, dataset.options(), key))
    made = WholeBatchIterator(
        distributed._input_workers,
        components=[iterator],
        element_spec=distributed._element_spec,
        strategy=distributed._strategy,
        cardinality=distributed._cardinality,
        enable_get_next_as_optional=False,  # there is a part for every replica
        options=distributed._options,
        replica_order=distributed._replica_order,
    )
    made.usual = cut.usual
    return made


_reports: weakref.WeakValueDictionary[int, Callable[[int], None]] = weakref.WeakValueDictionary()
"""Who is told how many examples a batch has, if some replica gets none of them."""


def _report(key: tf.Tensor, examples: tf.Tensor) -> None:
    report = _reports.get(int(key))
    if report is not None:
        report(int(examples))


class Cut(NamedTuple):
    """How a dataset cuts batches.

    Attributes:
        batches: The batches.
        sizes: The sizes of a full batch's parts; zeros for as many parts of one size as there
            can be, and the rest, which each component has by its own rows.
        usual: The size of every part of most batches; None if they differ or nothing tells it.
    """

    batches: tf.data.Dataset
    sizes: Sequence[int]
    usual: int | None


def parts_of(dataset: Any, count: int) -> Cut | None:
    """How a dataset cuts batches of unknown size into so many parts; None if it does not."""
    if not all(map(_is_cut, tf.nest.flatten(dataset.element_spec))):
        return None
    is_divided = False
    while type(dataset) in WRAPPERS:
        is_divided |= type(dataset) is AutoShardDataset
        dataset = dataset._input_dataset
    if type(dataset) not in {LegacyRebatchDataset, RebatchDataset}:
        return None
    batches = dataset._input_dataset
    if not all(map(_are_rows, tf.nest.flatten(batches.element_spec))):
        return None
    cuts_each: bool | None = type(dataset) is LegacyRebatchDataset
    if not cuts_each and is_divided:
        cuts_each = divides_batches(batches)
    if cuts_each is None:
        return None
    full = _sizes_of_full(dataset, count)
    usual = full[0] if full and len(set(full)) == 1 else None
    if cuts_each:
        return Cut(batches, [0] * count, usual)
    return Cut(batches, full, usual) if full else None


def _sizes_of_full(dataset: Any, count: int) -> Sequence[int]:
    """The sizes of a full batch's parts, as far as a dataset that cuts batches tells them."""
    if type(dataset) is RebatchDataset:
        sizes = tensor_util.constant_value(dataset._batch_sizes)
        return [int(size) for size in sizes] if sizes is not None and len(sizes) == count else []
    rows = _rows_of_slices(dataset)
    return [rows // count] * count if rows and rows % count == 0 else []


def _rows_of_slices(dataset: Any) -> int | None:
    """The rows of what a function in a dataset slices first, as Keras's slices batches."""
    for function in dataset._functions():
        for operation in function.function.graph.get_operations():
            if operation.type == "TensorSliceDataset":
                shape = tf.TensorShape(operation.get_attr("output_shapes")[0])
                return shape[0] if shape.rank else None
    return next(filter(None, map(_rows_of_slices, dataset._inputs())), None)


def _is_cut(spec: Any) -> bool:
    return _are_rows(spec) and spec.shape[0] is None


def _are_rows(spec: Any) -> bool:
    is_dense = type(spec) is tf.TensorSpec and spec.dtype not in {tf.variant, tf.resource}
    return is_dense and bool(spec.shape.rank)


def _whole_batches(cut: Cut, options: tf.data.Options, key: int) -> tf.data.Dataset:
    """Batches, each with the sizes of its components' parts, of shape [components, parts].

    Args:
        cut: How they are cut.
        options: Of the dataset that cuts them.
        key: Of the report on batches of which some part is empty; 0 for none.
    """
    sizes = cut.sizes
    batches = cut.batches.rebatch(sum(sizes)) if any(sizes) else cut.batches
    specs = tf.nest.flatten(batches.element_spec)
    types = tuple(one.dtype for one in specs)
    shapes = tuple(_of_any_size(one.shape) for one in specs)
    # Not Dataset.map, which traces a function for each iterator, and Keras makes two an epoch.
    variant = tf.raw_ops.MapDataset(
        input_dataset=batches._variant_tensor,
        other_arguments=[tf.constant(sizes, tf.int32), tf.constant(key, tf.int64)],
        f=_sizes_of_parts(types, shapes, len(sizes), reports=bool(key)),
        output_types=[*types, tf.int32],
        output_shapes=[*shapes, tf.TensorShape([len(specs), len(sizes)])],
        use_inter_op_parallelism=False,
        preserve_cardinality=True,
    )
    element = tf.nest.map_structure(_relaxed, batches.element_spec)
    pairs = tf.data.experimental.from_variant(variant, _with_sizes_spec(element, len(sizes)))
    pairs._source = batches  # what it calls, a Python generator for one, lives as long
    return pairs.with_options(options).prefetch(1)


def _of_any_size(shape: tf.TensorShape) -> tf.TensorShape:
    return tf.TensorShape([None, *shape[1:]])


def _relaxed(spec: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec(_of_any_size(spec.shape), spec.dtype)


def _with_sizes_spec(element: Any, count: int) -> tuple[Any, tf.TensorSpec]:
    return element, tf.TensorSpec([len(tf.nest.flatten(element)), count], tf.int32)


@functools.lru_cache(maxsize=64)
def _sizes_of_parts(
    types: Sequence[tf.DType], shapes: Sequence[tf.TensorShape], count: int, *, reports: bool
) -> Any:
    """The function that gives tensors and the sizes of the parts of their rows."""

    def sizes_of_parts(*arguments: Any) -> Any:
        *tensors, full, key = arguments
        rows = tf.stack([tf.shape(tensor)[:1] for tensor in tensors])
        # As TensorFlow cuts a batch of which it does not know how large one is.
        most = tf.where(tf.reduce_any(full > 0), full, (rows + count - 1) // count)
        before = tf.cumsum(most + tf.zeros_like(rows), axis=1, exclusive=True)
        sizes = tf.clip_by_value(rows - before, 0, most)
        if reports:
            examples = [key, tf.reduce_max(rows)]
            some = tf.reduce_all(tf.reduce_any(sizes > 0, 0))
            chosen(some, list, lambda: (tf.py_function(_report, examples, []), [])[1])
        return [*tensors, sizes]

    specs = [tf.TensorSpec(*pair) for pair in zip(shapes, types, strict=True)]
    specs += [tf.TensorSpec([count], tf.int32), tf.TensorSpec([], tf.int64)]
    with tf.init_scope():
        return tf.function(sizes_of_parts, autograph=False).get_concrete_function(*specs)


class WholeBatchIterator(SettledIterator):
    """A distributed iterator whose only component gives batches and the sizes of their parts.

    Attributes:
        usual: The size of every part of most batches; None if they differ or nothing tells it.
    """

    usual: int | None = None

    @functools.cached_property
    def _type_spec(self) -> SettledIteratorSpec:
        spec = super()._type_spec
        spec.usual = self.usual
        return spec

    @staticmethod
    def _spec_class() -> type[SettledIteratorSpec]:
        return WholeBatchIteratorSpec

    def get_next_as_optional(self) -> Any:
        """The next batch as a `tf.experimental.Optional`, empty after the end."""
        with self._on_host():
            optional = self._iterators[0].get_next_as_optional()
            return tf.cond(
                optional.has_value(),
                lambda: _present(self._parts(optional.get_value())),
                lambda: tf.experimental.Optional.empty(self._element_spec),
            )

    def _get_next_no_partial_batch_handling(self, name: str | None = None) -> Any:
        del name  # TensorFlow does not use it either
        with self._on_host():
            return self._parts(self._iterators[0].get_next())

    def _parts(self, batch: tuple[Any, tf.Tensor]) -> Any:
        """Each replica's part of a batch."""
        whole, sizes = batch
        cores = self._input_workers.compute_devices_for_worker(0)
        order = self._replica_order or range(len(cores))
        columns = list(zip(tf.nest.flatten(whole), tf.unstack(sizes), strict=True))
        if not tf.executing_eagerly():
            cut = [BatchParts(copied(rows), own, order, self.usual) for rows, own in columns]
            return tf.nest.pack_sequence_as(whole, cut)
        parts = zip(*(_cut(rows, own, cores) for rows, own in columns), strict=True)
        packed = [tf.nest.pack_sequence_as(whole, one) for one in parts]
        return input_lib._create_per_replica([packed[place] for place in order], self._strategy)

    @contextlib.contextmanager
    def _on_host(self) -> Iterator[None]:
        """Where the iterator is, whatever device has been asked for."""
        with tf.device(None), tf.device(self._input_workers.worker_devices[0]):
            yield


def _present(batch: Any) -> Any:
    """An optional of parts as values of their own, which a dataset's elements are."""
    parts = tf.nest.map_structure(lambda one: distribute_values.PerReplica(one.values), batch)
    return tf.experimental.Optional.from_value(parts)


def _cut(rows: tf.Tensor, sizes: tf.Tensor, cores: Sequence[str]) -> list[tf.Tensor]:
    """The parts of a tensor along axis 0, each on a core."""
    parts = tf.raw_ops.SplitV(value=rows, size_splits=sizes, axis=0, num_split=len(cores))
    return [_on_core(*pair) for pair in zip(parts, cores, strict=True)]


def _on_core(part: tf.Tensor, core: str) -> tf.Tensor:
    with tf.device(core):
        return copied(part)


class WholeBatchIteratorSpec(SettledIteratorSpec):
    """The type of a `WholeBatchIterator`, of whatever size its batches are.

    What is traced for batches of one usual size is right for others.

    Attributes:
        usual: That of the iterator for which it was made.
    """

    usual: int | None = None

    @property
    def value_type(self) -> type:
        """The class that this is the type of."""
        return WholeBatchIterator

    @functools.cached_property
    def _component_specs(self) -> list[Any]:
        cores = self._input_workers.compute_devices_for_worker(0)
        part = tf.nest.map_structure(
            functools.partial(input_lib._replace_per_replica_spec, i=0), self._element_spec
        )
        element = tf.nest.map_structure(_relaxed, part)
        return [iterator_ops.IteratorSpec(_with_sizes_spec(element, len(cores)))]

    def _from_components(self, components: Sequence[Any]) -> Any:
        iterator = super()._from_components(components)
        iterator.usual = self.usual
        return iterator

    def most_specific_common_supertype(self, others: Sequence[Any]) -> Any:
        """A type for which can be traced what all these types take; None if there is none."""
        common = super().most_specific_common_supertype(others)
        if common is not None:
            common.usual = self.usual
        return common

    @property
    def _is_in_rounds(self) -> bool:
        return False
