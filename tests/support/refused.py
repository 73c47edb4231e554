"""A replica function that breaks each rule, TensorFlow's message, and its entry in the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def printing(x: Any) -> Any:
    tf.print("sum", tf.reduce_sum(x), output_stream="file:///dev/null")
    return x


def counting(x: Any) -> Any:
    return tf.reduce_sum(tf.range(tf.cast(x[0], tf.int32) + 2))


def growing(x: Any) -> Any:
    array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    for i in tf.range(3):
        array = array.write(i, x)
    return array.stack()


def doubled(x: Any) -> Any:
    x = tf.cast(x, tf.int64)
    return tf.tensordot(x, x, 1)


def worded(x: Any) -> Any:
    return tf.constant("text")


def shape_changing_loop(x: Any) -> Any:
    i = tf.constant(0)
    while i < 2:
        tf.autograph.experimental.set_loop_options(shape_invariants=[(x, tf.TensorShape([None]))])
        x = tf.concat([x, x], 0)
        i += 1
    return tf.reduce_sum(x)


REFUSED: dict[str, tuple[Callable[[Any], Any], str, int | None]] = {
    "unsupported-op": (printing, "Detected unsupported operations", 23),
    "unsupported-type": (worded, "Unsupported data type for TPU: string", 24),
    "constant-size": (counting, "must be a compile-time constant", 27),
    "list-size": (growing, "requires a fixed tensor list size", 29),
    "x64-op": (doubled, "not contain X64 element types", 25),
    "compile": (shape_changing_loop, "XLA", None),
}
