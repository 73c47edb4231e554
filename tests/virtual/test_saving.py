"""Saving on a virtual TPU: checkpoints and SavedModels, for any number of replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import copies, local, strategy_of
from support.tiers import thorough

from tpunb.tensorflow.virtual.copies.variable_copies import copies_of

OTHERS = [None, 8, *thorough([1, 32])]
"""The numbers of replicas that load; None means plain TensorFlow."""


class Line(tf.Module):
    """A model with a variable of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(tf.ones([3, 2]))
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.seen = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def __call__(self, x: Any) -> Any:
        return x @ self.w


X = np.array([[1.0, 2.0, 3.0], [0.5, -1.0, 0.25]], np.float32)


def made(strategy: Any) -> Line:
    with strategy.scope() if strategy else tf.device("/CPU:0"):
        return Line()


def trained(strategy: Any, model: Line, steps: int = 2) -> Line:
    def replica() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(X) - 1.0) ** 2)
        context = tf.distribute.get_replica_context()
        gradient = context.all_reduce("MEAN", tape.gradient(loss, model.w))
        model.w.assign_sub(0.1 * gradient)
        model.steps.assign_add(1)
        model.seen.assign_add(1.0)

    @tf.function
    def step() -> None:
        strategy.run(replica)

    for _ in range(steps):
        step()
    return model


def other(size: int | None) -> Any:
    return strategy_of(size) if size else None


@pytest.fixture(scope="module")
def model(four: Any) -> Line:
    return trained(four, made(four))


@pytest.fixture(scope="module")
def checkpoint(model: Line, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("checkpoint")
    return str(tf.train.Checkpoint(model=model).save(str(folder / "c")))


@pytest.mark.parametrize("size", OTHERS)
def test_a_checkpoint_loads_on_any_number_of_replicas(
    model: Line, checkpoint: str, size: int | None
) -> None:
    strategy = other(size)
    loaded = made(strategy)
    tf.train.Checkpoint(model=loaded).restore(checkpoint).assert_consumed()
    np.testing.assert_array_equal(loaded(X), model(X))
    assert (loaded.steps.numpy(), loaded.seen.numpy()) == (2, 8.0)
    if strategy:
        for copy in copies(loaded.w):
            np.testing.assert_array_equal(copy, model.w.numpy())


def test_training_continues_the_same_after_a_checkpoint(four: Any, checkpoint: str) -> None:
    results = []
    for strategy in (four, strategy_of(2), strategy_of(8)):
        loaded = made(strategy)
        tf.train.Checkpoint(model=loaded).restore(checkpoint)
        results.append(trained(strategy, loaded).w.numpy())
    np.testing.assert_allclose(results[1:], [results[0]] * 2, rtol=0, atol=1e-6)


def test_a_plain_checkpoint_loads_on_replicas(four: Any, tmp_path: Any) -> None:
    plain = made(None)
    plain.w.assign(plain.w * 3.0)
    path = tf.train.Checkpoint(model=plain).save(str(tmp_path / "c"))
    loaded = made(four)
    tf.train.Checkpoint(model=loaded).restore(path).assert_consumed()
    np.testing.assert_array_equal(copies(loaded.w), [plain.w.numpy()] * 4)


def test_a_manager_keeps_the_last_checkpoints_and_restores_steps(four: Any, tmp_path: Any) -> None:
    model = made(four)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model), str(tmp_path), max_to_keep=2
    )
    assert manager.restore_or_initialize() is None
    for _ in range(3):
        trained(four, model, 1)
        with four.scope():
            manager.save()
    assert len(manager.checkpoints) == 2
    kept = model.w.numpy()
    after = trained(four, model, 1).w.numpy()
    assert manager.restore_or_initialize() == manager.latest_checkpoint
    np.testing.assert_array_equal(model.w.numpy(), kept)
    np.testing.assert_array_equal(trained(four, model, 1).w.numpy(), after)


def test_a_variable_created_after_restoring(model: Line, checkpoint: str) -> None:
    late = tf.Module()
    status = tf.train.Checkpoint(model=late).restore(checkpoint)
    eight = strategy_of(8)
    with eight.scope():
        late.w = tf.Variable(tf.zeros([3, 2]))
    status.expect_partial()
    np.testing.assert_array_equal(copies(late.w), [model.w.numpy()] * 8)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("size", OTHERS)
def test_a_saved_model_loads_on_any_number_of_replicas(
    four: Any, model: Line, tmp_path: Any, size: int | None, inside: bool
) -> None:
    with four.scope() if inside else tf.device(None):
        tf.saved_model.save(model, str(tmp_path), signatures=model.__call__)
    strategy = other(size)
    with strategy.scope() if strategy else tf.device(None):
        loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded(X), model(X))
    (served,) = loaded.signatures["serving_default"](tf.constant(X)).values()
    np.testing.assert_array_equal(served, model(X))
    assert loaded.seen.numpy() == 8.0
    if not strategy:
        return
    assert len(loaded.w.values) == size
    loaded.w.assign(loaded.w * 2.0)

    def replica() -> Any:
        return loaded(X)

    step = tf.function(lambda: strategy.run(replica))
    for result in local(strategy, step()):
        np.testing.assert_array_equal(result, 2.0 * model(X))


def test_a_saved_function_that_runs_on_all_replicas(four: Any, tmp_path: Any) -> None:
    class Steps(tf.Module):
        def __init__(self, model: Line) -> None:
            super().__init__()
            self.model = model

        @tf.function(input_signature=[tf.TensorSpec([2, 3])])
        def total(self, x: Any) -> Any:
            def replica(x: Any) -> Any:
                context = tf.distribute.get_replica_context()
                return context.all_reduce("SUM", self.model(x))

            return four.experimental_local_results(four.run(replica, args=(x,)))[0]

    steps = Steps(made(four))
    expected = 4.0 * steps.model(X)
    np.testing.assert_array_equal(steps.total(X), expected)
    tf.saved_model.save(steps, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.total(X), expected)
    loaded.model.w.assign(loaded.model.w * 2.0)
    np.testing.assert_array_equal(loaded.total(X), 2.0 * expected)


def test_a_function_without_result_is_refused_with_a_fix(tmp_path: Any) -> None:
    strategy = strategy_of(4)
    model = tf.Module()
    with strategy.scope():
        model.v = tf.Variable(1.0)

    def given(x: Any) -> Any:
        return model.v.assign(x)

    def kept(x: Any) -> Any:
        model.v.assign(x)
        return tf.identity(model.v)

    model.set = tf.function(lambda x: strategy.run(given, args=(x,)))
    model.set(tf.constant(2.0))
    with pytest.raises(tf.errors.InvalidArgumentError) as refused:
        tf.saved_model.save(model, str(tmp_path))
    assert "Return a tensor from it, such as `tf.identity(v)`" in str(refused.value)
    assert "scope" not in str(refused.value)
    model.set = tf.function(lambda x: strategy.run(kept, args=(x,)))
    model.set(tf.constant(3.0))
    tf.saved_model.save(model, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    loaded.set(tf.constant(5.0))
    assert loaded.v.numpy() == 5.0


@pytest.mark.parametrize("how", ["export", *thorough(["saved_model", "a module around it"])])
def test_training_continues_after_saving_moving_averages(tmp_path: Any, how: str) -> None:
    """Replicas' moving averages diverge, and the training function is not the saved function."""
    keras = tf.keras
    x = np.arange(96, dtype=np.float32).reshape(24, 4) % 7

    def trained(save: bool) -> Any:
        keras.utils.set_random_seed(1)
        with strategy_of(3).scope():
            model = keras.Sequential(
                [keras.Input([4]), keras.layers.Dense(3), keras.layers.BatchNormalization()]
            )
            model.compile("sgd", "mse", jit_compile=False)
        options = {"batch_size": 12, "epochs": 1, "verbose": 0, "shuffle": False}
        model.fit(x, x[:, :3], **options)
        if save and how == "export":
            model.export(str(tmp_path), verbose=False)
        elif save:
            module = tf.Module()
            module.model = model
            whole = how == "a module around it"
            tf.saved_model.save(module if whole else model, str(tmp_path))
        model.fit(x, x[:, :3], **options)
        return model

    model, alone = trained(True), trained(False)
    for weight, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-6)
    kernel = model.layers[0].kernel.value
    assert copies_of(kernel.values[0]).are_together


def test_saving_separates_copies_that_a_function_uses(four: Any, tmp_path: Any) -> None:
    module = tf.Module()
    with four.scope():
        module.w = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)
        apart = tf.Variable(0.0)

    def replica() -> Any:
        rank = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        apart.assign(rank * module.w)
        module.w.assign_add(1.0)
        return tf.zeros([])

    step = tf.function(lambda: four.run(replica), autograph=False)
    step()
    inner = tf.function(lambda x: x * module.w, autograph=False)
    spec = tf.TensorSpec([], tf.float32)
    module.times = tf.function(lambda x: inner(x), autograph=False, input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path))
    step()
    step()
    assert copies(module.w) == [4.0] * 4
    assert copies(apart) == [0.0, 3.0, 6.0, 9.0]
