"""The same numbers as plain TensorFlow on one device with the same global batch."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import strategy_of
from support.tiers import THOROUGH, thorough

keras = pytest.importorskip("keras")

pytestmark = pytest.mark.slow

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
BATCH, STEPS = 32, 20
TOLERANCE = {"rtol": 0, "atol": 1e-5}
Optimizer = Callable[[], Any]


def data(rows: int = BATCH * STEPS) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=[rows, 4]).astype(np.float32)
    y = (x @ random.normal(size=[4, 1]) + 0.1).astype(np.float32)
    return x, y


def layered(*layers: Any) -> Any:
    return keras.Sequential([keras.Input((4,)), *layers])


def dense() -> Any:
    return layered(keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1))


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
}


def fitted(
    strategy: Any, optimizer: Optimizer, model: Callable[[], Any] = dense, **options: Any
) -> Any:
    """A model after 20 steps of `fit`, on one device or on a strategy."""
    rows = options.pop("rows", BATCH * STEPS)
    compiling = options.pop("compiling", {})
    scope = strategy.scope() if strategy else tf.device("/CPU:0")
    with scope:
        keras.utils.set_random_seed(3)
        made = model()
        made.compile(optimizer(), "mse", **compiling)
    x, y = data(rows)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    history = made.fit(
        batches, epochs=options.pop("epochs", 1), verbose=0, shuffle=False, **options
    )
    made.losses_seen = history.history["loss"]
    return made


def assert_same(one: Any, other: Any, **tolerance: float) -> None:
    weights = list(zip(one.get_weights(), other.get_weights(), strict=True))
    assert weights
    for wanted, found in weights:
        np.testing.assert_allclose(found, wanted, **{**TOLERANCE, **tolerance})


_plain: dict[str, Any] = {}


def plain(name: str) -> Any:
    """The model that plain TensorFlow trains with an optimizer."""
    if name not in _plain:
        strategy_of(1)
        _plain[name] = fitted(None, OPTIMIZERS[name])
    return _plain[name]


# `fit` and a loop of one's own share the work: each has each optimizer, and its part of the sizes.
BY_FIT = [(4, "adam"), *thorough([(1, "sgd")])]
BY_LOOP = [(8, "sgd"), *thorough([(2, "adam"), (32, "adam")])]


@functools.cache
def by_fit(size: int, name: str) -> Any:
    """The model that a virtual TPU of so many cores trains."""
    return fitted(strategy_of(size), OPTIMIZERS[name])


@pytest.mark.parametrize(("size", "name"), BY_FIT)
def test_fit(size: int, name: str) -> None:
    model = by_fit(size, name)
    assert_same(plain(name), model)
    np.testing.assert_allclose(model.losses_seen, plain(name).losses_seen, rtol=1e-4)


def own_loop(size: int, name: str) -> tuple[Any, Any, Callable[..., Any], Any]:
    """A strategy, a model, a replica's step of its training, and batches."""
    strategy = strategy_of(size)
    with strategy.scope():
        keras.utils.set_random_seed(3)
        model, optimizer = dense(), OPTIMIZERS[name]()
        optimizer.build(model.trainable_variables)

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x) - y) ** 2) / BATCH
        # Keras sums the gradients over the replicas itself.
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    batches = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH, drop_remainder=True)
    return strategy, model, replica, iter(strategy.experimental_distribute_dataset(batches))


@pytest.mark.parametrize(("size", "name"), BY_LOOP)
def test_a_custom_loop(size: int, name: str) -> None:
    strategy, model, replica, iterator = own_loop(size, name)

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.reduce(SUM, strategy.run(replica, args=next(iterator)), axis=None)

    losses = [float(step(iterator)) for _ in range(STEPS)]
    assert losses[-1] < losses[0]
    assert_same(plain(name), model)


def test_a_loop_around_run() -> None:
    strategy, model, replica, iterator = own_loop(4, "adam")

    @tf.function
    def epoch(iterator: Any) -> None:
        for _ in tf.range(STEPS):
            strategy.run(replica, args=next(iterator))

    epoch(iterator)
    assert_same(plain("adam"), model)


SPECIAL: dict[str, Optimizer] = {
    "schedule": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.05, 5, 0.5)
    ),
    "ema": lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.5),
    "ema overwritten": lambda: keras.optimizers.Adam(
        0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3
    ),
    "accumulated": lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)),
}


@pytest.mark.parametrize("name", thorough(sorted(SPECIAL)))
def test_fit_with_a_special_optimizer(name: str) -> None:
    assert_same(fitted(None, SPECIAL[name]), fitted(strategy_of(2), SPECIAL[name]))


@THOROUGH
def test_several_steps_in_one_execution() -> None:
    options = {"compiling": {"steps_per_execution": 7}}
    assert_same(plain("adam"), fitted(strategy_of(4), OPTIMIZERS["adam"], **options))


def clipped(strategy: Any, rows: int) -> list[np.ndarray]:
    """Plain TensorFlow with clipping by the global norm, on batches that may be short."""
    with strategy.scope() if strategy else tf.device("/CPU:0"):
        w, b = tf.Variable([[1.0], [2.0], [3.0], [4.0]]), tf.Variable([0.0])

    def replica(x: Any, y: Any, size: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ w + b - y) ** 2) / tf.cast(size, tf.float32)
        gradients = tape.gradient(loss, [w, b])
        if strategy:
            gradients = tf.distribute.get_replica_context().all_reduce(SUM, gradients)
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
    """The first batch or the last one does not divide by the replicas."""
    for one, found in zip(clipped(None, rows), clipped(strategy_of(4), rows), strict=True):
        np.testing.assert_allclose(found, one, **TOLERANCE)


@pytest.mark.filterwarnings("ignore:The last batch has:tpunb.errors.TpuWarning")
@pytest.mark.parametrize("rows", [3, *thorough([70])])
def test_fit_on_short_batches(rows: int) -> None:
    """Keras weighs replicas, not rows: the numbers are near those of one device."""
    model = fitted(strategy_of(4), OPTIMIZERS["sgd"], rows=rows, epochs=2)
    assert np.isfinite(model.losses_seen).all()
    assert model.losses_seen[1] < model.losses_seen[0]
    for weights in model.get_weights():
        assert np.isfinite(weights).all()


@THOROUGH
def test_evaluate_and_predict() -> None:
    one = plain("sgd")
    with strategy_of(4).scope():
        model = dense()
        model.compile("sgd", "mse", metrics=["mae"])
    model.set_weights(one.get_weights())
    x, y = data(75)
    np.testing.assert_allclose(
        model.predict(x, batch_size=16, verbose=0), one.predict(x, verbose=0), rtol=1e-5, atol=1e-6
    )
    loss, mae = model.evaluate(x, y, batch_size=16, verbose=0)
    error = one.predict(x, verbose=0) - y
    np.testing.assert_allclose([loss, mae], [np.mean(error**2), np.mean(abs(error))], rtol=1e-4)


def test_fit_evaluate_fit() -> None:
    """Functions that were traced before training go on seeing what it changes."""

    layers = keras.layers
    x, y = data(BATCH)
    with strategy_of(4).scope():
        keras.utils.set_random_seed(3)
        model = layered(layers.BatchNormalization(), layers.Dense(1))
        model.compile(keras.optimizers.SGD(0.05), "mse")
    before = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    model.fit(x, y, batch_size=BATCH, epochs=5, verbose=0, shuffle=False)
    after = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    assert after < before
    moving = next(v for v in model.non_trainable_variables if "moving_mean" in v.path)
    assert np.abs(moving.numpy()).max() > 0


def test_batch_norm_with_synchronized_statistics() -> None:
    def normalised() -> Any:
        normalization = keras.layers.BatchNormalization(synchronized=True)
        return layered(keras.layers.Dense(6), normalization, keras.layers.Dense(1))

    one = fitted(None, OPTIMIZERS["sgd"], normalised)
    assert_same(one, fitted(strategy_of(2), OPTIMIZERS["sgd"], normalised), atol=1e-4)


@THOROUGH
def test_an_embedding_and_a_recurrent_layer() -> None:
    def words() -> Any:
        return layered(
            keras.layers.Lambda(lambda x: tf.cast(tf.abs(x) * 3.0, tf.int32), (4,)),
            keras.layers.Embedding(20, 3),
            keras.layers.GRU(4),
            keras.layers.Dense(1),
        )

    # Not Adam, which on one device squares the gradients of a word one by one.
    one = fitted(None, OPTIMIZERS["sgd"], words)
    assert_same(one, fitted(strategy_of(2), OPTIMIZERS["sgd"], words))


def test_variables_of_mixed_types() -> None:
    def trained(strategy: Any) -> list[np.ndarray]:
        with strategy.scope() if strategy else tf.device("/CPU:0"):
            variables = [
                tf.Variable(tf.cast(tf.linspace(-1.0, 1.0, 4), dtype))
                for dtype in ("float32", "float64", "bfloat16", "float16")
            ]
            count = tf.Variable(0, dtype=tf.int64)
        context = tf.distribute.get_replica_context

        def replica(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.add_n(
                    [tf.reduce_sum(tf.cast(v, tf.float32) * x) ** 2 / BATCH for v in variables]
                )
            gradients = tape.gradient(loss, variables)
            if strategy:
                gradients = context().all_reduce(SUM, gradients)
            for v, gradient in zip(variables, gradients, strict=True):
                v.assign_sub(gradient * tf.cast(0.5, v.dtype))
            count.assign_add(1)

        x = np.tile(np.float32([0.5, -0.25, 0.125, 0.5]), [4, 1])

        @tf.function
        def step() -> None:
            if strategy:
                values = strategy.experimental_distribute_values_from_function(
                    lambda c: tf.constant(x[c.replica_id_in_sync_group])
                )
                strategy.run(replica, args=(values,))
            else:
                with tf.GradientTape() as tape:
                    loss = tf.add_n(
                        [
                            tf.reduce_sum(
                                tf.reduce_sum(tf.cast(v, tf.float32) * x, axis=1) ** 2 / BATCH
                            )
                            for v in variables
                        ]
                    )
                for v, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                    v.assign_sub(gradient * tf.cast(0.5, v.dtype))
                count.assign_add(1)

        for _ in range(STEPS):
            step()
        assert count.numpy() == STEPS
        return [v.numpy().astype(np.float64) for v in variables]

    strategy = strategy_of(4)
    for one, found, atol in zip(
        trained(None), trained(strategy), (1e-5, 1e-5, 0.1, 0.01), strict=True
    ):
        np.testing.assert_allclose(found, one, rtol=0, atol=atol)


@pytest.mark.filterwarnings("ignore:non-integer arguments to randrange:DeprecationWarning")
@pytest.mark.parametrize("legacy", thorough([False, True]))
def test_tf_keras(legacy: bool) -> None:
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "0")
    tf_keras = pytest.importorskip("tf_keras")
    optimizers = tf_keras.optimizers.legacy if legacy else tf_keras.optimizers

    def trained(strategy: Any, name: str) -> Any:
        with strategy.scope() if strategy else tf.device("/CPU:0"):
            tf_keras.utils.set_random_seed(3)
            layers = [tf_keras.layers.Dense(8, "tanh", input_shape=(4,)), tf_keras.layers.Dense(1)]
            model = tf_keras.Sequential(layers)
            optimizer = {
                "adam": lambda: optimizers.Adam(0.01),
                "sgd": lambda: optimizers.SGD(0.01, momentum=0.9),
            }[name]()
            model.compile(optimizer, "mse")
        batches = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH)
        model.fit(batches, verbose=0, shuffle=False)
        return model

    for name in ("adam", "sgd") if legacy else ("adam",):
        assert_same(trained(None, name), trained(strategy_of(2), name))


def test_every_copy_is_the_same_after_training() -> None:
    model = by_fit(4, "adam")
    for variable in [*model.trainable_variables, *model.optimizer.variables]:
        first, *others = (component.numpy() for component in variable.value.values)
        for other in others:
            np.testing.assert_array_equal(first, other)
