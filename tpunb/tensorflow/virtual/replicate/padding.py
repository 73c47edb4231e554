"""The padding of arguments whose sizes are open, such as a last batch that is smaller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpunb.tensorflow.virtual.private_names import variable_utils
from tpunb.tensorflow.virtual.runtime.tensorflow_state import padded_for_replicas


def padded(inputs: Sequence[Any], *, to_power_of_two: bool) -> list[Any]:
    """Pad arguments with zeros if their shapes are unknown or differ between replicas.

    XLA's dynamic padder hides this from the replica function; without it the function sees the
    padding.

    Args:
        inputs: The arguments of each replica.
        to_power_of_two: Whether lengths are rounded up to a power of two, at least 2; otherwise
            they are padded to the longest replica's.

    Returns:
        The same arguments with shapes that are the same on each replica.
    """
    inputs = variable_utils.convert_variables_to_tensors(list(inputs))
    flat = [tf.nest.flatten(nest, expand_composites=True) for nest in inputs]
    tensors = [[tf.convert_to_tensor(0 if v is None else v) for v in nest] for nest in flat]
    shapes = [
        None if composite else tf.TensorShape([None] * tensor.shape.rank)
        for composite, tensor in zip(parts_of_composites(inputs[0]), tensors[0], strict=True)
    ]
    filled = padded_for_replicas(tensors, shapes, to_power_of_two=to_power_of_two)
    return [
        tf.nest.pack_sequence_as(
            nest,
            [None if old is None else new for old, new in zip(before, after, strict=False)],
            expand_composites=True,
        )
        for nest, before, after in zip(inputs, flat, filled, strict=True)
    ]


def parts_of_composites(inputs: Any) -> list[bool]:
    """Return whether each tensor of a nest is a part of a composite tensor."""
    parts: list[bool] = []
    for value in tf.nest.flatten(inputs):
        inner = tf.nest.flatten(value, expand_composites=True)
        composite = len(inner) != 1 or inner[0] is not value
        parts.extend([composite] * len(inner))
    return parts
