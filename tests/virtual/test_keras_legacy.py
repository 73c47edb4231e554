"""tf_keras, the Keras of older notebooks, on a virtual TPU."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import keras_models
from support.keras_models import BATCH, X, Y, assert_same, assert_trained_alike, case
from support.strategies import strategy_of
from support.tiers import THOROUGH, thorough, thorough_except

pytestmark = [
    pytest.mark.filterwarnings("ignore:non-integer arguments to randrange:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file:UserWarning"),
]
# `tf.keras` stays Keras 3, which runs in the same process.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "0")
keras = pytest.importorskip("tf_keras")
fitted = functools.partial(keras_models.fitted, api=keras)


def own_step(_: Any) -> Any:
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.out = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.out(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = self.compiled_loss(y, predicted)
            self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
            self.compiled_metrics.update_state(y, predicted)
            return {metric.name: metric.result() for metric in self.metrics}

    return Model()


SHARED = ("attention", "recurrent", "synchronised", "class weights", "steps per execution", "adam")
CASES: dict[str, dict[str, Any]] = {
    "metrics": case(metrics=["mae"], fit={"validation_data": (X[:16], Y[:16])}),
    **{name: keras_models.CASES[name] for name in SHARED},
    "own step": case(own_step, metrics=["mae"]),
    "compiled": case(jit_compile=True),
    "rmsprop": case(optimizer="rmsprop"),
    "older Adam": case(optimizer=lambda: keras.optimizers.legacy.Adam(0.01)),
    "older momentum": case(optimizer=lambda: keras.optimizers.legacy.SGD(0.01, momentum=0.9)),
}


@pytest.mark.parametrize("name", thorough_except({"metrics"}, CASES))
def test_fit(name: str) -> None:
    size = (2, 4)[list(CASES).index(name) % 2]
    assert_trained_alike(None, strategy_of(size), CASES[name], atol=1e-4, api=keras)


@THOROUGH
@pytest.mark.filterwarnings("ignore:The last batch has 5 examples:tpunb.errors.TpuWarning")
def test_uneven_batches() -> None:
    """Like Keras 3, tf_keras divides by a replica's rows and by the number of replicas."""
    plain_model, model = (
        fitted(on, **case(x=X[:16], y=Y[:16]))[0] for on in (None, strategy_of(4))
    )
    short = {"batch_size": BATCH, "verbose": 0}
    np.testing.assert_allclose(
        model.predict(X[:13], **short), plain_model.predict(X[:13], **short), rtol=0, atol=1e-5
    )
    history = model.fit(X[:13], Y[:13], epochs=2, shuffle=False, **short).history["loss"]
    assert np.isfinite(history).all()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("saved")
    model, _ = fitted(strategy_of(2), **case(optimizer="adam"))
    for name in ("model.keras", "model.h5", "model_tf"):
        model.save(folder / name)
    predicted = model.predict(X, verbose=0)
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    return folder, predicted, model


@pytest.mark.parametrize(
    ("name", "size"),
    thorough([("model.keras", 4), ("model.keras", 32), ("model.h5", None), ("model_tf", 1)]),
)
def test_training_continues_from_a_file(saved: Any, name: str, size: int | None) -> None:
    folder, predicted, later = saved
    with strategy_of(size).scope() if size else contextlib.nullcontext():
        model = keras.models.load_model(folder / name)
    np.testing.assert_allclose(model(X), predicted, rtol=0, atol=1e-6)
    # The folder format loses the optimizer's state, on one device too.
    if size == 32 or name == "model_tf":
        return
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(later, model, atol=1e-4)


def test_eager_training_is_refused_as_by_a_tpu() -> None:
    with pytest.raises((NotImplementedError, ValueError), match="eager"):
        fitted(strategy_of(2), **case(run_eagerly=True))
