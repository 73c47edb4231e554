"""`tpunb.compare(step, batch, replicas=1)`: does the loss need a division by the replica count?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.kinds_of_steps import FEATURES, KINDS, args_of, batch, dense_model
from support.strategies import each, strategy_of
from support.tiers import thorough, thorough_except

import tpunb
from tpunb.errors.code_problems import SourceLine
from tpunb.tensorflow.checks import trial_run
from tpunb.tensorflow.checks.compare import CompareError
from tpunb.tensorflow.checks.replica_comparison import (
    GradientScale,
    ReplicaComparison,
    UndividedLossError,
)

EIGHT = 8
ALWAYS = {"adam", "divided_by_a_python_number"}
DIVIDED_BY_A_NUMBER = {
    "divided_by_a_cast_number": True,
    "divided_by_a_python_number": True,
    "divided_by_a_tensor": False,
    "gradients_divided": True,
    "pixels_divided_by_a_python_number": True,
    "two_divisions_by_python_numbers": True,
}
"""Correct steps that divide by a number 8, on one replica too, and whether its line is known."""


@pytest.fixture(scope="module")
def eight() -> Any:
    return strategy_of(EIGHT)


def compared(strategy: Any, step: Any, *args: Any) -> ReplicaComparison:
    comparison = tpunb.compare(step, *args, replicas=1, strategy=strategy)
    assert isinstance(comparison, ReplicaComparison)
    return comparison


@functools.cache  # each takes a second
def verdict(strategy: Any, name: str, *, wrong: bool) -> ReplicaComparison:
    step, args = KINDS[name](strategy, wrong)
    return compared(strategy, step, *args)


ALL = thorough_except(ALWAYS, KINDS)


@pytest.mark.parametrize("name", ALL)
def test_a_correct_step_gives_no_alarm(eight: Any, name: str) -> None:
    comparison = verdict(eight, name, wrong=False)
    if name in DIVIDED_BY_A_NUMBER:
        assert comparison.factor == EIGHT, comparison
        assert bool(comparison.numbers) == DIVIDED_BY_A_NUMBER[name]
        assert "or a number in your code stands for it" in comparison.headline
        return
    if name == "l2_in_the_loss":  # divides by the number of replicas, which the replicas know
        assert comparison.ok is None
        return
    assert comparison.factor == 1.0, comparison
    assert not comparison.problem
    assert comparison.headline.startswith("On 8 replicas, the gradients")


@pytest.mark.parametrize("name", ALL)
def test_the_classic_mistake_is_found(eight: Any, name: str) -> None:
    comparison = verdict(eight, name, wrong=True)
    assert comparison.factor == EIGHT, comparison
    assert "8.0 times those of the same step on 1 replica" in comparison.headline
    assert "not divided by the number of replicas" in comparison.headline


@pytest.mark.parametrize("replicas", [2, *thorough([32])])
@pytest.mark.parametrize("name", ["sgd", *thorough(["adam"])])
def test_other_numbers_of_replicas(replicas: int, name: str) -> None:
    strategy = strategy_of(replicas)
    right, wrong = (verdict(strategy, name, wrong=wrong) for wrong in (False, True))
    assert right.ok
    assert wrong.factor == replicas, wrong


def test_a_number_that_scales_nothing(eight: Any, model: Any) -> None:
    def loss(error: Any, _: Any) -> Any:
        steps = tf.tile(error[:, None], [1, 8, 1])
        return tf.reduce_mean(tf.reduce_mean(steps, axis=1)) + 0.0 * EIGHT

    with eight.scope():
        wrong = step_of(model, loss)
        right = step_of(model, lambda error, model: loss(error, model) / _replicas())
    assert compared(eight, right, *args_of(eight)).factor == 1.0
    assert compared(eight, wrong, *args_of(eight)).factor == EIGHT


def test_batch_statistics_of_a_replica_are_measured(eight: Any) -> None:
    comparison = verdict(eight, "batch_norm", wrong=False)
    assert comparison.difference is not None
    assert comparison.difference > 0.01
    assert "because each replica computes statistics" in comparison.headline
    assert all(gradient.scale == pytest.approx(1, rel=1e-3) for gradient in comparison.gradients)


@pytest.fixture
def model(eight: Any) -> Any:
    with eight.scope():
        return dense_model()


def step_of(model: Any, loss: Callable[[Any, Any], Any], optimizer: Any = None) -> Any:
    optimizer = optimizer or keras.optimizers.SGD(0.1)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            value = loss(tf.square(model(x, training=True) - y), model)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return step


def _l2(model: Any) -> Any:
    return tf.add_n([tf.nn.l2_loss(weights) for weights in model.trainable_variables])


def _replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            lambda error, model: tf.reduce_mean(error) / _replicas() + _l2(model),
            "do not differ by a factor. A part of the loss, such as a regularization",
        ),
        (lambda error, _: 0.0 * tf.reduce_mean(error), "All gradients are zero."),
        (lambda error, _: tf.reduce_mean(error) * float("nan"), "not finite"),
        (lambda error, _: tf.reduce_mean(tf.reshape(error, [3])), "does not run on one replica"),
    ],
)
def test_uncertain_verdicts(eight: Any, model: Any, loss: Any, message: str) -> None:
    with eight.scope():
        step = step_of(model, loss)
    comparison = compared(eight, step, *args_of(eight))
    assert comparison.ok is None
    assert message in str(comparison)
    comparison.raise_if_wrong()


@pytest.mark.parametrize(
    ("loss", "factor"),
    [
        (lambda error, _: tf.reduce_sum(error), 1.0),
        (lambda error, _: tf.reduce_mean(error) / _replicas() ** 2, 1 / EIGHT),
        (lambda error, _: 0.5 * tf.reduce_mean(error), EIGHT),
        (lambda error, _: tf.reduce_sum(error) / 3, 1.0),
        (lambda error, _: tf.reduce_mean(error) / 24, EIGHT),
    ],
)
def test_other_scales(eight: Any, model: Any, loss: Any, factor: float) -> None:
    with eight.scope():
        step = step_of(model, loss)
    assert compared(eight, step, *args_of(eight)).factor == factor


def test_without_gradients(eight: Any, model: Any) -> None:
    comparison = compared(eight, lambda x, y: tf.reduce_mean(model(x) - y), *args_of(eight))
    assert comparison.ok is None
    assert "No tf.GradientTape" in comparison.headline


def test_replicas_that_do_not_communicate(eight: Any) -> None:
    with eight.scope():
        w = tf.Variable(tf.ones([FEATURES, 1]))

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y))
        w.assign_sub(tape.gradient(loss, w))

    assert "different weights" in compared(eight, step, *args_of(eight)).headline


def test_an_update_by_signs(eight: Any) -> None:
    with eight.scope():
        w = tf.Variable(tf.ones([FEATURES, 1]))

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y))
        total = tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, w))
        w.assign_sub(0.1 * tf.sign(total))

    comparison = compared(eight, step, *args_of(eight))
    assert comparison.ok
    assert "does not depend on the scale" in comparison.headline


def test_the_arguments_of_each_replica(eight: Any, model: Any) -> None:
    """Without per-replica values, every replica takes the whole arrays."""
    with eight.scope():
        right = step_of(model, lambda error, _: tf.nn.compute_average_loss(error[:, 0]))
        wrong = step_of(model, lambda error, _: tf.reduce_mean(error))
    x, y = np.ones([4, FEATURES], np.float32), np.zeros([4, 1], np.float32)
    assert compared(eight, right, x, y).factor == 1.0
    assert compared(eight, wrong, x, y).factor == EIGHT


def test_a_dataset_and_branches_over_tensors(eight: Any, model: Any) -> None:
    def loss(error: Any, _: Any) -> Any:
        value = tf.reduce_mean(error)
        if value > 0.0:
            value = tf.identity(value)
        return value

    with eight.scope():
        inner = step_of(model, loss)
    comparison = compared(eight, lambda pair: inner(*pair), batch(EIGHT))
    assert comparison.factor == EIGHT
    with pytest.raises(CompareError, match="another batch"):
        compared(eight, inner, iter(batch(EIGHT)))
    assert "takes no batch" in compared(eight, lambda: None).headline


class Failure(Exception):
    """An error in the user's code."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, *thorough([None, Failure])])
def test_the_users_state_does_not_change(
    eight: Any, error: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with eight.scope():
        model, optimizer = dense_model(), keras.optimizers.Adam(0.1)
        steps = tf.Variable(7, dtype=tf.int64)
        total = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        noise = tf.random.Generator.from_seed(5)
    inner = step_of(model, lambda value, _: tf.reduce_mean(value), optimizer)

    def step(x: Any, y: Any) -> None:
        inner(x + noise.normal(tf.shape(x)), y)
        steps.assign_add(1)
        total.assign_add(tf.reduce_sum(x))

    variables = [*model.variables, *optimizer.variables, steps, total, noise.state]
    before = [np.array(variable.numpy()) for variable in variables]
    original_run = trial_run.TrialRun._run
    runs = []

    def failing(self: Any, arguments: Any) -> None:
        original_run(self, arguments)
        runs.append(self.trial.replicas)
        if error is not None and len(runs) == 3:
            raise error

    monkeypatch.setattr(trial_run.TrialRun, "_run", failing)
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            compared(eight, step, *args_of(eight))
    else:
        assert compared(eight, step, *args_of(eight)).ok is (None if error else False)
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert not optimizer.built
    assert int(eight.num_replicas_in_sync) == EIGHT
    eight.run(tf.function(step), args=args_of(eight))
    assert steps.numpy() == 8


def test_an_error_of_the_step(eight: Any) -> None:
    def step(x: Any) -> None:
        raise Failure

    with pytest.raises(Failure):
        compared(eight, step, each(eight, [np.float32(n) for n in range(EIGHT)]))
    assert eight.num_replicas_in_sync == EIGHT


def test_it_requires_several_replicas() -> None:
    for strategy, message in (
        (tf.distribute.get_strategy(), "tpunb.connect"),
        (strategy_of(1), "several cores"),
    ):
        with pytest.raises(CompareError) as raised:
            compared(strategy, tf.identity, 1.0)
        assert message in str(raised.value.fix)
    with pytest.raises(CompareError, match="not of 4"):
        tpunb.compare(tf.identity, 1.0, replicas=4, strategy=strategy_of(1))


def test_html_and_text() -> None:
    gradients = (
        GradientScale("<b>kernel</b>", (2, 3), 8.0, 0.5),
        GradientScale("bias", (3,), float("nan")),
        GradientScale("scale", (), None),
    )
    numbers = tuple(SourceLine("<cell>", line) for line in (3, 7))
    comparison = ReplicaComparison(EIGHT, 8.0, "", gradients, numbers)
    text, page = str(comparison), comparison._repr_html_()
    assert "are 8.0 times those of the same step on 1 replica" in text
    assert "(lines 3, 7)" in text
    assert "8 ×" in text
    assert "50%" in text
    assert "no multiple" in text
    assert "&lt;b&gt;kernel" in page
    assert "<b>kernel" not in page
    with pytest.raises(UndividedLossError, match=r"8\.0 times") as raised:
        comparison.raise_if_wrong()
    assert "num_replicas_in_sync" in str(raised.value.fix)
