"""Custom training loops give the numbers of plain TensorFlow with the same global batch."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.keras_models import assert_same, case, compiled, fitted
from support.strategies import SUM, all_reduce, each, strategy_of
from support.tiers import thorough

pytestmark = pytest.mark.slow

BATCH, STEPS = 32, 20
TOLERANCE = {"rtol": 0, "atol": 1e-5}


def data(rows: int = BATCH * STEPS) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=[rows, 4]).astype(np.float32)
    y = (x @ random.normal(size=[4, 1]) + 0.1).astype(np.float32)
    return x, y


@functools.cache
def plain(optimizer: str) -> Any:
    """The model, trained by one device with `fit`."""
    x, y = data()
    return fitted(None, **case(x=x, y=y, optimizer=optimizer), batch=BATCH, epochs=1)[0]


def custom_loop(size: int, name: str) -> tuple[Any, Any, Any, Any]:
    """A strategy, a model, the replica's training step, and batches."""
    strategy = strategy_of(size)
    model = compiled(strategy, optimizer=name)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x) - y) ** 2) / BATCH
        # Keras sums the gradients over the replicas itself.
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    batches = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH, drop_remainder=True)
    return strategy, model, replica, iter(strategy.experimental_distribute_dataset(batches))


@pytest.mark.parametrize(
    ("size", "name"), [(8, "sgd"), *thorough([(2, "adam"), (32, "adam"), (1, "sgd")])]
)
def test_a_custom_loop(size: int, name: str) -> None:
    strategy, model, replica, iterator = custom_loop(size, name)

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.reduce(SUM, strategy.run(replica, args=next(iterator)), axis=None)

    losses = [float(step(iterator)) for _ in range(STEPS)]
    assert losses[-1] < losses[0]
    assert_same(plain(name), model, atol=1e-5)


def test_a_loop_around_run() -> None:
    strategy, model, replica, iterator = custom_loop(4, "adam")

    @tf.function
    def epoch(iterator: Any) -> None:
        for _ in tf.range(STEPS):
            strategy.run(replica, args=next(iterator))

    epoch(iterator)
    assert_same(plain("adam"), model, atol=1e-5)
    for variable in [*model.trainable_variables, *model.optimizer.variables]:
        first, *others = (component.numpy() for component in variable.value.values)
        for other in others:
            np.testing.assert_array_equal(first, other)


def clipped(strategy: Any, rows: int) -> list[np.ndarray]:
    """Train in plain TensorFlow with clipping by the global norm; batches may be short."""
    with strategy.scope() if strategy else tf.device("/CPU:0"):
        w, b = tf.Variable([[1.0], [2.0], [3.0], [4.0]]), tf.Variable([0.0])

    def replica(x: Any, y: Any, size: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ w + b - y) ** 2) / tf.cast(size, tf.float32)
        gradients = tape.gradient(loss, [w, b])
        if strategy:
            gradients = all_reduce(gradients)
        gradients, _ = tf.clip_by_global_norm(gradients, 2.0)
        for v, gradient in zip([w, b], gradients, strict=True):
            v.assign_sub(0.1 * gradient)

    @tf.function
    def step(batch: Any) -> None:
        if not strategy:
            replica(*batch, tf.shape(batch[0])[0])
            return
        sizes = strategy.run(lambda x: tf.shape(x)[0], args=(batch[0],))
        strategy.run(replica, args=(*batch, strategy.reduce(SUM, sizes, axis=None)))

    batches: Any = tf.data.Dataset.from_tensor_slices(data(rows)).batch(BATCH)
    if strategy:
        batches = strategy.experimental_distribute_dataset(batches)
    for _ in range(3):
        for batch in batches:
            step(batch)
    return [w.numpy(), b.numpy()]


@pytest.mark.parametrize("rows", [3, *thorough([64, 101])])
def test_clipping_and_short_batches(rows: int) -> None:
    """The first or the last batch does not divide evenly among the replicas."""
    for expected, actual in zip(clipped(None, rows), clipped(strategy_of(4), rows), strict=True):
        np.testing.assert_allclose(actual, expected, **TOLERANCE)


DTYPES = {"float32": 1e-5, "float64": 1e-5, "bfloat16": 0.1, "float16": 0.01}


def mixed(strategy: Any) -> list[np.ndarray]:
    """Variables of several types after steps on four rows, one for each replica."""
    with strategy.scope() if strategy else tf.device("/CPU:0"):
        variables = [tf.Variable(tf.cast(tf.linspace(-1.0, 1.0, 4), dtype)) for dtype in DTYPES]
        count = tf.Variable(0, dtype=tf.int64)
    x = np.tile(np.float32([0.5, -0.25, 0.125, 0.5]), [4, 1])

    def replica(x: Any) -> None:
        with tf.GradientTape() as tape:
            sums = [tf.reduce_sum(tf.cast(v, tf.float32) * x, axis=1) for v in variables]
            loss = tf.add_n([tf.reduce_sum(total**2) / BATCH for total in sums])
        gradients = tape.gradient(loss, variables)
        if strategy:
            gradients = all_reduce(gradients)
        for v, gradient in zip(variables, gradients, strict=True):
            v.assign_sub(gradient * tf.cast(0.5, v.dtype))
        count.assign_add(1)

    @tf.function
    def step() -> None:
        if strategy:
            strategy.run(replica, args=(each(strategy, x[:, None]),))
        else:
            replica(x)

    for _ in range(STEPS):
        step()
    assert count.numpy() == STEPS
    return [v.numpy().astype(np.float64) for v in variables]


def test_variables_of_mixed_types() -> None:
    for expected, actual, atol in zip(
        mixed(None), mixed(strategy_of(4)), DTYPES.values(), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)
