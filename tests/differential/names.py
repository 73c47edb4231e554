"""Inputs, helpers and functions that both ways to run a program share."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from differential.generator import Program


def common(program: Program) -> dict[str, Any]:
    """The names that a program can use however it runs."""
    return {
        "tf": tf,
        "replicas": program.replicas,
        "bounded": bounded,
        "convolved": convolved,
        "pooled": pooled,
        "repeated": repeated,
        "inputs": lambda number: inputs(program, number),
        "shared": tf.constant([0.75, -0.5, 0.25], tf.float64),
    }


def start_of(number: int) -> Any:
    """The initial value of a variable."""
    return np.array([0.5, -0.25, 0.125]) * (number + 1)


def inputs(program: Program, number: int) -> list[tuple[Any, ...]]:
    """Each replica's arguments in a call: a batch, a vector, a scalar and the call's number."""
    rng = np.random.default_rng(number)
    return [
        (
            tf.constant(rng.normal(size=(rows, 3)).round(3)),
            tf.constant(rng.normal(size=3).round(3)),
            tf.constant(rng.normal().__round__(3), tf.float64),
            tf.constant(number),
        )
        for rows in program.rows
    ]


def compiled(program: Program, names: dict[str, Any]) -> dict[str, Any]:
    """The functions of a program, compiled so that AutoGraph finds their source."""
    path = f"<program {hashlib.sha1(program.source.encode()).hexdigest()}>"
    lines = program.source.splitlines(keepends=True)
    linecache.cache[path] = (len(program.source), None, lines, path)
    exec(compile(program.source, path, "exec"), names)
    return {name: names[name] for name in set(program.calls)}


def bounded(x: Any) -> Any:
    """Keep numbers small, so that rounding cannot make the two ways drift apart.

    The gradient of a gather has a form without arithmetic (`IndexedSlices`), so it becomes a tensor.
    """
    return 3.0 * tf.tanh(tf.convert_to_tensor(x) / 3.0)


def repeated(times: Any, body: Callable[[Any], Any], start: Any) -> Any:
    """A loop of TensorFlow's."""
    return tf.while_loop(
        lambda n, _: n < times, lambda n, x: (n + 1, body(x)), (tf.constant(0), start)
    )[1]


def convolved(x: Any) -> Any:
    """A convolution with a bias over each row."""
    image = tf.reshape(tf.cast(x, tf.float32), [-1, 3, 1, 1])
    kernel = tf.reshape(tf.constant([0.5, -0.25, 0.125]), [3, 1, 1, 1])
    result = tf.nn.bias_add(tf.nn.conv2d(image, kernel, 1, "SAME"), [0.1])
    return tf.cast(tf.reshape(result, [-1, 3]), tf.float64)


def pooled(x: Any) -> Any:
    """The maximum of neighbouring elements in each row."""
    image = tf.reshape(tf.cast(x, tf.float32), [-1, 3, 1, 1])
    result = tf.nn.max_pool2d(image, [2, 1], 1, "SAME")
    return tf.cast(tf.reshape(result, [-1, 3]), tf.float64)
