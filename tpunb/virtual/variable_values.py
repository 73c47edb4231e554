"""The values of the variables that a function uses: kept, compared and restored."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["VariableValues", "values_of"]

# TensorFlow's names of a distributed variable's copies.
_COPY = re.compile(r"(/replica_\d+)?(:0)?$")


class VariableValues:
    """The values of variables at one time.

    Args:
        handles: The variables' handles: one for each copy.
    """

    def __init__(self, handles: list[Any]) -> None:
        self._kept = [(handle, _read(handle)) for handle in handles]

    @classmethod
    def used_by(cls, concrete: Any) -> VariableValues:
        """The values that a concrete function finds, of the variables that it reads or changes."""
        return cls([handle for handle in concrete.captured_inputs if _is_variable(handle)])

    def changed(self) -> dict[str, list[np.ndarray]]:
        """What the variables hold that have changed since, copy by copy, by their names."""
        found: dict[str, list[np.ndarray]] = {}
        changed = set()
        for handle, before in self._kept:
            name = _COPY.sub("", str(handle._name))
            now = values_of(_read(handle))
            found.setdefault(name, []).append(now)
            if not np.array_equal(now, values_of(before)):
                changed.add(name)
        return {name: values for name, values in found.items() if name in changed}

    def restore(self) -> None:
        """Gives the variables the values again that they had."""
        for handle, value in self._kept:
            with tf.device(handle.device):
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def values_of(tensor: Any) -> np.ndarray:
    """A tensor's numbers, of a dtype that NumPy knows."""
    values = np.asarray(tensor)
    return values.astype(np.float32) if values.dtype.kind == "V" else values


def _is_variable(handle: Any) -> bool:
    """Whether a captured input is the handle of a variable that has a value."""
    data = getattr(handle, "_handle_data", None)
    if handle.dtype != tf.resource or data is None or not data.is_set or not data.shape_and_type:
        return False
    with tf.device(handle.device):
        return bool(tf.raw_ops.VarIsInitializedOp(resource=handle))


def _read(handle: Any) -> Any:
    kind = tf.as_dtype(handle._handle_data.shape_and_type[0].dtype)
    with tf.device(handle.device):
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=kind)
