"""Training with a TPU's arithmetic: the weights of plain TensorFlow with the casts by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import strategy_of
from support.tiers import thorough

keras = pytest.importorskip("keras")
tf_keras = pytest.importorskip("tf_keras")

BATCH, STEPS, RATE = 32, 20, 0.05
TOLERANCE = {"rtol": 0, "atol": 1e-5}


def rounded(x: Any) -> Any:
    return tf.cast(tf.cast(x, tf.bfloat16), tf.float32)


def by_hand(product: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A product whose factors are cast, and those of its gradients."""

    @tf.custom_gradient
    def cast(x: Any, w: Any) -> Any:
        x, w = rounded(x), rounded(w)

        def gradient(g: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch([x, w])
                result = product(x, w)
            return tape.gradient(result, [x, w], rounded(g))

        return product(x, w), gradient

    return cast


CONVOLVE = by_hand(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"))
MULTIPLY = by_hand(tf.matmul)


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=[BATCH * STEPS, 6, 6, 2]).astype(np.float32)
    return x, (x.sum(axis=(1, 2, 3)) > 0).astype(np.int32)


def network(api: Any) -> Any:
    api.utils.set_random_seed(3)
    return api.Sequential(
        [
            api.layers.InputLayer((6, 6, 2)),
            api.layers.Conv2D(4, 3, padding="same", activation="tanh"),
            api.layers.Flatten(),
            api.layers.Dense(16, activation="relu"),
            api.layers.Dense(2),
        ]
    )


def plain_training(weights: list[np.ndarray], *, casts: bool) -> list[np.ndarray]:
    """Twenty steps of the network in plain TensorFlow, on one device."""
    convolve, multiply = (
        (CONVOLVE, MULTIPLY) if casts else (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), tf.matmul)
    )
    variables = [tf.Variable(weight) for weight in weights]
    filters, filter_bias, dense, dense_bias, last, last_bias = variables

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            h = tf.tanh(convolve(x, filters) + filter_bias)
            h = tf.nn.relu(multiply(tf.reshape(h, [BATCH, -1]), dense) + dense_bias)
            logits = multiply(h, last) + last_bias
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(RATE * gradient)

    for x, y in tf.data.Dataset.from_tensor_slices(data()).batch(BATCH):
        step(x, y)
    return [variable.numpy() for variable in variables]


@pytest.mark.parametrize(
    ("api", "steps_per_execution"),
    [(keras, 1), (keras, 5), *thorough([(tf_keras, 5)])],
    ids=["Keras 3", "Keras 3 with loops", "tf_keras with loops"],
)
def test_fit_is_plain_tensorflow_with_casts(api: Any, steps_per_execution: int) -> None:
    strategy = strategy_of(4, arithmetic="tpu")
    with strategy.scope():
        model = network(api)
        model.compile(
            api.optimizers.SGD(RATE),
            api.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=steps_per_execution,
        )
    start = [variable.numpy() for variable in model.trainable_variables]
    batches = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH, drop_remainder=True)
    model.fit(batches, verbose=0, shuffle=False)
    found = [variable.numpy() for variable in model.trainable_variables]
    wanted, exact = (plain_training(start, casts=casts) for casts in (True, False))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, **TOLERANCE)
    furthest = max(np.abs(one - other).max() for one, other in zip(found, exact, strict=True))
    assert furthest > 10 * TOLERANCE["atol"]
