"""Short names for argument specs, and helpers that the functions share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

Entry = tuple[Callable[..., Any], tuple[tf.TensorSpec, ...]]


def _of(dtype: tf.DType) -> Callable[..., tf.TensorSpec]:
    return lambda *sizes: tf.TensorSpec(sizes, dtype)


F, H, D = _of(tf.float32), _of(tf.bfloat16), _of(tf.float64)
I, L, U8 = _of(tf.int32), _of(tf.int64), _of(tf.uint8)  # noqa: E741
B, C, S = _of(tf.bool), _of(tf.complex64), _of(tf.string)


def entries(**functions: tuple[Any, ...]) -> dict[str, Entry]:
    """Functions with the specs of their arguments, by name."""
    return {name: (entry[0], tuple(entry[1:])) for name, entry in functions.items()}


def gradient(fn: Callable[..., Any], *values: Any) -> Any:
    """The gradient of the sum of a function's absolute results."""
    with tf.GradientTape() as tape:
        for value in values:
            tape.watch(value)
        result = tf.reduce_sum(tf.abs(fn(*values)))
    return tape.gradient(result, list(values))


def gradient_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes the gradient of another."""
    return lambda *values: gradient(fn, *values)


def with_state(make: Callable[[], Any], use: Callable[..., Any]) -> Callable[..., Any]:
    """A function of state with variables, which its first call creates."""
    cached = functools.cache(make)

    def fn(*values: Any) -> Any:
        with tf.init_scope():
            state = cached()
        return use(state, *values)

    return fn


def variable(*sizes: int, dtype: tf.DType = tf.float32) -> Callable[[], tf.Variable]:
    """A factory of a variable of zeros."""
    return lambda: tf.Variable(tf.zeros(sizes, dtype))
