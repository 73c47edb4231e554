"""Batches whose size is known only at run time, and the parts into which they are cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import AttrValue, EagerTensor

__all__ = ["CutBatch", "are_of_one_size", "chosen", "cut_batches"]


@dataclasses.dataclass(frozen=True)
class CutBatch:
    """A tensor that is cut along axis 0, a part for each replica.

    Attributes:
        whole: The tensor.
        sizes: Those of its parts, of shape [replicas].
        order: Which of the parts each replica has.
    """

    whole: tf.Tensor
    sizes: tf.Tensor
    order: Sequence[int]

    def stacked(self) -> tf.Tensor:
        """The parts along a new axis 0, one for each replica; they have to be of one size."""
        rest = self.whole.shape[1:].as_list()
        # Not -1 for the size, which cannot be inferred where the rest has no elements.
        parts = tf.reshape(self.whole, [len(self.order), self.sizes[0], *rest])
        in_order = list(self.order) == list(range(len(self.order)))
        return parts if in_order else tf.gather(parts, self.order)

    def parts(self) -> list[tf.Tensor]:
        """Each replica's part."""
        parts = tf.raw_ops.SplitV(
            value=self.whole, size_splits=self.sizes, axis=0, num_split=len(self.order)
        )
        return [parts[place] for place in self.order]


def cut_batches(columns: Sequence[Sequence[Any]]) -> dict[int, CutBatch]:
    """What replicas get as parts of batches of unknown size.

    Args:
        columns: Each argument of the replicas, with its value on every one.

    Returns:
        The batches, by the places of the arguments; nothing unless all arguments of unknown
        size are such parts, and only the first axis is unknown.
    """
    found: dict[int, CutBatch] = {}
    for place, column in enumerate(columns):
        if all(value.shape.is_fully_defined() for value in column):
            continue
        batch = _cut_batch(column)
        if batch is None:
            return {}
        found[place] = batch
    return found


def _cut_batch(column: Sequence[Any]) -> CutBatch | None:
    first = column[0]
    if isinstance(first, EagerTensor) or first.op.type != "SplitV":
        return None
    cut = first.op
    whole, sizes, axis = cut.inputs
    if tf.get_static_value(axis) != 0 or len(cut.outputs) != len(column):
        return None
    if not whole.shape.rank or not whole.shape[1:].is_fully_defined():
        return None
    places = {id(part): place for place, part in enumerate(cut.outputs)}
    order = [places.get(id(part)) for part in column]
    known = [place for place in order if place is not None]
    return CutBatch(whole, sizes, known) if len(set(known)) == len(column) else None


def are_of_one_size(batches: Mapping[int, CutBatch], sizes: range) -> tf.Tensor:
    """Whether all replicas have parts of one size, of a range.

    Args:
        batches: What is cut.
        sizes: The range.

    Returns:
        A scalar of type bool.
    """
    vectors = list({id(batch.sizes): batch.sizes for batch in batches.values()}.values())
    size = vectors[0][0]
    alike = [tf.reduce_all(tf.equal(one, tf.cast(size, one.dtype))) for one in vectors]
    return tf.reduce_all([size >= sizes[0], size <= sizes[-1], *alike])


def chosen(condition: tf.Tensor, this: Callable[[], Any], other: Callable[[], Any]) -> list[Any]:
    """What one of two functions gives, of which the one that is not called costs nothing.

    Args:
        condition: Whether it is the first.
        this: Gives a list of tensors.
        other: Gives tensors of the same types.
    """
    # A condition of TensorFlow's has outputs: at least the one that is left out here.
    both = [lambda function=function: [tf.constant(0), *function()] for function in (this, other)]
    outputs = tf.cond(condition, *both)
    operation = outputs[0].op
    while operation.type not in {"If", "StatelessIf"}:
        operation = operation.inputs[0].op
    # Not as part of the graph around it, in which the nodes of both would be visited.
    operation._set_attr("_lower_using_switch_merge", AttrValue(b=False))
    return list(outputs[1:])
