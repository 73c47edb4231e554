"""`tpunb.compare(step, batch, replicas=1)` of steps that draw random numbers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.kinds_of_steps import args_of
from support.steps_with_chance import FEATURES, LOSSES, model_of_features
from support.strategies import strategy_of
from support.tiers import thorough_except

import tpunb
from tpunb.tensorflow.virtual.replicate.without_chance import Examples

EIGHT = 8


@pytest.mark.parametrize(
    "name", thorough_except({"diffusion", "mixup_of_shuffled_examples", "categorical"}, LOSSES)
)
@pytest.mark.parametrize(("power", "factor"), [(1, 1.0), (0, EIGHT), (2, 1 / EIGHT)])
def test_a_step_that_draws(name: str, power: int, factor: float) -> None:
    strategy = strategy_of(EIGHT)
    with strategy.scope():
        model, optimizer = model_of_features(), keras.optimizers.SGD(0.1)

    def step(x: Any, y: Any) -> None:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        with tf.GradientTape() as tape:
            loss = LOSSES[name](model, x, y) / replicas**power
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    comparison = tpunb.compare(step, *args_of(strategy), replicas=1, strategy=strategy)
    assert comparison.factor == factor, comparison


@pytest.mark.parametrize("shape", [[], [3], [3, FEATURES], [5, 3, 2], [24 * 2], [2] * 8])
def test_numbers_depend_on_the_position_among_a_replicas_examples(shape: list[int]) -> None:
    examples = Examples(3, EIGHT)
    one = examples.uniform(tf.constant(shape, tf.int32), 7).numpy()
    assert one.shape == tuple(shape)
    assert (one > 0).all()
    assert (one < 1).all()
    if shape and shape[0] % 3 == 0:
        many = examples.uniform(tf.constant([shape[0] * EIGHT, *shape[1:]]), 7).numpy()
        np.testing.assert_array_equal(many, np.tile(one, [EIGHT] + [1] * (len(shape) - 1)))


def test_numbers_vary() -> None:
    numbers = Examples(4, EIGHT).uniform(tf.constant([4, 1000]), 7).numpy()
    assert len(np.unique(numbers)) > 0.9 * numbers.size
    np.testing.assert_allclose(numbers.mean(1), 0.5, atol=0.05)
    np.testing.assert_allclose(numbers.std(1), 12**-0.5, atol=0.05)
    assert abs(np.corrcoef(numbers)[0, 1:]).max() < 0.1
