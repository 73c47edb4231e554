"""Claims about numbers: those of plain TensorFlow on one CPU, to a tolerance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tpunb.verification.bench import Bench
from tpunb.verification.claims import Claims
from tpunb.verification.observation import Observation
from tpunb.verification.observing import close

__all__ = ["NUMBERS", "OPERATIONS"]

_SHAPE = (8, 8, 4)


def _product(x: Any) -> Any:
    import tensorflow as tf

    return tf.matmul(x, x, transpose_b=True)


def _convolution(x: Any) -> Any:
    import tensorflow as tf

    kernel = tf.reshape(tf.linspace(-1.0, 1.0, 3 * 3 * 4 * 2), [3, 3, 4, 2])
    return tf.nn.conv2d(x[None], kernel, 1, "SAME")


def _gradient(x: Any) -> Any:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.tanh(tf.matmul(x, x, transpose_b=True)))
    return tape.gradient(loss, x)


def _functions(x: Any) -> Any:
    import tensorflow as tf

    return tf.exp(x) + tf.math.log1p(tf.abs(x)) + tf.tanh(x) + tf.math.erf(x) + tf.sqrt(tf.abs(x))


def _softmax(x: Any) -> Any:
    import tensorflow as tf

    return tf.nn.softmax(x) + tf.nn.log_softmax(x)


def _normalised(x: Any) -> Any:
    import tensorflow as tf

    mean, variance = tf.nn.moments(x, [0, 1])
    return tf.nn.batch_normalization(x, mean, variance, 0.1, 2.0, 1e-3)


def _sorted(x: Any) -> Any:
    import tensorflow as tf

    return tf.sort(x) + tf.cast(tf.argsort(x), tf.float32) + tf.math.top_k(x, 4).values


def _moved(x: Any) -> Any:
    import tensorflow as tf

    rows = tf.gather(x, [3, 1, 0, 2, 7, 6, 5, 4])
    turned = tf.transpose(tf.reverse(rows, [1]), [1, 0, 2])
    return tf.tensor_scatter_nd_add(turned, [[0], [5]], tf.ones([2, 8, 4]))


def _added_up(x: Any) -> Any:
    import tensorflow as tf

    return tf.cumsum(x) + tf.reduce_sum(x, keepdims=True) + tf.reduce_max(x, 0)


def _looped(x: Any) -> Any:
    import tensorflow as tf

    for i in tf.range(5):
        x = tf.where(x > 0.0, x * 0.5, x + tf.cast(i, tf.float32))
    return x


OPERATIONS: Mapping[str, tuple[Callable[[Any], Any], bool]] = MappingProxyType(
    {
        "matrix product": (_product, True),
        "convolution": (_convolution, True),
        "gradient": (_gradient, True),
        "functions": (_functions, False),
        "softmax": (_softmax, False),
        "normalisation": (_normalised, False),
        "sorting": (_sorted, False),
        "gather, transpose, scatter": (_moved, False),
        "sums": (_added_up, False),
        "a loop": (_looped, False),
    }
)
"""Functions of float32[8, 8, 4], and whether matrix products are part of them."""

NUMBERS = Claims("numbers")


def _inputs(bench: Bench) -> np.ndarray:
    """The input of each replica."""
    shape = (bench.replicas, *_SHAPE)
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _same(function: Callable[[Any], Any], *, products: bool) -> Callable[[Bench], Observation]:
    def observe(bench: Bench) -> Observation:
        import tensorflow as tf

        inputs = _inputs(bench)
        with tf.device("/CPU:0"):
            plain = tf.function(function)
            expected = [plain(tf.constant(values)).numpy() for values in inputs]
        found = bench.run(function, bench.each(inputs))
        return close(expected, found, bench.tolerance(products=products))

    return observe


for _name, (_function, _products) in OPERATIONS.items():
    NUMBERS.claim(_name, "every replica computes what TensorFlow computes on a CPU")(
        _same(_function, products=_products)
    )
