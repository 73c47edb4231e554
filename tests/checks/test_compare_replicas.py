"""`tpunb.compare(step, batch, replicas=1)`: does the loss need a division by the replica count?"""

from __future__ import annotations

import contextlib
import functools
import re
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
from tpunb.checks import trial_run
from tpunb.checks.compare import CompareError
from tpunb.checks.replica_comparison import GradientScale, ReplicaComparison, UndividedLossError

EIGHT = 8
ALWAYS = {"adam", "divided_by_a_python_number"}
MAY_BE_REPLICAS = {
    "attention_with_a_scale_of_an_eighth",
    "average_loss_of_a_known_batch",
    "divided_by_a_cast_number",
    "divided_by_a_python_number",
    "divided_by_a_tensor",
    "gradients_divided",
    "images",
    "l2_in_the_loss",
    "pixels_divided_by_a_python_number",
    "sum_over_the_global_batch",
    "two_divisions_by_python_numbers",
}
"""Correct steps that scale by a Python number, such as 8, which may be their number of replicas."""

HIDE_THE_MISTAKE = {
    "attention_with_a_scale_of_an_eighth",
    "average_loss_of_a_known_batch",
    "images",
    "sum_over_the_global_batch",
}
"""Steps whose literals, 8 or the number of a replica's examples, may make the mistake right."""


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
    if name in MAY_BE_REPLICAS:
        _is_not_known_by_a_number(comparison)
        return
    assert comparison.factor == 1.0, comparison
    assert not comparison.problem
    assert "gradients on 8 replicas" in comparison.headline


@pytest.mark.parametrize("name", ALL)
def test_the_classic_mistake_is_found(eight: Any, name: str) -> None:
    comparison = verdict(eight, name, wrong=True)
    if name in HIDE_THE_MISTAKE:
        _is_not_known_by_a_number(comparison)
        return
    assert comparison.factor == EIGHT, comparison
    assert "8.0 times" in comparison.headline
    assert comparison.headline.endswith("divide the loss by the number of replicas.")


def _is_not_known_by_a_number(comparison: ReplicaComparison) -> None:
    assert comparison.ok is None, comparison
    assert re.search(
        r"`.+` on line \d+ is [\d.]+, (as many as|one over|a multiple)", comparison.note
    )


@pytest.mark.parametrize("replicas", [2, *thorough([32])])
@pytest.mark.parametrize("name", ["sgd", *thorough(["adam"])])
def test_other_numbers_of_replicas(replicas: int, name: str) -> None:
    strategy = strategy_of(replicas)
    right, wrong = (verdict(strategy, name, wrong=wrong) for wrong in (False, True))
    assert right.ok
    assert wrong.factor == replicas, wrong


class _Config:
    def __init__(self) -> None:
        self.replicas = EIGHT


N, CONFIG, SHARE, FEW = EIGHT, _Config(), 1 / (4 * EIGHT), 3 * EIGHT


def _divided_in_a_branch(error: Any, _: Any) -> Any:
    loss = tf.reduce_mean(error)
    if loss > 0.0:
        loss = loss / N
    return loss


def _divided_in_a_loop(error: Any, _: Any) -> Any:
    loss = tf.reduce_mean(error)
    for _ in tf.range(1):
        loss = loss / N
    return loss


def _divided_twice(error: Any, _: Any) -> Any:
    # Keras's loss object divides by the number of replicas itself.
    return keras.losses.MeanAbsoluteError()(tf.zeros_like(error), error) / N


def _divided_in_part(error: Any, model: Any) -> Any:
    return tf.reduce_mean(error) / N + _l2(model)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (_divided_twice, "N"),
        (lambda error, _: tf.reduce_mean(error) / N / N, "N"),
        (_divided_in_a_branch, "N"),
        (_divided_in_a_loop, "N"),
        (_divided_in_part, "N"),
        (lambda error, _: tf.reduce_mean(error) / CONFIG.replicas, "CONFIG.replicas"),
        (lambda error, _, n=1 / EIGHT: tf.reduce_mean(error) * n, "n"),
        (lambda error, _: tf.reduce_mean(error) / 8, "8"),
        (lambda error, _: tf.nn.compute_average_loss(error[:, 0]) * SHARE, "SHARE"),
        (lambda error, _: tf.reduce_sum(error) / (3 * _replicas()), "3"),
    ],
)
def test_a_number_that_may_be_the_number_of_replicas(
    eight: Any, model: Any, loss: Any, text: str
) -> None:
    with eight.scope():
        step = step_of(model, loss)
    comparison = compared(eight, step, *args_of(eight))
    _is_not_known_by_a_number(comparison)
    assert f"`{text}` on line" in comparison.note


def test_a_number_that_scales_nothing(eight: Any, model: Any) -> None:
    def loss(error: Any, _: Any) -> Any:
        steps = tf.tile(error[:, None], [1, 8, 1])
        return tf.reduce_mean(tf.reduce_mean(steps, axis=1)) + 0.0 * N

    with eight.scope():
        wrong = step_of(model, loss)
        right = step_of(model, lambda error, model: loss(error, model) / _replicas())
    assert compared(eight, right, *args_of(eight)).factor == 1.0
    assert compared(eight, wrong, *args_of(eight)).factor == EIGHT


def test_adam_hides_the_scale_of_an_update(eight: Any) -> None:
    assert verdict(eight, "sgd", wrong=True).problem.startswith("The update is 8.0 times")
    assert verdict(eight, "adam", wrong=True).problem.startswith(
        "The gradients are 8.0 times one device's"
    )


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
        (lambda error, _: tf.reduce_sum(error) / 3, "is 3, as many as a replica has examples"),
        (
            lambda error, _: tf.reduce_mean(error) / FEW,
            "is 24, a multiple of the number of replicas",
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


@pytest.mark.parametrize("place", ["loss", "outside", *thorough(["gradients", "share", "batch"])])
def test_a_variable_holds_the_number_of_replicas(eight: Any, model: Any, place: str) -> None:
    value = {"share": 1.0 / EIGHT, "batch": 5.0 * EIGHT}.get(place, float(EIGHT))
    with eight.scope() if place != "outside" else contextlib.nullcontext():
        number = tf.Variable(value, name="n", trainable=False)
    with eight.scope():
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            loss = {"share": loss * number, "gradients": loss}.get(place, loss / number)
            loss = loss * 5.0 if place == "batch" else loss
        gradients = tape.gradient(loss, model.trainable_variables)
        if place == "gradients":
            gradients = [gradient / number for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    comparison = compared(eight, step, *args_of(eight))
    assert comparison.ok is None
    assert "`number` on line" in comparison.headline
    assert f" is {value:g}, " in comparison.headline
    assert not comparison.problem
    number.assign(1.0 if place != "batch" else 5.0)
    assert compared(eight, step, *args_of(eight)).factor == EIGHT


def test_a_variable_that_equals_the_number_of_replicas_by_chance(eight: Any, model: Any) -> None:
    with eight.scope():
        unused = tf.Variable(float(EIGHT), trainable=False)
        step = step_of(model, lambda error, _: tf.reduce_mean(error) + 0.0 * tf.square(unused))
    assert compared(eight, step, *args_of(eight)).factor == EIGHT


@pytest.mark.parametrize(
    ("loss", "factor"),
    [
        (lambda error, _: tf.reduce_sum(error), 1.0),
        (lambda error, _: tf.reduce_mean(error) / _replicas() ** 2, 1 / EIGHT),
        (lambda error, _: 0.5 * tf.reduce_mean(error), EIGHT),
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
    comparison = ReplicaComparison(EIGHT, 8.0, "", gradients, scales_update=True)
    text, page = str(comparison), comparison._repr_html_()
    assert "The update is 8.0 times that of one device: divide the loss" in text
    assert "8 ×" in text
    assert "50%" in text
    assert "no multiple" in text
    assert "&lt;b&gt;kernel" in page
    assert "<b>kernel" not in page
    with pytest.raises(UndividedLossError, match=r"8\.0 times") as raised:
        comparison.raise_if_wrong()
    assert raised.value.fix == "Divide the loss by the number of replicas."
