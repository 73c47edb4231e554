"""The only part of the descriptions that touches TensorFlow's values.

This module never imports TensorFlow. A value of its classes cannot exist unless TensorFlow is
imported already, so it is looked up among the loaded modules.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tpunb.display.describe.statistics import (
    Statistics,
    combined_deviation,
    sample_of,
)

LARGE_BYTES = 2**20
"""Tensors of more bytes than this stay on their device."""

# Statistics need a few temporary copies, so only this many elements are computed at a time.
_CHUNK = 2**22

Array = npt.NDArray[Any]


def _tensorflow() -> Any:
    """Return TensorFlow if it is imported, else `None`."""
    module = sys.modules.get("tensorflow")
    return module if hasattr(module, "distribute") else None


def distributed_components(value: Any) -> tuple[Any, ...] | None:
    """Return the components of a `tf.distribute` value; `None` for any other value."""
    tf = _tensorflow()
    if tf is None:
        return None
    inner = value.value if _is_keras_variable(value) else value
    return tuple(inner.values) if isinstance(inner, tf.distribute.DistributedValues) else None


def as_tensor(value: Any) -> Any:
    """Return the `tf.Tensor` of a tensor or variable; `None` for any other value."""
    tf = _tensorflow()
    if tf is None:
        return None
    if isinstance(value, tf.Tensor):
        return value
    if isinstance(value, tf.Variable) or _is_keras_variable(value):
        return tf.convert_to_tensor(value)
    return None


def read(value: Any) -> Any:
    """Return the tensor of a tensor or variable; return a lost tensor or other value as it is."""
    try:
        tensor = as_tensor(value)
    except Exception:
        return value
    return value if tensor is None else tensor


def type_and_shape(value: Any) -> tuple[str, tuple[int | None, ...]] | None:
    """Return the dtype and shape of a tensor or variable, even if its numbers are lost."""
    tf = _tensorflow()
    if tf is None or not isinstance(value, (tf.Tensor, tf.Variable)):
        return None
    return str(value.dtype.name), tuple(value.shape)


def _is_keras_variable(value: Any) -> bool:
    """Return whether a value is Keras 3's wrapper of a TensorFlow variable."""
    return type(value).__module__.partition(".")[0] == "keras" and hasattr(value, "assign")


def variable_name(value: Any) -> str:
    """Return the name of a variable; empty for any other value."""
    tf = _tensorflow()
    if tf is None or not (isinstance(value, tf.Variable) or _is_keras_variable(value)):
        return ""
    # Keras 3 has the whole path in an attribute of its own.
    return str(getattr(value, "path", value.name)).removesuffix(":0")


CompositeKind = Literal["ragged", "sparse", "slices"]


def composite_kind(value: Any) -> CompositeKind | None:
    """Return the kind of a composite tensor; None for any other value."""
    tf = _tensorflow()
    if tf is None:
        return None
    kinds: tuple[tuple[CompositeKind, Any], ...] = (
        ("ragged", tf.RaggedTensor),
        ("sparse", tf.sparse.SparseTensor),
        ("slices", tf.IndexedSlices),
    )
    return next((kind for kind, cls in kinds if isinstance(value, cls)), None)


def is_symbolic(tensor: Any) -> bool:
    """Return whether a tensor belongs to a graph and has no value yet."""
    return not hasattr(tensor, "numpy")


def is_large(tensor: Any) -> bool:
    """Return whether a tensor is too large to be copied from its device."""
    size = int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size or 1)
    return size > LARGE_BYTES


def tensor_dtype(tensor: Any) -> str:
    """Return the name of a tensor's dtype, such as `"bfloat16"`."""
    return str(tensor.dtype.name)


def as_array(tensor: Any) -> Array:
    """Return the NumPy array of a small eager tensor."""
    return np.asarray(tensor.numpy())


def host_view(tensor: Any) -> Array | None:
    """Return a view of a large tensor's elements in the host's memory.

    Nothing is copied. The result is None if the elements are on another device, or are not numbers.
    """
    if is_symbolic(tensor) or not str(tensor.device).rpartition("/")[2].startswith("device:CPU"):
        return None
    array = np.asarray(tensor)
    plain = array.dtype.kind in "biuf" or array.dtype.name == "bfloat16"
    # If NumPy had to copy the elements, the device can compute with them as well.
    return array if plain and not array.flags.owndata else None


def strided(tensor: Any, lengths: Sequence[int], steps: Sequence[int]) -> Array:
    """Return a sample of a tensor, taken on its device.

    Args:
        tensor: An eager tensor.
        lengths: The shape to see the tensor in. If it has fewer elements than the tensor, the
            tensor's first elements are taken.
        steps: The distance between two kept elements along each of these axes.

    Returns:
        The kept elements.
    """
    if (view := host_view(tensor)) is not None:
        return np.array(sample_of(view, lengths, steps))
    count = math.prod(lengths)
    tf = _tensorflow()
    with tf.device(tensor.device):
        flat = tf.reshape(tensor, [-1])
        if count < math.prod(tensor.shape):
            flat = flat[:count]
        sample = tf.reshape(flat, lengths)[tuple(slice(None, None, step) for step in steps)]
    return as_array(sample)


def combined(tensors: Sequence[Any], mode: str) -> Any:
    """Combine several tensors into one, computed on the first tensor's device.

    Args:
        tensors: Tensors of one shape.
        mode: `"difference"` of the first two, `"sum"` or `"mean"`.
    """
    tf = _tensorflow()
    with tf.device(tensors[0].device):
        parts = [tf.identity(tensor) for tensor in tensors]
        wide = tf.float64 if parts[0].dtype in (tf.float64, tf.int64, tf.uint64) else tf.float32
        numbers = [tf.cast(part, wide) for part in parts]
        if mode == "difference":
            first, second = numbers
            same = (first == second) | (tf.math.is_nan(first) & tf.math.is_nan(second))
            return tf.where(same, tf.zeros([], wide), first - second)
        total = tf.add_n(numbers)
        return total / len(numbers) if mode == "mean" else total


def device_counts(tensor: Any, limits: tuple[float, float], bins: int) -> Array:
    """Count the finite elements in each of `bins` equal ranges between limits."""
    tf = _tensorflow()
    with tf.device(tensor.device):
        numbers = tf.cast(tf.reshape(tensor, [-1]), tf.float32)
        finite = tf.boolean_mask(numbers, tf.math.is_finite(numbers))
        counts = tf.histogram_fixed_width(finite, list(limits), bins)
    return as_array(counts)


def device_summary(tensor: Any) -> tuple[Statistics, tuple[int, ...]]:
    """Return statistics and checksum of a numeric tensor, computed on its own device.

    Args:
        tensor: An eager tensor of a real dtype or bool, not empty.

    Returns:
        The same as `array_summary`; only scalars leave the device.
    """
    tf = _tensorflow()
    with tf.device(tensor.device):
        flat = tf.reshape(tensor, [-1])
        begins = range(0, int(flat.shape[0]), _CHUNK)
        parts = [_chunk_facts(tf, flat[begin : begin + _CHUNK]) for begin in begins]
    finite = sum(part["finite"] for part in parts)
    nonempty = [part for part in parts if part["finite"]]
    statistics = Statistics(
        minimum=min((part["min"] for part in nonempty), default=None),
        mean=sum(part["sum"] for part in nonempty) / finite if finite else None,
        maximum=max((part["max"] for part in nonempty), default=None),
        nans=sum(part["nans"] for part in parts),
        infs=sum(part["infs"] for part in parts),
        deviation=combined_deviation(
            [(part["sum"] / part["finite"], part["finite"]) for part in nonempty],
            [part["squares"] for part in nonempty],
        ),
    )
    return statistics, tuple(number for part in parts for number in part["check"])


def _chunk_facts(tf: Any, values: Any) -> dict[str, Any]:
    """Return counts, extremes, sum and checksum of a flat piece of a tensor."""
    # Use a dtype that all of the operations support.
    if values.dtype.is_floating:
        if values.dtype not in (tf.float32, tf.float64):
            values = tf.cast(values, tf.float32)
        is_nan, finite = tf.math.is_nan(values), tf.math.is_finite(values)
        # Adding zero turns -0.0 into 0.0, which is equal to it.
        canonical = tf.where(is_nan, tf.constant(math.nan, values.dtype), values + 0)
        numbers = values
    else:
        if values.dtype not in (tf.int64, tf.uint64):
            values = tf.cast(values, tf.int64)
        is_nan, finite = tf.zeros_like(values, tf.bool), tf.ones_like(values, tf.bool)
        canonical, numbers = values, tf.cast(values, tf.float32)
    nans = _scalar(tf.math.count_nonzero(is_nan, dtype=tf.int32))
    count = _scalar(tf.math.count_nonzero(finite, dtype=tf.int32))
    zero = tf.zeros([], numbers.dtype)
    least, most = (tf.constant(end, values.dtype) for end in (values.dtype.min, values.dtype.max))
    mean = tf.reduce_sum(tf.where(finite, numbers / max(count, 1), zero))
    return {
        "finite": count,
        "nans": nans,
        "infs": int(values.shape[0]) - count - nans,
        "min": _scalar(tf.reduce_min(tf.where(finite, values, most))),
        "max": _scalar(tf.reduce_max(tf.where(finite, values, least))),
        "sum": _scalar(mean) * count,
        "squares": _scalar(tf.reduce_sum(tf.where(finite, numbers - mean, zero) ** 2)),
        "check": _checksum(tf, canonical),
    }


def _checksum(tf: Any, values: Any) -> tuple[int, int]:
    """Return two weighted sums of the bits; integer arithmetic wraps around."""
    bits = tf.reshape(tf.bitcast(values, tf.int32), [-1])
    place = tf.range(tf.size(bits), dtype=tf.int32)
    odd = place * 2 + 1
    mixed = tf.bitwise.bitwise_xor(bits, place * 40503)
    mixed = mixed * (mixed * 2 + 1) + tf.bitwise.right_shift(mixed, 7)
    return (
        int(_scalar(tf.reduce_sum(bits * odd))),
        int(_scalar(tf.reduce_sum(mixed * odd))),
    )


def _scalar(tensor: Any) -> Any:
    return tensor.numpy().item()
