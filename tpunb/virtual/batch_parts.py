"""The replicas' parts of a batch, which are still one batch where a `tf.function` takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import distribute_values

__all__ = ["BatchParts"]


class BatchParts(distribute_values.PerReplica):  # type: ignore[misc]
    """A `PerReplica` of parts of a batch.

    Into a function that is called with it, as Keras does in its training step, TensorFlow would
    pass each part by itself: there they could not be seen to be parts any more.

    Args:
        whole: The batch.
        sizes: The sizes of its parts along axis 0, of shape [replicas].
        order: Which of the parts each replica has.
    """

    def __init__(self, whole: tf.Tensor, sizes: tf.Tensor, order: Sequence[int]) -> None:
        parts = tf.raw_ops.SplitV(value=whole, size_splits=sizes, axis=0, num_split=len(order))
        super().__init__([parts[place] for place in order])
        self.whole = whole
        self.sizes = sizes
        self.order = tuple(order)

    @property
    def _type_spec(self) -> BatchPartsSpec:
        return BatchPartsSpec(tf.TensorSpec.from_tensor(self.whole), self.order)


class BatchPartsSpec(distribute_values.PerReplicaSpec):  # type: ignore[misc]
    """The type of `BatchParts`.

    Args:
        whole: The batch's type.
        order: Which of the parts each replica has.
    """

    __slots__ = ["_order", "_whole"]

    def __init__(self, whole: tf.TensorSpec, order: Sequence[int]) -> None:
        part = tf.TensorSpec([None, *whole.shape[1:]], whole.dtype)
        super().__init__(*[part] * len(order))
        self._whole = tf.TensorSpec(whole.shape, whole.dtype)
        self._order = tuple(order)

    @property
    def value_type(self) -> type:
        """The class that this is the type of."""
        return BatchParts

    def _serialize(self) -> tuple[Any, ...]:
        return self._whole, self._order

    @property
    def _component_specs(self) -> list[tf.TensorSpec]:
        return [self._whole, tf.TensorSpec([len(self._order)], tf.int32)]

    def _to_components(self, value: BatchParts) -> list[tf.Tensor]:
        return [value.whole, value.sizes]

    def _from_components(self, components: Sequence[tf.Tensor]) -> BatchParts:
        whole, sizes = components
        return BatchParts(whole, sizes, self._order)

    def is_subtype_of(self, other: Any) -> bool:
        """Whether what was traced for another type is right for this one."""
        if type(other) is distribute_values.PerReplicaSpec:
            return bool(self._of_any_parts().is_subtype_of(other))
        return bool(super().is_subtype_of(other))

    def most_specific_common_supertype(self, others: Sequence[Any]) -> Any:
        """A type for which can be traced what all these types take; None if there is none."""
        if all(type(other) is BatchPartsSpec for other in others):
            return super().most_specific_common_supertype(others)
        plain = [one._of_any_parts() if type(one) is BatchPartsSpec else one for one in others]
        return self._of_any_parts().most_specific_common_supertype(plain)

    def _of_any_parts(self) -> Any:
        """The type of values that need not be parts of one batch."""
        return distribute_values.PerReplicaSpec(*self._value_specs)
