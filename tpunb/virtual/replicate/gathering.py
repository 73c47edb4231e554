"""What a TPU asks of values that are gathered over the replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_MESSAGE = (
    "Shape mismatch in the collective instance: gather on a TPU wants values of the same shape on "
    "all replicas"
)


def of_one_shape(values: Sequence[Any]) -> list[Any]:
    """Refuses values whose shapes differ between replicas.

    `tf.distribute.Strategy.gather`: "for `tf.distribute.TPUStrategy.gather`, all
    tensors must have exactly the same rank and same shape". Values of different
    rank are left to TensorFlow, which refuses them everywhere.

    Args:
        values: The value on each replica.

    Returns:
        The values, which fail when they are computed if their shapes are not
        known before.

    Raises:
        tf.errors.InvalidArgumentError: The shapes differ.
    """
    tensors = [tf.convert_to_tensor(value) for value in values]
    shapes = [tensor.shape for tensor in tensors]
    if len({shape.rank for shape in shapes}) > 1:
        return tensors
    for replica, shape in enumerate(shapes):
        if not shape.is_compatible_with(shapes[0]):
            raise tf.errors.InvalidArgumentError(
                None,
                None,
                f"{_MESSAGE}: it is {shapes[0]} on replica 0 and {shape} on replica {replica}.",
            )
    if all(shape.is_fully_defined() for shape in shapes):
        return tensors
    first = tf.shape(tensors[0])
    checks = [
        tf.debugging.assert_equal(tf.shape(other), first, message=f"{_MESSAGE}.")
        for other in tensors[1:]
    ]
    with tf.control_dependencies(checks):
        return [tf.identity(tensor) for tensor in tensors]
