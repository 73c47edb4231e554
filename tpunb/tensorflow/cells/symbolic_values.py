"""Values that hold a tensor of a graph, which cannot leave the trace."""

from __future__ import annotations

import functools
from types import FunctionType, MethodType
from typing import Any

import tensorflow as tf

from tpunb._util.reachable import reaches

_HELPERS = (tf.GradientTape, tf.TensorArray, tf.autodiff.ForwardAccumulator)


def is_composite(value: Any) -> bool:
    """Return whether a value consists of tensors that TensorFlow can take apart."""
    # tf.nest has a similar check, but it takes attrs classes and mappings apart as well.
    return isinstance(value, tf.__internal__.CompositeTensor)


def stays_inside(value: Any) -> bool:
    """Return whether a value is a helper of the trace that cannot leave it.

    Such helpers are tapes, tensor arrays, iterators (`zip`, `map`, generators), and functions that
    close over a tensor.
    """
    if isinstance(value, _HELPERS):
        return True
    if isinstance(value, (FunctionType, MethodType, functools.partial)):
        return holds_symbolic(value)
    kind = type(value)
    return hasattr(kind, "__next__") and hasattr(kind, "__iter__")


def holds_symbolic(value: Any) -> bool:
    """Return whether a tensor of a graph can be reached from a value."""
    return reaches(value, tf.is_symbolic_tensor, (tf.Module, tf.Variable))
