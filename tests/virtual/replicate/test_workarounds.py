"""Right results where TensorFlow's optimizer, or a CPU kernel, is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import all_reduce, strategy_of

X = np.array([[-3.0, -0.5, 0.0, 0.5, 7.0]] * 4, np.float32) * [[1], [-1], [2], [0.5]]
REPLICAS = len(X)


def in_loop(x: Any) -> Any:
    return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, tf.maximum(y, 3.0 * y)), [0, x])[
        1
    ]


MAXIMA: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "of twice": (lambda x: tf.maximum(x, 2.0 * x), lambda x: np.maximum(x, 2 * x)),
    "of half": (lambda x: tf.maximum(x, x * 0.5), lambda x: np.maximum(x, x / 2)),
    "of twice, first": (lambda x: tf.maximum(x * 2.0, x), lambda x: np.maximum(x, 2 * x)),
    "of a sum of constants": (
        lambda x: tf.maximum(x, (tf.constant(1.0) + 1.5) * x),
        lambda x: np.maximum(x, 2.5 * x),
    ),
    "of a cast constant": (
        lambda x: tf.maximum(x, tf.cast(tf.constant(3), tf.float32) * x),
        lambda x: np.maximum(x, 3 * x),
    ),
    "of a repeated expression": (
        lambda x: tf.maximum(tf.sin(x), 2.0 * tf.sin(x)),
        lambda x: np.maximum(np.sin(x), 2 * np.sin(x)),
    ),
    "in a loop": (in_loop, lambda x: np.where(x > 0, 9 * x, x)),
    "in a branch": (
        lambda x: tf.cond(tf.reduce_sum(x) < 1e3, lambda: tf.maximum(x, 2.0 * x), lambda: x),
        lambda x: np.maximum(x, 2 * x),
    ),
    "summed": (
        lambda x: all_reduce(tf.maximum(x, 2.0 * x)),
        lambda x: np.broadcast_to(np.maximum(X, 2 * X).sum(0), x.shape),
    ),
    "of several factors": (
        lambda x: tf.maximum(x, tf.constant([2.0, 0.5, 1.0, 3.0, 0.0]) * x),
        lambda x: np.maximum(x, [2.0, 0.5, 1.0, 3.0, 0.0] * x),
    ),
}


PLACES: dict[str, Callable[[Any], Any]] = {
    "of tanh": lambda x: tf.argmax(tf.tanh(20.0 * x), axis=-1),
    "of exp": lambda x: tf.argmax(tf.exp(200.0 * x), axis=-1),
    "of a relu": lambda x: tf.argmin(tf.nn.relu(x), axis=-1),
    "of a relu6": lambda x: tf.argmax(tf.nn.relu6(20.0 * x), axis=-1),
    "of floor": lambda x: tf.argmin(tf.floor(0.1 * x), axis=-1),
    "of a sign": lambda x: tf.argmax(tf.sign(tf.identity(x)), axis=-1),
    "in a branch": lambda x: tf.cond(
        tf.reduce_sum(x) < 1e3,
        lambda: tf.argmin(tf.nn.relu(x), axis=-1),
        lambda: tf.constant(0, tf.int64),
    ),
}


def on_replicas(function: Callable[[Any], Any], joined: bool) -> Any:
    """Return a function's results for the rows of X, from a replica for each row."""
    strategy = strategy_of(REPLICAS, joined=joined)

    @tf.function
    def run(rows: Any) -> Any:
        parts = strategy.experimental_distribute_values_from_function(
            lambda context: rows[context.replica_id_in_sync_group]
        )
        return strategy.experimental_local_results(strategy.run(function, args=(parts,)))

    return np.stack(run(tf.constant(X, tf.float32)))


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("joined", [True, False], ids=["joined", "separate"])
def test_argmax_gives_the_first_of_equal_elements(name: str, joined: bool) -> None:
    """TensorFlow's optimizer turns `argmax(tanh(x))` into `argmax(x)`; eager kernels do not."""
    expected = np.stack([PLACES[name](tf.constant(row, tf.float32)) for row in X])
    np.testing.assert_array_equal(on_replicas(PLACES[name], joined), expected)


@pytest.mark.parametrize("name", MAXIMA)
@pytest.mark.parametrize("joined", [True, False], ids=["joined", "separate"])
def test_a_maximum_is_not_a_leaky_relu(name: str, joined: bool) -> None:
    """TensorFlow's optimizer turns `maximum(x, 2x)` into a LeakyRelu, which gives the minimum."""
    function, expected = MAXIMA[name]
    np.testing.assert_allclose(on_replicas(function, joined), expected(X), rtol=1e-6)
