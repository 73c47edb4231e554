"""Input that has one element for each core, in one tensor: rounds.

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
from tpunb.virtual.input_elements import round_of

__all__ = ["WRAPPERS", "in_rounds"]

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
