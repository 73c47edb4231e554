"""The warning about seeds that a TPU ignores."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import pytest
import tensorflow as tf
from support.strategies import run, strategy_of

from tpunb.errors import TpuWarning
from tpunb.tensorflow.virtual.strict import examination


@pytest.fixture(autouse=True)
def _as_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "_reported", set())


def warnings_of(strategy: Any, *functions: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for function in functions:
            run(strategy, function)
    return [str(each.message) for each in caught if each.category is TpuWarning]


SEEDED = {
    "stateless_uniform": lambda: tf.random.uniform([2], seed=7),
    "stateless_normal": lambda: tf.random.normal([2], seed=7),
    "stateless_truncated_normal": lambda: tf.random.truncated_normal([2], seed=7),
    "stateless_categorical": lambda: tf.random.categorical(tf.ones([1, 3]), 2, seed=7),
    "stateless_dropout": lambda: tf.nn.dropout(tf.ones([4]), 0.5, seed=7),
    "argsort": lambda: tf.random.shuffle(tf.range(4), seed=7),
}


@pytest.mark.parametrize("stateless", SEEDED)
def test_a_seed_of_its_own_is_ignored(stateless: str) -> None:
    strategy = strategy_of(2, strict=True)
    (said,) = warnings_of(strategy, SEEDED[stateless])
    assert said.startswith("A TPU ignores the seed of `tf.")
    assert stateless in said


def test_the_global_seed_is_ignored_and_said_once() -> None:
    tf.random.set_seed(1)
    draw = lambda: tf.random.normal([2])  # noqa: E731
    (said,) = warnings_of(strategy_of(2, strict=True), draw, lambda: tf.random.normal([3]))
    assert "ignores `tf.random.set_seed` in `tf.random.normal`" in said


def test_without_a_seed_nothing_is_said() -> None:
    draws = lambda: tf.random.normal([2]), lambda: tf.nn.dropout(tf.ones([4]), 0.5)
    assert warnings_of(strategy_of(2, strict=True), *draws) == []


def test_seeds_that_hold_are_not_mentioned() -> None:
    strategy = strategy_of(2, strict=True)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layer, generator = keras.layers.Dropout(0.5, seed=1), tf.random.Generator.from_seed(1)
    draws = (
        lambda: tf.random.stateless_uniform([2], seed=[1, 2]),
        lambda: layer(tf.ones([4]), training=True),
        lambda: generator.normal([2]),
    )
    assert warnings_of(strategy, *draws) == []


def test_the_rule_can_be_switched_off() -> None:
    strategy = strategy_of(2, strict={"seed": False})
    assert warnings_of(strategy, SEEDED["stateless_uniform"]) == []
