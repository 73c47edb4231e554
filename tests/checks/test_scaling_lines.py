"""`tpunb.compare(step, batch, replicas=1)` of steps that scale by a number of their own."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.kinds_of_steps import args_of, dense_model
from support.strategies import strategy_of
from support.tiers import thorough

from tpunb.tensorflow.checks.compare import compared_with_one

EIGHT = 8
N = EIGHT
NEGATIVE = -EIGHT
CORES = list(range(EIGHT))
CONFIG = {"n": EIGHT}
EIGHTS = np.full([2], float(EIGHT), np.float32)


def _while(loss: Any) -> Any:
    turn = tf.constant(0)
    while turn < 1:
        tf.autograph.experimental.set_loop_options(maximum_iterations=2)
        loss = loss / N
        turn += 1
    return loss


class Settings:
    replicas = EIGHT


def _by(settings: Any, loss: Any) -> Any:
    return loss / settings.replicas


def _divided(loss: Any, by: int) -> Any:
    return loss / by


def _noise(loss: Any) -> Any:
    time = tf.random.uniform([4], 0, 1000, tf.int32)
    return loss * (1 + tf.reduce_mean(tf.cast(time, tf.float32) / 1000))


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
    ("scaled", "code"),
    [
        (_while, "loss = loss / N"),
        (lambda loss: tf.reduce_mean(loss / EIGHTS), "/ EIGHTS"),
        (lambda loss: loss / NEGATIVE * -1, "/ NEGATIVE"),
        (functools.partial(_by, Settings), "settings.replicas"),
        (lambda loss: loss / len(CORES), "len(CORES)"),
        (lambda loss: loss / CONFIG.get("n"), "CONFIG.get"),
        (lambda loss: keras.ops.divide(loss, 8), "keras.ops.divide"),
        *thorough([(lambda loss: loss * tf.fill([1], 0.125)[0], "0.125")]),
        *thorough([(functools.partial(_divided, by=8), "loss / by")]),
    ],
)
def test_a_division_by_a_number_eight_has_its_line(scaled: Callable[[Any], Any], code: str) -> None:
    comparison = _compared(scaled)
    assert comparison.factor == EIGHT, comparison
    [place] = comparison.numbers
    assert place.file == __file__
    assert code in linecache.getline(__file__, place.line)
    assert f"(line {place.line})" in comparison.headline


@pytest.mark.parametrize(
    ("scaled", "factor"),
    [
        (_noise, EIGHT),
        (lambda loss: _noise(loss) / _replicas(), 1.0),
        (lambda loss: loss / _replicas() + 0.0 * N, 1.0),
        (lambda loss: loss / 1000, EIGHT),
        *thorough([(lambda loss: loss / 2 / 4, EIGHT), (lambda loss: loss / 24, EIGHT)]),
        # The single replica runs the hidden 8 too: what is equal are the two runs.
        (lambda loss: loss / 2 / 4 / _replicas(), 1.0),
    ],
)
def test_the_scale_is_reported_as_it_is(scaled: Callable[[Any], Any], factor: float) -> None:
    comparison = _compared(scaled)
    assert comparison.factor == factor, comparison
    assert not comparison.numbers
    assert "the same step on 1 replica" in comparison.headline


def test_it_says_what_it_computes() -> None:
    phases: list[str] = []
    assert _compared(_noise, phases.append).factor == EIGHT
    assert phases == [
        "computing the gradients on 8 replicas",
        "computing the gradients on one replica",
        "measuring the update of the weights",
        "computing the gradients of the batch itself",
    ]
