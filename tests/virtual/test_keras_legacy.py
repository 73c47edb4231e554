"""tf_keras, the Keras of older notebooks, on a virtual TPU."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import strategy_of
from support.tiers import THOROUGH, thorough

pytestmark = [
    pytest.mark.filterwarnings("ignore:non-integer arguments to randrange:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file:UserWarning"),
]
# Beside Keras 3 in one process, which stays `tf.keras`.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "0")
keras = pytest.importorskip("tf_keras")

ROWS, BATCH = 24, 8
random = np.random.default_rng(0)
X = random.normal(size=[ROWS, 4]).astype(np.float32)
Y = (X @ random.normal(size=[4, 1])).astype(np.float32)
CLASSES = random.integers(0, 3, size=[ROWS])
WORDS = random.integers(0, 10, size=[ROWS, 5]).astype(np.int32)


def dense() -> Any:
    layers = keras.layers
    return keras.Sequential([layers.Dense(6, "tanh", input_shape=(4,)), layers.Dense(1)])


def recurrent() -> Any:
    words = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(10, 3)(words)
    return keras.Model(words, keras.layers.Dense(1)(keras.layers.LSTM(3)(x)))


def attention() -> Any:
    x = keras.Input((4,))
    series = keras.layers.Reshape((4, 1))(x)
    seen = keras.layers.MultiHeadAttention(2, 3)(series, series)
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.Flatten()(seen)))


def classes() -> Any:
    return keras.Sequential([keras.layers.Dense(3, "softmax", input_shape=(4,))])


def synchronised() -> Any:
    layers = keras.layers
    normalise = layers.BatchNormalization(synchronized=True)
    return keras.Sequential([layers.Dense(5, input_shape=(4,)), normalise, layers.Dense(1)])


def own_step() -> Any:
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


CASES: dict[str, dict[str, Any]] = {
    "metrics": {"metrics": ["mae"], "fit": {"validation_data": (X[:16], Y[:16])}},
    "recurrent": {"model": recurrent, "x": WORDS, "size": 2},
    "attention": {"model": attention},
    "classes": {
        "model": classes,
        "y": CLASSES,
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy"],
        "fit": {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}},
    },
    "synchronised": {"model": synchronised},
    "own step": {"model": own_step, "metrics": ["mae"]},
    "steps per execution": {"steps_per_execution": 3},
    "compiled": {"jit_compile": True},
    "rmsprop": {"optimizer": "rmsprop"},
}


def fitted(strategy: Any, epochs: int = 2, **options: Any) -> Any:
    options = {"model": dense, "x": X, "y": Y, "optimizer": "sgd", "loss": "mse", **options}
    fit = options.pop("fit", {})
    x, y = options.pop("x"), options.pop("y")
    with strategy.scope() if strategy else tf.device("/CPU:0"):
        keras.utils.set_random_seed(3)
        model = options.pop("model")()
        optimizer = keras.optimizers.get(options.pop("optimizer"))
        optimizer.learning_rate = 0.05
        model.compile(optimizer, **options)
    history = model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, **fit)
    return model, history.history


def assert_same(one: Any, other: Any, atol: float = 2e-5) -> None:
    weights = list(zip(one.get_weights(), other.get_weights(), strict=True))
    assert weights
    for wanted, found in weights:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["metrics", *thorough(sorted(CASES.keys() - {"metrics"}))])
def test_fit(name: str) -> None:
    case = dict(CASES[name])
    size = case.pop("size", (2, 4)[list(CASES).index(name) % 2])
    one, history = fitted(None, **case)
    model, found = fitted(strategy_of(size), **case)
    assert_same(one, model, atol=1e-4)
    for key, values in history.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-4, atol=1e-5)


@THOROUGH
@pytest.mark.filterwarnings("ignore:The last batch has 5 examples:tpunb.errors.TpuWarning")
def test_uneven_batches() -> None:
    """tf_keras divides by the rows of a replica's batch times the replicas, as Keras 3."""
    one, _ = fitted(None, x=X[:16], y=Y[:16])
    model, _ = fitted(strategy_of(4), x=X[:16], y=Y[:16])
    short = {"batch_size": BATCH, "verbose": 0}
    np.testing.assert_allclose(
        model.predict(X[:13], **short), one.predict(X[:13], **short), rtol=0, atol=1e-5
    )
    history = model.fit(X[:13], Y[:13], epochs=2, shuffle=False, **short).history["loss"]
    assert np.isfinite(history).all()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("saved")
    model, _ = fitted(strategy_of(2), optimizer="adam")
    for name in ("model.keras", "model.h5", "model_tf"):
        model.save(folder / name)
    predicted = model.predict(X, verbose=0)
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    return folder, predicted, model


@pytest.mark.parametrize(
    ("name", "size"),
    thorough([("model.keras", 4), ("model.keras", 32), ("model.h5", None), ("model_tf", 1)]),
)
def test_training_goes_on_from_a_file(saved: Any, name: str, size: int | None) -> None:
    folder, predicted, later = saved
    with strategy_of(size).scope() if size else contextlib.nullcontext():
        model = keras.models.load_model(folder / name)
    np.testing.assert_allclose(model(X), predicted, rtol=0, atol=1e-6)
    # The folder format forgets the optimizer's state, on one device too.
    if size == 32 or name == "model_tf":
        return
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(later, model, atol=1e-4)


@THOROUGH
def test_callbacks(tmp_path: Any) -> None:
    def callbacks(name: str) -> list[Any]:
        c = keras.callbacks
        return [
            c.EarlyStopping("val_loss", patience=1, min_delta=0.1, restore_best_weights=True),
            c.ModelCheckpoint(str(tmp_path / f"{name}.weights"), save_weights_only=True),
            c.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            c.CSVLogger(str(tmp_path / f"{name}.csv")),
        ]

    fit = {"validation_data": (X[:16], Y[:16])}
    one, history = fitted(None, epochs=4, fit={**fit, "callbacks": callbacks("one")})
    model, found = fitted(strategy_of(2), epochs=4, fit={**fit, "callbacks": callbacks("two")})
    assert set(found) == set(history)
    for key, values in history.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-4)
    assert_same(one, model)
    assert (tmp_path / "two.csv").exists()


def test_eager_training_is_refused_as_by_a_tpu() -> None:
    with pytest.raises((NotImplementedError, ValueError), match="eager"):
        fitted(strategy_of(2), run_eagerly=True)
