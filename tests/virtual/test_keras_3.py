"""Keras 3 on a virtual TPU: training, saving and loading give the numbers of one device."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.keras_models import (
    BATCH,
    CASES,
    MARKS,
    ROWS,
    X,
    Y,
    assert_same,
    assert_same_history,
    assert_trained_alike,
    case,
    compiled,
    dense,
    fitted,
    keras,
    sequential,
)
from support.strategies import copies, local, strategy_of
from support.tiers import THOROUGH, thorough, thorough_except

from tpunb.errors import TpuWarning

pytestmark = [*MARKS, pytest.mark.slow]

QUICK = {"adam", "validation data"}
"""An ordinary case, and a case that evaluates too."""


@pytest.mark.parametrize("name", thorough_except(QUICK, CASES))
def test_fit(name: str) -> None:
    # All replicas share the work of a case, so vary their number from case to case.
    size = (2, 4, 2, 8)[list(CASES).index(name) % 4]
    assert_trained_alike(None, strategy_of(size), CASES[name])


def split(batch: np.ndarray, size: int, replicas: int) -> list[np.ndarray]:
    """A batch's rows for each replica, as tf.distribute splits them."""
    size = -(-size // replicas)
    return [part for k in range(replicas) if len(part := batch[size * k : size * (k + 1)])]


@pytest.mark.parametrize(("rows", "replicas"), [(3, 4), *thorough([(11, 8)])])
def test_uneven_batches_follow_keras(rows: int, replicas: int) -> None:
    """Keras divides each replica's mean by the number of replicas, also if some are empty."""
    x, y = X[:rows], Y[:rows]
    model, reference = compiled(strategy_of(replicas), metrics=["mae"]), compiled(None)
    optimizer = reference.optimizer
    optimizer.build(reference.trainable_variables)
    for start in range(0, rows, BATCH):
        parts = (
            split(array[start : start + BATCH], min(BATCH, rows), replicas) for array in (x, y)
        )
        with tf.GradientTape() as tape:
            losses = [tf.reduce_mean((reference(a) - b) ** 2) for a, b in zip(*parts, strict=True)]
            loss = tf.add_n(losses) / replicas
        optimizer.apply(tape.gradient(loss, reference.trainable_variables))
    with pytest.warns(TpuWarning, match=f"{rows % BATCH} examples for {replicas} replicas"):
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(reference, model, atol=1e-5)
    predicted = model.predict(x, batch_size=BATCH, verbose=0)
    np.testing.assert_allclose(predicted, reference(x), rtol=0, atol=1e-5)
    loss, mae = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    # The loss of a short batch is a mean over replicas too; a metric counts rows.
    np.testing.assert_allclose(mae, np.abs(predicted - y).mean(), rtol=1e-4)
    assert np.isfinite(loss)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return ROWS // BATCH

    def __getitem__(self, index: int) -> Any:
        rows = slice(BATCH * index, BATCH * (index + 1))
        return X[rows], Y[rows]


def generator() -> Iterator[Any]:
    while True:
        for index in range(ROWS // BATCH):
            yield Batches()[index]


@functools.cache
def plain() -> Any:
    """The model, trained on arrays by one device."""
    return fitted(None, **case())[0]


def batches() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


def from_function(strategy: Any) -> Any:
    def pipeline(context: tf.distribute.InputContext) -> Any:
        size = context.get_per_replica_batch_size(BATCH)
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size).repeat()

    return strategy.distribute_datasets_from_function(pipeline)


STEPS = ROWS // BATCH
DATA: dict[str, tuple[Any, int | None]] = {
    "from function": (from_function, STEPS),
    "distributed": (lambda on: on.experimental_distribute_dataset(batches().repeat()), STEPS),
    "dataset": (lambda _: batches(), None),
    "PyDataset": (lambda _: Batches(), None),
}


@pytest.mark.parametrize("kind", ["from function", *thorough([*DATA][1:])])
def test_data_of_every_kind(four: Any, kind: str) -> None:
    data, steps = DATA[kind]
    model = compiled(four)
    model.fit(data(four), epochs=2, steps_per_epoch=steps, shuffle=False, verbose=0)
    assert_same(plain(), model)


@THOROUGH
def test_a_generator(four: Any) -> None:
    """Keras looks at a batch to build the model, so the order of batches may change."""
    model = compiled(four)
    before = model.evaluate(X, Y, verbose=0)
    history = model.fit(generator(), steps_per_epoch=6, epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
    assert model.evaluate(X, Y, verbose=0) < before


@THOROUGH
@pytest.mark.filterwarnings("ignore:non-integer arguments to randrange:DeprecationWarning")
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_callbacks(library: str, tmp_path: Any) -> None:
    api = pytest.importorskip(library)
    c = api.callbacks

    def run(strategy: Any, folder: Any) -> Any:
        folder.mkdir()
        seen: list[Any] = []
        callbacks = [
            c.EarlyStopping("val_loss", patience=1, min_delta=0.1, restore_best_weights=True),
            c.ModelCheckpoint(str(folder / "{epoch}.keras")),
            c.ModelCheckpoint(
                str(folder / "{epoch}.weights.h5"), save_weights_only=True, save_best_only=True
            ),
            c.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            c.ReduceLROnPlateau("val_loss", patience=1, min_delta=10.0),
            c.LambdaCallback(
                on_train_batch_end=lambda batch, logs: seen.append(batch),
                on_epoch_end=lambda epoch, logs: seen.append(sorted(logs)),
            ),
            c.BackupAndRestore(str(folder / "backup")),
            c.CSVLogger(str(folder / "log.csv")),
            c.TerminateOnNaN(),
        ]
        fit = {"validation_data": (X[:10], Y[:10]), "callbacks": callbacks}
        training_case = case(optimizer="adam", fit=fit, metrics=["mae"])
        model, history = fitted(strategy, **training_case, api=api, epochs=4)
        files = sorted(path.name for path in folder.iterdir())
        return model, history, seen, files, float(model.optimizer.learning_rate.numpy())

    plain_model, history, plain_logs, files, rate = run(None, tmp_path / "one")
    model, logs, events, written, after = run(strategy_of(2), tmp_path / "two")
    assert (events, written) == (plain_logs, files)
    assert "log.csv" in files
    np.testing.assert_allclose(after, rate, rtol=1e-6)
    assert_same_history(history, logs)
    assert_same(plain_model, model)


def test_batch_normalisation_of_each_replica() -> None:
    """Each replica normalises its own rows and, in Keras 3, keeps its own statistics."""
    strategy = strategy_of(2)
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 4))
    dataset = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices(X[:8]).batch(8)
    )
    step = tf.function(lambda batch: strategy.run(lambda x: layer(x, training=True), args=(batch,)))
    (batch,) = dataset
    parts = local(strategy, step(batch))
    halves = X[:4], X[4:8]
    for part, rows in zip(parts, halves, strict=True):
        expected = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-3)
        np.testing.assert_allclose(part, expected, rtol=1e-4, atol=1e-5)
    for variable, expected in (
        (layer.moving_mean, [0.5 * rows.mean(0) for rows in halves]),
        (layer.moving_variance, [0.5 + 0.5 * rows.var(0) for rows in halves]),
    ):
        np.testing.assert_allclose(copies(variable.value), expected, rtol=1e-5, atol=1e-6)
        # Saving and predicting use the first replica's statistics.
        np.testing.assert_allclose(variable.numpy(), expected[0], rtol=1e-5, atol=1e-6)


def test_mixed_bfloat16(four: Any) -> None:
    def mixed(_: Any) -> Any:
        hidden = keras.layers.Dense(6, "tanh", dtype="mixed_bfloat16")
        return sequential(keras, hidden, keras.layers.Dense(1, dtype="mixed_bfloat16"))

    plain_model, _ = fitted(None, **case(mixed))
    model, history = fitted(four, **case(mixed))
    assert model.layers[0].compute_dtype == "bfloat16"
    assert model.trainable_variables[0].dtype == "float32"
    assert history["loss"][1] < history["loss"][0]
    assert_same(plain_model, model, atol=0.02)


@THOROUGH
def test_dropout_repeats_with_its_seed(four: Any) -> None:
    def dropping(_: Any) -> Any:
        layers = keras.layers
        return sequential(keras, layers.Dense(8), layers.Dropout(0.5), layers.Dense(1))

    first, again = (fitted(four, **case(dropping))[0] for _ in range(2))
    assert_same(first, again, atol=1e-6)
    plain, _ = fitted(None, **case(dropping, fit={}))
    assert any(
        not np.allclose(a, b, atol=1e-4)
        for a, b in zip(plain.get_weights(), first.get_weights(), strict=True)
    )


def test_single_batches(four: Any) -> None:
    plain_model, model = compiled(None), compiled(four)
    for _ in range(2):
        loss = plain_model.train_on_batch(X[:BATCH], Y[:BATCH])
        np.testing.assert_allclose(model.train_on_batch(X[:BATCH], Y[:BATCH]), loss, rtol=1e-5)
    assert_same(plain_model, model)


@THOROUGH
def test_predictions_and_evaluations_of_several_steps(four: Any) -> None:
    plain_model, model = compiled(None), compiled(four, steps_per_execution=3, metrics=["mae"])
    expected = plain_model.predict(X[:21], batch_size=BATCH, verbose=0)
    predictions = model.predict(X[:21], batch_size=BATCH, verbose=0)
    np.testing.assert_allclose(predictions, expected, rtol=0, atol=1e-6)
    loss, mae = model.evaluate(X, Y, batch_size=BATCH, verbose=0)
    error = plain_model.predict(X, verbose=0) - Y
    np.testing.assert_allclose([loss, mae], [np.mean(error**2), np.mean(abs(error))], rtol=1e-4)


@THOROUGH
def test_fit_evaluate_fit(four: Any) -> None:
    """Functions traced before training see the weights that training changes."""

    def normalised(_: Any) -> Any:
        return sequential(keras, keras.layers.BatchNormalization(), keras.layers.Dense(1))

    model = compiled(four, model=normalised)
    before = model.evaluate(X, Y, batch_size=BATCH, verbose=0)
    model.fit(X, Y, batch_size=BATCH, epochs=5, verbose=0, shuffle=False)
    assert model.evaluate(X, Y, batch_size=BATCH, verbose=0) < before
    moving = next(v for v in model.non_trainable_variables if "moving_mean" in v.path)
    assert np.abs(moving.numpy()).max() > 0


def test_eager_training_is_refused_as_by_a_tpu(four: Any) -> None:
    model = compiled(four, run_eagerly=True)
    with pytest.raises(NotImplementedError, match="does not support pure eager execution"):
        model.fit(X, Y, batch_size=BATCH, verbose=0)


def test_compiling_around_all_replicas_fails_as_on_a_tpu(four: Any) -> None:
    model = compiled(four, jit_compile=True)
    with pytest.raises(tf.errors.NotFoundError, match="transfer manager for platform Host"):
        model.fit(X, Y, batch_size=BATCH, verbose=0)


# Files.


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model trained on 2 replicas, its files, and the same model some steps later."""
    folder = tmp_path_factory.mktemp("saved")
    model = compiled(strategy_of(2), optimizer="adam")
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    model.fit(X, Y, **options)
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    model.export(str(folder / "exported"), verbose=False)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(folder / "checkpoint"))
    predicted = model.predict(X, verbose=0)
    model.fit(X, Y, **options)
    return folder, predicted, model


def scope_of(strategy: Any) -> Any:
    return strategy.scope() if strategy else contextlib.nullcontext()


@pytest.mark.parametrize("size", [4, *thorough([None])])
@pytest.mark.parametrize("kind", ["checkpoint", *thorough(["keras"])])
def test_training_continues_from_a_file(saved: Any, size: int | None, kind: str) -> None:
    folder, predicted, later = saved
    strategy = strategy_of(size) if size else None
    if kind == "keras":
        with scope_of(strategy):
            model = keras.models.load_model(folder / "model.keras")
    else:
        model = compiled(strategy, optimizer="adam")
        with scope_of(strategy):
            model.optimizer.build(model.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        checkpoint.read(str(folder / "checkpoint")).expect_partial()
    np.testing.assert_allclose(model(X), predicted, rtol=0, atol=1e-6)
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(later, model)


@pytest.mark.parametrize("size", [1, *thorough([None, 32])])
def test_a_model_predicts_the_same_on_any_number_of_replicas(saved: Any, size: int | None) -> None:
    folder, predicted, _ = saved
    strategy = strategy_of(size) if size else None
    with scope_of(strategy):
        loaded = keras.models.load_model(folder / "model.keras")
        weights = dense()
        weights.load_weights(folder / "model.weights.h5")
        exported = tf.saved_model.load(str(folder / "exported"))
    options = {"batch_size": ROWS, "verbose": 0}
    np.testing.assert_allclose(loaded.predict(X, **options), predicted, rtol=0, atol=1e-6)
    np.testing.assert_allclose(weights(X), predicted, rtol=0, atol=1e-6)
    np.testing.assert_allclose(exported.serve(X), predicted, rtol=0, atol=1e-6)


@THOROUGH
def test_a_plain_model_trains_on_replicas(four: Any, tmp_path: Any) -> None:
    plain_model = compiled(None, optimizer="adam")
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    plain_model.fit(X, Y, **options)
    plain_model.save(tmp_path / "model.keras")
    with four.scope():
        model = keras.models.load_model(tmp_path / "model.keras")
    plain_model.fit(X, Y, **options)
    model.fit(X, Y, **options)
    assert_same(plain_model, model)
