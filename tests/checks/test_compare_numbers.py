"""`tpunb.compare(step, batch, replicas=1)` of steps whose numbers may be the number of replicas."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.kinds_of_steps import args_of, dense_model
from support.strategies import strategy_of
from support.tiers import thorough

from tpunb.checks.compare import compared_with_one

EIGHT = 8
N, M = EIGHT, EIGHT
NEGATIVE = -EIGHT
SHARE = 0.03125
CORES = list(range(EIGHT))
CONFIG = {"n": EIGHT}
EIGHTS = np.full([2], float(EIGHT), np.float32)
STEPS = 125 * EIGHT


def _while(loss: Any) -> Any:
    turn = tf.constant(0)
    while turn < 1:
        tf.autograph.experimental.set_loop_options(maximum_iterations=2)
        loss = loss / N
        turn += 1
    return loss


def _literal_in_a_while(loss: Any) -> Any:
    turn = tf.constant(0)
    while turn < 1:
        tf.autograph.experimental.set_loop_options(maximum_iterations=2)
        loss = loss / 8
        turn += 1
    return loss


class Settings:
    replicas = EIGHT


def _by(settings: Any, loss: Any) -> Any:
    return loss / settings.replicas


def _divided(loss: Any, by: int) -> Any:
    return loss / by


def _either(loss: Any) -> Any:
    return loss / max(N, M)


def _noise(loss: Any) -> Any:
    time = tf.random.uniform([4], 0, STEPS, tf.int32)
    return loss * (1 + tf.reduce_mean(tf.cast(time, tf.float32) / STEPS))


def _replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def _compared(scaled: Callable[[Any], Any], say: Callable[[str], object] = id) -> Any:
    strategy = strategy_of(EIGHT)
    with strategy.scope():
        model, optimizer = dense_model(), keras.optimizers.SGD(0.1)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = scaled(tf.reduce_mean(tf.square(model(x, training=True) - y)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return compared_with_one(step, args_of(strategy), strategy, say=say)


@pytest.mark.parametrize(
    ("scaled", "text"),
    [
        (_while, "N"),
        (_literal_in_a_while, "8"),
        (_either, "N"),
        (lambda loss: tf.reduce_sum(loss / tf.constant([8.0, 8.0])) / 2, "8"),
        (lambda loss: tf.reduce_mean(loss / np.array([8, 8])), "8"),
        (lambda loss: tf.reduce_mean(loss / EIGHTS), "EIGHTS"),
        (lambda loss: loss / NEGATIVE * -1, "NEGATIVE"),
        (lambda loss: loss / Settings.replicas, "Settings.replicas"),
        (lambda loss: _by(Settings, loss), "8"),
        (lambda loss: loss / len(CORES), "8"),
        (lambda loss: loss / (2 * len(CORES)), "16"),
        (lambda loss: loss / CONFIG.get("n"), "8"),
        (lambda loss: loss / CONFIG.get("n") + 0.0 * N, "8"),
        (lambda loss: loss / -8 * -1, "-8"),
        (lambda loss: keras.ops.divide(loss, 8), "8"),
        (lambda loss: loss * tf.fill([1], 0.125)[0], "0.125"),
        (functools.partial(_divided, by=8), "8"),
        (lambda loss: loss * SHARE, "SHARE"),
    ],
)
def test_it_may_be_the_number_of_replicas(scaled: Callable[[Any], Any], text: str) -> None:
    comparison = _compared(scaled)
    assert comparison.ok is None, comparison
    assert f"`{text}` on line" in comparison.note


@pytest.mark.parametrize(
    ("scaled", "factor"),
    [
        (_noise, EIGHT),
        (lambda loss: _noise(loss) / _replicas(), 1.0),
        (lambda loss: loss / _replicas() + 0.0 * N * M, 1.0),
        (lambda loss: loss / 1000, EIGHT),
        *thorough([(lambda loss: 0.001 * loss, EIGHT), (lambda loss: 0.05 * loss, EIGHT)]),
        *thorough([(lambda loss: loss * 0.03125, EIGHT), (lambda loss: loss / 24, EIGHT)]),
        *thorough([(lambda loss: tf.reduce_mean(tf.reshape(loss, [1, 1])), EIGHT)]),
    ],
)
def test_it_is_another_number(scaled: Callable[[Any], Any], factor: float) -> None:
    comparison = _compared(scaled)
    assert comparison.factor == factor, comparison


def test_it_says_what_it_computes() -> None:
    phases: list[str] = []
    assert _compared(_noise, phases.append).factor == EIGHT
    assert phases == [
        "computing the gradients on 8 replicas",
        "computing the gradients on one replica",
        "measuring the update of the weights",
        "computing the gradients of the batch itself",
        "trying STEPS = 125 on one replica",
    ]
