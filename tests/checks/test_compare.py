"""`tpunb.compare` measures how far a TPU's arithmetic moves a step's results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.bfloat16 import bf, whole_numbers
from support.strategies import copies, each, strategy_of

import tpunb
from tpunb.tensorflow.checks.compare import CompareError, Comparison, Difference

X, W = whole_numbers(4, 16, seed=1), whole_numbers(16, 8, seed=2)
MOVED = float(np.abs(X @ W - bf(X) @ bf(W)).max())


@pytest.fixture(scope="module", params=["cpu", "tpu"])
def strategy(request: pytest.FixtureRequest) -> Any:
    return strategy_of(2, arithmetic=request.param)


def test_each_part_of_a_result(strategy: Any) -> None:
    def step(x: Any, w: Any) -> Any:
        product = tf.matmul(x, w)
        return {"product": product, "parts": (x + 1, tf.argmax(x, axis=1), None)}

    comparison = tpunb.compare(step, X, W, strategy=strategy)
    product, plus, place = comparison.results
    largest = float(np.abs(X @ W).max())
    assert product == Difference("product", "float32", (4, 8), largest, MOVED)
    assert comparison.relative == product.relative == MOVED / largest
    assert (plus.name, plus.absolute) == ("parts[0]", 0)
    assert (place.name, place.dtype, place.absolute) == ("parts[1]", "int64", 0)
    assert not comparison.variables
    assert f"({product.name})" in comparison.headline


def test_the_replica_that_moves_most(strategy: Any) -> None:
    comparison = tpunb.compare(tf.matmul, each(strategy, [X * 0, X]), W, strategy=strategy)
    assert comparison.results[0].absolute == MOVED


def test_changed_variables_are_restored(strategy: Any) -> None:
    with strategy.scope():
        weights = tf.Variable(tf.ones([4, 8]), name="weights")
        steps = tf.Variable(
            0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
            name="steps",
        )
        tf.Variable(1.0, name="unused")

    def step(x: Any) -> None:
        weights.assign_add(tf.matmul(x, W))
        steps.assign_add(1)

    comparison = tpunb.compare(step, X, strategy=strategy)
    assert not comparison.results
    moved = {difference.name: difference.absolute for difference in comparison.variables}
    assert moved == {"weights": MOVED, "steps": 0}
    np.testing.assert_array_equal(copies(weights), np.ones([2, 4, 8]))
    assert copies(steps) == [0, 0]


def test_a_failing_step_restores_the_variables(strategy: Any) -> None:
    with strategy.scope():
        steps = tf.Variable(1)

    def step(x: Any) -> None:
        with tf.control_dependencies([steps.assign_add(1)]):
            tf.debugging.assert_greater(tf.cast(steps, tf.float32), x)

    with pytest.raises(tf.errors.InvalidArgumentError):
        tpunb.compare(step, tf.constant(100.0), strategy=strategy)
    assert steps.numpy() == 1


def test_a_function_that_has_already_run_the_replicas(strategy: Any) -> None:
    @tf.function
    def train(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(tf.matmul, args=(x, W)), axis=None)

    train(tf.constant(X))
    for _ in range(2):
        comparison = tpunb.compare(lambda x: {"sum": train(x)}, X, strategy=strategy)
        assert comparison.results[0].absolute == 2 * MOVED


def test_both_runs_draw_the_same_random_numbers(strategy: Any) -> None:
    comparison = tpunb.compare(lambda: tf.random.uniform([100]), strategy=strategy)
    assert comparison.results[0].absolute == 0
    assert comparison.headline == "A TPU's arithmetic changes nothing here."


def test_a_dataset_stands_for_its_first_batch(strategy: Any) -> None:
    batches = tf.data.Dataset.from_tensor_slices(np.concatenate([X, X])).batch(8)
    comparison = tpunb.compare(lambda x: tf.matmul(x, W), batches, strategy=strategy)
    assert comparison.results[0].shape == (4, 8)
    assert comparison.results[0].absolute == MOVED
    with pytest.raises(CompareError, match="another batch"):
        tpunb.compare(tf.identity, iter(batches), strategy=strategy)


def test_results_that_are_not_numbers() -> None:
    difference = Difference("x", "float32", (), 0.0, 0.5)
    assert difference.relative == math.inf
    comparison = Comparison((Difference("x", "float32", (), 1.0, math.nan), difference), ())
    assert math.isnan(comparison.relative)
    assert "nan (x)" in comparison.headline


def test_html_escapes_names() -> None:
    many = [Difference(f"<b>{n}</b>", "float32", (2,), 2.0, 0.25) for n in range(100)]
    text, page = str(Comparison(tuple(many), ())), Comparison(tuple(many), ())._repr_html_()
    assert "by up to 12% (<b>0</b>)" in text
    assert "<b>0</b>" not in page
    assert "&lt;b&gt;0&lt;/b&gt;" in page
    for shown in (text, page):
        assert "and 60 more" in shown
        assert "float32 [2]" in shown


def test_it_requires_a_virtual_tpu() -> None:
    for other in (tf.distribute.get_strategy(), tf.distribute.OneDeviceStrategy("/CPU:0")):
        with pytest.raises(CompareError) as raised:
            tpunb.compare(tf.identity, 1.0, strategy=other)
        assert "tpunb.connect" in raised.value.fix
