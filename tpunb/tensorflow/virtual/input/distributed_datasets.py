"""Distributed datasets for virtual cores, and iterators over whole batches.

TensorFlow cuts batches in the input pipeline, and asks for each replica's part whether it exists.
On many cores that takes longer than a small step. Here one iterator gives whole batches, with the
sizes of the replicas' parts. One operation then cuts each component of a batch, by its own rows,
into these parts. Its result still shows that the parts are one batch.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpunb.tensorflow.virtual.input.datasets import Cut, copied, cut_of, mapped
from tpunb.tensorflow.virtual.input.iterators import (
    UNTUNED,
    SettledIterator,
    SettledIteratorSpec,
    on_host,
)
from tpunb.tensorflow.virtual.private_names import (
    distribute_values,
    input_lib,
    input_lib_v1,
    iterator_ops,
)
from tpunb.tensorflow.virtual.replicate.batch_parts import BatchParts, chosen

_reports: weakref.WeakValueDictionary[int, Callable[[int], None]] = weakref.WeakValueDictionary()
"""Receive the number of examples of a batch if some replica gets none of them."""


def _report(key: tf.Tensor, examples: tf.Tensor) -> None:
    report = _reports.get(int(key))
    if report is not None:
        report(int(examples))


def iterator_of_whole_batches(distributed: Any) -> Any | None:
    """Return an iterator over a distributed dataset that cuts batches into parts.

    Args:
        distributed: A `DistributedDataset`.

    Returns:
        The iterator. None if the parts must be taken one by one: they are not successive batches'
        parts for the replicas.
    """
    pairs = distributed._input_workers._worker_device_pairs
    if len(pairs) != 1 or len(pairs[0][1]) < 2 or distributed._options is not None:
        return None
    host, devices = pairs[0]
    with tf.device(host):
        dataset = distributed._cloned_datasets[0]
        cut = cut_of(dataset, len(devices))
        if cut is None:
            return None
        report = getattr(distributed, "when_empty", None)
        key = 0 if report is None else id(report)
        if report is not None:
            _reports[key] = report
        spec = WholeBatchIteratorSpec.of(distributed, can_be_partial=False)
        spec.usual = cut.usual
        batches = _whole_batches(cut, spec.batch_spec, key)
        return spec._from_components([iter(batches.with_options(dataset.options()).prefetch(1))])


def _whole_batches(cut: Cut, element: Any, key: int) -> tf.data.Dataset:
    """Return batches, each with its components' part sizes, shaped `[components, parts]`.

    Args:
        cut: How the batches are cut.
        element: The type of a batch.
        key: The key of the report on batches that have empty parts; 0 for no report.
    """
    sizes, specs = cut.sizes, tuple(tf.nest.flatten(element))
    batches = cut.batches.rebatch(sum(sizes)) if any(sizes) else cut.batches
    return mapped(
        batches,
        _sizes_of_parts(specs, len(sizes), reports=bool(key)),
        _with_sizes_spec(element, len(sizes)),
        tf.constant(sizes, tf.int32),
        tf.constant(key, tf.int64),
    )


def _with_sizes_spec(element: Any, count: int) -> tuple[Any, tf.TensorSpec]:
    return element, tf.TensorSpec([len(tf.nest.flatten(element)), count], tf.int32)


@functools.lru_cache(maxsize=64)
def _sizes_of_parts(tensors: Sequence[tf.TensorSpec], count: int, *, reports: bool) -> Any:
    """Return a function that returns its tensors and the sizes of their rows' parts."""

    def sizes_of_parts(*arguments: Any) -> Any:
        *tensors, full, key = arguments
        known = [tensor.shape[0] for tensor in tensors]
        if None not in known:
            return [*tensors, tf.constant([[rows // count] * count for rows in known])]
        rows = tf.stack([tf.shape(tensor)[:1] for tensor in tensors])
        # TensorFlow cuts a batch of unknown size in the same way.
        most = tf.where(tf.reduce_any(full > 0), full, (rows + count - 1) // count)
        before = tf.cumsum(most + tf.zeros_like(rows), axis=1, exclusive=True)
        sizes = tf.clip_by_value(rows - before, 0, most)
        if reports:
            examples = [key, tf.reduce_max(rows)]
            some = tf.reduce_all(tf.reduce_any(sizes > 0, 0))
            chosen(some, list, lambda: (tf.py_function(_report, examples, []), [])[1])
        return [*tensors, sizes]

    specs = [*tensors, tf.TensorSpec([count], tf.int32), tf.TensorSpec([], tf.int64)]
    with tf.init_scope():
        return tf.function(sizes_of_parts, autograph=False).get_concrete_function(*specs)


class WholeBatchIterator(SettledIterator):
    """A distributed iterator whose only component gives batches and the sizes of their parts."""

    def get_next_as_optional(self) -> Any:
        """Return the next batch as a `tf.experimental.Optional`, empty after the end."""
        with on_host(self._input_workers.worker_devices[0]):
            optional = self._iterators[0].get_next_as_optional()
            # As in TensorFlow, the sizes of parts are not known if the data can end.
            known = self._cardinality == tf.data.INFINITE_CARDINALITY
            return tf.cond(
                optional.has_value(),
                lambda: _present(self._parts(optional.get_value(), known=known)),
                lambda: tf.experimental.Optional.empty(self._element_spec),
            )

    def _get_next_no_partial_batch_handling(self, name: str | None = None) -> Any:
        del name  # TensorFlow does not use it either
        with on_host(self._input_workers.worker_devices[0]):
            return self._parts(self._iterators[0].get_next())

    def _parts(self, batch: tuple[Any, tf.Tensor], *, known: bool = True) -> Any:
        """Return each replica's part of a batch, in a graph with its size if that is known."""
        whole, sizes = batch
        cores = self._input_workers.compute_devices_for_worker(0)
        columns = list(zip(tf.nest.flatten(whole), tf.unstack(sizes), strict=True))
        if not tf.executing_eagerly():
            cut = [self._traced(rows, own, known=known) for rows, own in columns]
            return tf.nest.pack_sequence_as(whole, cut)
        parts = zip(*(_cut(rows, own, cores) for rows, own in columns), strict=True)
        packed = [tf.nest.pack_sequence_as(whole, components) for components in parts]
        return input_lib._create_per_replica(
            [packed[index] for index in self._order], self._strategy
        )

    @property
    def _order(self) -> Sequence[int]:
        """The index of each replica's part."""
        cores = self._input_workers.compute_devices_for_worker(0)
        return self._replica_order or range(len(cores))

    def _traced(self, rows: tf.Tensor, sizes: tf.Tensor, *, known: bool) -> BatchParts:
        """Return the parts of a component, in the graph that is being built."""
        order, size = self._order, rows.shape[0]
        usual = self._type_spec.usual if size is None else size // len(order)
        return BatchParts(copied(rows), sizes, order, usual if known else None)


def _present(batch: Any) -> Any:
    """Return an optional of parts as separate values, as in a dataset's elements."""
    parts = tf.nest.map_structure(lambda leaf: distribute_values.PerReplica(leaf.values), batch)
    return tf.experimental.Optional.from_value(parts)


def _cut(rows: tf.Tensor, sizes: tf.Tensor, cores: Sequence[str]) -> list[tf.Tensor]:
    """Return the parts of a tensor along axis 0, each on a core."""
    parts = tf.raw_ops.SplitV(value=rows, size_splits=sizes, axis=0, num_split=len(cores))
    return [_on_core(*pair) for pair in zip(parts, cores, strict=True)]


def _on_core(part: tf.Tensor, core: str) -> tf.Tensor:
    with tf.device(core):
        return copied(part)


class WholeBatchIteratorSpec(SettledIteratorSpec):
    """The type of a `WholeBatchIterator`.

    A function that is traced for batches of one usual size is right for other sizes too.

    Attributes:
        usual: The size of every part of most batches; None if the parts differ or it is not known.
    """

    usual: int | None = None

    @property
    def value_type(self) -> type:
        """The class of the values of this type."""
        return WholeBatchIterator

    @functools.cached_property
    def batch_spec(self) -> Any:
        """The type of a batch, whose number of rows is known if the parts' is."""
        count = len(self._input_workers.compute_devices_for_worker(0))

        def whole(part: tf.TensorSpec) -> tf.TensorSpec:
            rows = part.shape[0]
            return tf.TensorSpec([rows and count * rows, *part.shape[1:]], part.dtype)

        return tf.nest.map_structure(whole, self._spec_of_part(0))

    @functools.cached_property
    def _component_specs(self) -> list[Any]:
        count = len(self._input_workers.compute_devices_for_worker(0))
        return [iterator_ops.IteratorSpec(_with_sizes_spec(self.batch_spec, count))]

    def _to_components(self, value: Any) -> list[Any]:
        return list(value._iterators)

    def _from_components(self, components: Sequence[Any]) -> Any:
        return self._over(components)

    def most_specific_common_supertype(self, others: Sequence[Any]) -> Any:
        """Return a type that a trace for all these types can use; None if none exists."""
        common = super().most_specific_common_supertype(others)
        if common is not None:
            common.usual = self.usual
        return common


# Distributed datasets.


def settled(value: Any) -> Any:
    """Return a distributed dataset, or its type, with the behavior of virtual cores.

    Args:
        value: What TensorFlow made. It is changed.
    """
    value.__class__ = _SETTLED.get(type(value), type(value))
    return value


def _dataset(base: Any) -> type:
    class Dataset(base):  # type: ignore[misc]
        def __iter__(self) -> Any:
            if not self._built or not (tf.executing_eagerly() or tf.inside_function()):
                return super().__iter__()  # the error that this raises gives the reason
            if base is input_lib.DistributedDatasetsFromFunction:
                return SettledIterator.over(self, self._datasets)
            whole = iterator_of_whole_batches(self)
            return SettledIterator.over(self, self._cloned_datasets) if whole is None else whole

        @property
        def _type_spec(self) -> Any:
            return settled(super()._type_spec)

    return Dataset


def _spec(base: Any) -> type:
    class Spec(base):  # type: ignore[misc]
        @property
        def value_type(self) -> type:
            return _SETTLED[super().value_type]

        def _from_components(self, components: Any) -> Any:
            return settled(super()._from_components(components))

    return Spec


def _dataset_v1(base: Any) -> type:
    class DatasetV1(base):  # type: ignore[misc]
        def _get_iterator(self) -> Any:
            with UNTUNED:
                return super()._get_iterator()

    return DatasetV1


_SETTLED: dict[type, type] = {
    base: make(base)
    for make, base in (
        (_dataset, input_lib.DistributedDataset),
        (_dataset, input_lib.DistributedDatasetsFromFunction),
        (_spec, input_lib.DistributedDatasetSpec),
        (_spec, input_lib.DistributedDatasetsFromFunctionSpec),
        (_dataset_v1, input_lib_v1.DistributedDatasetV1),
        (_dataset_v1, input_lib_v1.DistributedDatasetsFromFunctionV1),
    )
}
"""The classes for virtual cores, by TensorFlow's."""
