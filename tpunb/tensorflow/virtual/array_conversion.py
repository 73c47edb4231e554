"""The refusal of arrays whose numbers TensorFlow would silently change while it traces.

TensorFlow gives an array the type of the tensor beside it: `np.array([0.5]) + tf.constant(1)` is 1,
for NumPy's arrays and for JAX's (TensorFlow 2.18 to 2.21). A tensor of floats is refused there.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.errors.base import hint
from tpunb.errors.jax_in_cells import JAX_IN_CELL, WAY_FOR_JAX
from tpunb.tensorflow.virtual.private_names import ops, tensor_conversion_registry

_FIRST = -1
"""A priority before that of TensorFlow's own conversions, which is 0 or more."""
_EXPLICIT = "convert_to_tensor_v2_with_dispatch"
"""The name of the function `tf.convert_to_tensor`, up to TensorFlow 2.21."""
_REVERSED = "r_binary_op_wrapper"
"""The name of the function behind `array + tensor`, up to TensorFlow 2.21."""
_NEAR = 12  # functions to look at; up to 8 lie between such a call and the conversion

_in_cell: contextvars.ContextVar[bool] = contextvars.ContextVar("tpunb_in_cell", default=False)


@contextlib.contextmanager
def refusing_jax_arrays() -> Iterator[None]:
    """Refuse each JAX array that becomes a tensor inside, where a cell is traced."""
    watch_conversions()
    token = _in_cell.set(True)
    try:
        yield
    finally:
        _in_cell.reset(token)


def watch_conversions() -> None:
    """Check the conversions of arrays from now on, in cells and in strict replica functions."""
    _watch((np.ndarray, np.generic))
    jax = sys.modules.get("jax")
    if jax is not None and (arrays := getattr(jax, "Array", None)) is not None:
        _watch(arrays)


@functools.cache
def _watch(classes: Any) -> None:
    # The public function refuses NumPy's types.
    tensor_conversion_registry.register_tensor_conversion_function_internal(classes, _check, _FIRST)


def _check(value: Any, dtype: Any = None, name: Any = None, as_ref: bool = False) -> Any:
    """Leave the conversion to TensorFlow's own functions, or refuse it."""
    if _in_cell.get() and not isinstance(value, (np.ndarray, np.generic)):
        raise _error(f"{JAX_IN_CELL}\n{hint(WAY_FOR_JAX)}")
    if dtype is not None and _may_lose_numbers(value.dtype, dtype) and _is_strict():
        _refuse_lost_numbers(np.asarray(value), tf.as_dtype(dtype))
    return NotImplemented


def _error(message: str) -> tf.errors.OpError:
    # After a TypeError or ValueError, TensorFlow tries its other conversions.
    return tf.errors.InvalidArgumentError(None, None, message)


def _may_lose_numbers(array: Any, dtype: Any) -> bool:
    """Return whether a conversion between two types may drop fractions or imaginary parts."""
    try:
        before, after = tf.as_dtype(array), tf.as_dtype(dtype)
    except TypeError:  # for example an array of objects
        return False
    if before.is_complex:
        return bool(after.is_floating or after.is_integer or after.is_bool)
    return bool(before.is_floating and (after.is_integer or after.is_bool))


def _is_strict() -> bool:
    """Return whether a cell or a strict replica function is being traced."""
    if _in_cell.get():
        return True
    graph = ops.get_default_graph()
    while graph is not None:
        if getattr(graph, "refuses_lost_numbers", False):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _callers() -> set[str]:
    """Return the names of the functions that led to a conversion, innermost first."""
    frame: Any = sys._getframe(2)
    names: set[str] = set()
    while frame is not None and len(names) < _NEAR:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def _refuse_lost_numbers(array: np.ndarray, dtype: Any) -> None:
    callers = _callers()
    if _EXPLICIT in callers:
        return
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of imaginary parts that are dropped
        after = array.astype(dtype.as_numpy_dtype)
    lost = np.flatnonzero(np.ravel(array != after))
    if not lost.size:
        return
    type_name, first = array.dtype.name, lost[0]
    side = "left" if _REVERSED in callers else "right"
    raise _error(
        f"TensorFlow would turn the {type_name} array on the {side} into {dtype.name}, "
        f"and {array.flat[first]} into {after.flat[first]}.\n"
        + hint(f"Cast what is beside the array: `tf.cast(x, tf.{type_name})`.")
    )
