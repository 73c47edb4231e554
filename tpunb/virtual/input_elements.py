"""Elements on their way from an input pipeline to cores: one for each, or a round for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

__all__ = [
    "CopiedOptional",
    "Part",
    "come_in_rounds",
    "copied",
    "elements_in",
    "parts_of",
    "round_of",
]


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
