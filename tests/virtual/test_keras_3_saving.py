"""What Keras 3 saves on a virtual TPU is loaded on any number of cores, and without."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.keras_models import BATCH, MARKS, ROWS, X, Y, assert_same, compiled, dense, keras
from support.strategies import strategy_of
from support.tiers import thorough

pytestmark = MARKS


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model trained on 2 replicas, its files, and the model some steps later."""
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
@pytest.mark.parametrize("kind", ["keras", "checkpoint"])
def test_training_goes_on_from_a_file(saved: Any, size: int | None, kind: str) -> None:
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
def test_a_model_predicts_equally_wherever_it_is_loaded(saved: Any, size: int | None) -> None:
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


def test_a_plain_model_trains_on_replicas(four: Any, tmp_path: Any) -> None:
    one = compiled(None, optimizer="adam")
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    one.fit(X, Y, **options)
    one.save(tmp_path / "model.keras")
    with four.scope():
        model = keras.models.load_model(tmp_path / "model.keras")
    one.fit(X, Y, **options)
    model.fit(X, Y, **options)
    assert_same(one, model)
