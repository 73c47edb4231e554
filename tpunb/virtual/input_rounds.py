"""Elements on their way from an input pipeline to cores: one for each, or a round for all.

TensorFlow cuts each batch of a distributed dataset into as many as there are replicas. Where all
are of one size, the batch has them one after the other already: it takes another shape, not a cut.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import (
    AutoShardDataset,
    LegacyRebatchDataset,
    RebatchDataset,
    dataset_ops,
    tensor_util,
)


class CopiedOptional:
    """An optional element whose value is copied to the core that asks for it.

    Args:
        optional: The element.
        element_spec: Its type.
    """

    def __init__(self, optional: Any, element_spec: Any) -> None:
        self._optional = optional
        self.element_spec = element_spec

    def has_value(self) -> tf.Tensor:
        """Whether there is an element, as a scalar of type bool."""
        return self._optional.has_value()

    def get_value(self) -> Any:
        """The element; asking for one that is not there fails when it runs."""
        return copied(self._optional.get_value())


class Part(CopiedOptional):
    """One core's part of an optional round.

    Args:
        optional: The round.
        element_spec: The type of each of its elements.
        place: Which of them it is.
        size: How many there are.
    """

    def __init__(self, optional: Any, element_spec: Any, place: int, size: tf.Tensor) -> None:
        super().__init__(optional, element_spec)
        self._place = place
        self._size = size

    def has_value(self) -> tf.Tensor:
        """Whether the round has an element for this core, as a scalar of type bool."""
        return self._place < self._size

    def get_value(self) -> Any:
        """The core's element; asking for one that is not there fails when it runs."""
        whole = self._optional.get_value()
        return copied(tf.nest.map_structure(lambda one: one[self._place], whole))


def elements_in(optional: Any) -> tf.Tensor:
    """How many elements there are in an optional round."""

    def count() -> tf.Tensor:
        return tf.shape(tf.nest.flatten(optional.get_value())[0])[0]

    return tf.cond(optional.has_value(), count, lambda: 0)


def come_in_rounds(element_spec: Any, devices: Sequence[str]) -> bool:
    """Whether elements have one shape, so that those of all devices are taken as one tensor.

    To fetch and hand out an element for each takes longer than small layers to compute.
    """
    specs = tf.nest.flatten(element_spec)
    return (
        len(devices) > 1
        and bool(specs)
        and all(type(one) is tf.TensorSpec and one.shape.is_fully_defined() for one in specs)
        and not any(one.dtype in {tf.variant, tf.resource} for one in specs)
    )


def round_of(element_spec: Any) -> Any:
    """The type of several elements in one tensor."""
    return tf.nest.map_structure(
        lambda one: tf.TensorSpec([None, *one.shape], one.dtype), element_spec
    )


def parts_of(element: Any, count: int) -> list[Any]:
    """The elements that are in one tensor."""
    parts = [tf.unstack(whole, count) for whole in tf.nest.flatten(element)]
    return [tf.nest.pack_sequence_as(element, one) for one in zip(*parts, strict=True)]


def copied(element: Any) -> Any:
    """An element in memory of its own.

    Batches from Python functions are NumPy arrays' memory. TensorFlow forgets that
    when it slices them for the replicas, and a replica that uses its slice last
    writes its results there: training changed the arrays that it was fed.
    """
    return tf.nest.map_structure(_copy, element, expand_composites=True)


def _copy(value: Any) -> Any:
    if value is None:
        return None
    if value.dtype in {tf.variant, tf.resource}:
        return tf.identity(value)
    return tf.raw_ops.DeepCopy(x=value)


WRAPPERS = (dataset_ops._OptionsDataset, dataset_ops.PrefetchDataset, AutoShardDataset)
"""Datasets that change no element and drop none, if there is one input pipeline."""


def in_rounds(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """The elements of a dataset, so many of them in one tensor.

    Args:
        dataset: Its elements have one shape, which is known.
        count: How many elements are in a round.
    """
    batches = _cut_batches(dataset, count)
    return dataset.batch(count) if batches is None else _reshaped(batches, dataset, count)


def _cut_batches(dataset: Any, count: int) -> tf.data.Dataset | None:
    """The batches that a dataset cuts into a round each; None if it does not."""
    while type(dataset) in WRAPPERS:
        dataset = dataset._input_dataset
    size = _size_of_parts(dataset, count)
    if size is None:
        return None
    batches = dataset._input_dataset
    specs = tf.nest.flatten(batches.element_spec)
    if not all(type(one) is tf.TensorSpec and one.shape.rank for one in specs):
        return None
    return batches if all(one.shape[0] == count * size for one in specs) else None


def _size_of_parts(dataset: Any, count: int) -> int | None:
    """The size of the parts that a dataset cuts its batches into; None if it does not, or varies.

    Those of the older kind are cut into as many parts as there are replicas, of any number.
    """
    if type(dataset) is LegacyRebatchDataset:
        return int(tf.nest.flatten(dataset.element_spec)[0].shape[0])
    if type(dataset) is not RebatchDataset:
        return None
    sizes = tensor_util.constant_value(dataset._batch_sizes)
    if sizes is None or len(sizes) != count or len(set(sizes)) > 1:
        return None
    return int(sizes[0])


def _reshaped(batches: tf.data.Dataset, dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Batches as rounds of the elements into which a dataset cuts them."""
    element = dataset.element_spec
    shapes = tuple((count, *one.shape) for one in tf.nest.flatten(element))
    types = tuple(one.dtype for one in tf.nest.flatten(element))
    before = tuple(tuple(one.shape) for one in tf.nest.flatten(batches.element_spec))
    # Not Dataset.map, which traces a function for each iterator, and Keras makes two an epoch.
    variant = tf.raw_ops.MapDataset(
        input_dataset=batches._variant_tensor,
        other_arguments=[],
        f=_reshape(before, shapes, types),
        output_types=list(types),
        output_shapes=[list(shape) for shape in shapes],
        use_inter_op_parallelism=False,
        preserve_cardinality=True,
    )
    rounds = tf.data.experimental.from_variant(variant, round_of(element))
    rounds._source = dataset  # what it calls, a Python generator for one, lives as long
    return rounds.with_options(dataset.options())


@functools.lru_cache(maxsize=64)
def _reshape(
    before: Sequence[Sequence[int]], after: Sequence[Sequence[int]], types: Sequence[tf.DType]
) -> Any:
    """The function that gives tensors of some shapes others."""

    def reshape(*tensors: Any) -> Any:
        return [tf.reshape(*pair) for pair in zip(tensors, after, strict=True)]

    specs = [tf.TensorSpec(*pair) for pair in zip(before, types, strict=True)]
    with tf.init_scope():
        return tf.function(reshape, autograph=False).get_concrete_function(*specs)
