"""`tpunb.compare(step, batch, replicas=1)` of steps in bfloat16, which computes in float32."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.strategies import each, strategy_of
from support.tiers import thorough

import tpunb

EIGHT = 8


def convolutions(dtype: str) -> Any:
    layers = [
        keras.layers.Conv2D(4, 3, padding="same", activation="relu", dtype=dtype) for _ in range(5)
    ]
    ends = [keras.layers.GlobalAveragePooling2D(dtype=dtype), keras.layers.Dense(1, dtype=dtype)]
    return keras.Sequential([keras.layers.Input([16, 16, 3]), *layers, *ends])


@pytest.mark.parametrize(("power", "factor"), [(1, 1.0), *thorough([(0, EIGHT), (2, 1 / EIGHT)])])
@pytest.mark.parametrize("seed", [0, *thorough([1, 2])])
def test_convolutions(seed: int, power: int, factor: float) -> None:
    keras.utils.set_random_seed(seed)
    strategy = strategy_of(EIGHT)
    with strategy.scope():
        model, optimizer = convolutions("mixed_bfloat16"), keras.optimizers.SGD(0.1)

    def step(x: Any) -> Any:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        with tf.GradientTape() as tape:
            values = model(x, training=True)
            if tf.reduce_sum(values) != 7:  # a branch that computes in bfloat16
                values = values * tf.constant(2, tf.bfloat16)
            loss = tf.reduce_mean(tf.square(values - 1)) / replicas**power
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    rows = np.random.default_rng(seed).normal(size=[EIGHT, 3, 16, 16, 3]).astype("float32")
    comparison = tpunb.compare(step, each(strategy, list(rows)), replicas=1, strategy=strategy)
    assert comparison.factor == factor, comparison
    scales = [gradient.scale for gradient in comparison.gradients]
    np.testing.assert_allclose(scales, factor, rtol=1e-3)


def test_variables_in_bfloat16_keep_their_type() -> None:
    strategy = strategy_of(EIGHT)
    with strategy.scope():
        weights = tf.Variable(tf.ones([4, 1], tf.bfloat16))

    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.cast(tf.matmul(tf.cast(x, tf.bfloat16), weights), tf.float32))
        gradient = tape.gradient(loss, weights)
        total = tf.distribute.get_replica_context().all_reduce("sum", gradient)
        weights.assign_sub(tf.cast(0.1, tf.bfloat16) * total)

    x = each(strategy, [np.full([3, 4], 1 + n % 3, np.float32) for n in range(EIGHT)])
    comparison = tpunb.compare(step, x, replicas=1, strategy=strategy)
    assert comparison.factor == EIGHT, comparison
