"""The context of a replica, which refuses mistakes that TensorFlow does not explain."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tpunb.errors.base import hint
from tpunb.tensorflow.virtual.private_names import _TPUReplicaContext, autograph_artifact


class VirtualReplicaContext(_TPUReplicaContext):  # type: ignore[misc]
    """TensorFlow's context of a TPU's replica, with an error for axes that do not exist."""

    @autograph_artifact  # type: ignore[untyped-decorator]
    def all_gather(self, value: Any, axis: Any, *args: Any, **options: Any) -> Any:
        """Gather the tensors of all replicas along an axis, by TensorFlow's method.

        Raises:
            ValueError: A tensor does not have the axis. TensorFlow's method raises an IndexError
                without a message (TensorFlow 2.21).
        """
        for leaf in tf.nest.flatten(value):
            if not isinstance(leaf, tf.IndexedSlices):
                _refuse_missing_axis(tf.convert_to_tensor(leaf), tf.get_static_value(axis))
        return super().all_gather(value, axis, *args, **options)


def _refuse_missing_axis(tensor: tf.Tensor, axis: Any) -> None:
    """Refuse to gather a tensor along an axis that it does not have."""
    rank = tensor.shape.rank
    if rank is None or axis is None or -rank <= axis < rank:
        return
    if rank == 0:
        message = "all_gather cannot gather a scalar, because a scalar has no axis."
        fix = "Give it one: ctx.all_gather(tf.expand_dims(x, 0), axis=0)."
    else:
        message = f"all_gather cannot gather along axis {axis} of a tensor of shape {tensor.shape}."
        fix = f"Choose an axis from {-rank} to {rank - 1}."
    # AutoGraph keeps the type of a ValueError, and not of an error with a `fix`.
    raise ValueError(f"{message}\n{hint(fix)}")
