"""Models, data and fits for the Keras tests, of Keras 3 by default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

keras = pytest.importorskip("keras")

MARKS = [
    pytest.mark.usefixtures("fresh_keras_names"),
    pytest.mark.filterwarnings("ignore:.*shuffle=True. was passed:UserWarning"),
    # When Keras saves variables, it converts them to arrays the NumPy 1 way.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

ROWS, BATCH = 24, 8
random = np.random.default_rng(0)
X = random.normal(size=[ROWS, 4]).astype(np.float32)
Y = (X @ random.normal(size=[4, 1])).astype(np.float32)
CLASSES = random.integers(0, 3, size=[ROWS])
SERIES = random.normal(size=[ROWS, 5, 4]).astype(np.float32)
WORDS = random.integers(0, 10, size=[ROWS, 5]).astype(np.int32)
IMAGES = random.normal(size=[ROWS, 6, 6, 2]).astype(np.float32)


def sequential(api: Any, *layers: Any, shape: tuple[int, ...] = (4,)) -> Any:
    return api.Sequential([api.Input(shape), *layers])


def dense(api: Any = keras) -> Any:
    return sequential(api, api.layers.Dense(6, activation="tanh"), api.layers.Dense(1))


def unbuilt(api: Any) -> Any:
    return api.Sequential([api.layers.Dense(6, activation="tanh"), api.layers.Dense(1)])


def recurrent(api: Any) -> Any:
    layers = api.layers
    words = api.Input((5,), dtype="int32")
    x = layers.Embedding(10, 3, mask_zero=True)(words)
    return api.Model(words, layers.Dense(1)(layers.Bidirectional(layers.LSTM(3))(x)))


def gated(api: Any) -> Any:
    layers = api.layers
    return sequential(api, layers.Embedding(10, 3), layers.GRU(4), layers.Dense(1), shape=(5,))


def attention(api: Any) -> Any:
    series = api.Input((5, 4))
    x = api.layers.MultiHeadAttention(2, 3)(series, series)
    x = api.layers.LayerNormalization()(x + series)
    return api.Model(series, api.layers.Dense(1)(api.layers.Flatten()(x)))


def convolution(api: Any) -> Any:
    layers = [
        api.layers.Conv2D(4, 3, activation="relu"),
        api.layers.MaxPooling2D(),
        api.layers.GlobalAveragePooling2D(),
        api.layers.Dense(3),
    ]
    return sequential(api, *layers, shape=(6, 6, 2))


def synchronised(api: Any) -> Any:
    normalise = api.layers.BatchNormalization(synchronized=True)
    return sequential(api, api.layers.Dense(6), normalise, api.layers.Dense(1))


def two_outputs(api: Any) -> Any:
    x = api.Input((4,))
    hidden = api.layers.Dense(5, activation="tanh")(x)
    outputs = {
        "a": api.layers.Dense(1, name="a")(hidden),
        "b": api.layers.Dense(3, activation="softmax", name="b")(hidden),
    }
    return api.Model(x, outputs)


def deep(api: Any) -> Any:
    inputs = x = api.Input((4,))
    for _ in range(5):
        x = x + 0.1 * api.layers.Dense(4, activation="tanh")(x)
    return api.Model(inputs, api.layers.Dense(1)(x))


def regularised(api: Any) -> Any:
    hidden = api.layers.Dense(6, kernel_regularizer="l2", bias_regularizer="l1")
    return sequential(api, hidden, api.layers.Dense(1))


def classes(api: Any) -> Any:
    return sequential(api, api.layers.Dense(3, "softmax"))


def with_a_loss_of_its_own(api: Any) -> Any:
    class Model(api.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = api.layers.Dense(6), api.layers.Dense(1)
            self.dropout = api.layers.Dropout(0.0)

        def call(self, x: Any, training: bool = False) -> Any:
            hidden = self.dropout(self.hidden(x), training=training)
            self.add_loss(0.01 * tf.reduce_mean(hidden**2))
            return self.out(hidden)

    return Model()


def with_a_step_of_its_own(api: Any) -> Any:
    class Model(api.Model):
        def __init__(self) -> None:
            super().__init__()
            self.out = api.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.out(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self._loss_tracker.update_state(
                loss * tf.distribute.get_strategy().num_replicas_in_sync
            )
            return {"loss": self._loss_tracker.result()}

    return Model()


def crossentropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def words_in_batches() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((WORDS, Y)).batch(BATCH)


def confusion() -> list[Any]:
    return [keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")]


def case(
    model: Callable[[Any], Any] = dense,
    x: Any = X,
    y: Any = Y,
    optimizer: Any = "sgd",
    fit: dict[str, Any] | None = None,
    **compiling: Any,
) -> dict[str, Any]:
    fit = fit or {}
    return {"model": model, "x": x, "y": y, "optimizer": optimizer, "fit": fit, **compiling}


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
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
WEIGHTS = np.linspace(0.0, 1.0, ROWS, dtype=np.float32)
CASES: dict[str, dict[str, Any]] = {
    "not built": case(unbuilt, metrics=["mae"]),
    "recurrent": case(recurrent, WORDS),
    "gated": case(gated, x=lambda _: words_in_batches(), y=lambda _: None),
    "attention": case(attention, SERIES),
    "convolution": case(convolution, IMAGES, CLASSES, loss=crossentropy, metrics=["accuracy"]),
    "synchronised": case(synchronised),
    "two outputs": case(
        two_outputs,
        y={"a": Y, "b": CLASSES},
        loss={"a": "mse", "b": "sparse_categorical_crossentropy"},
        loss_weights={"a": 0.3, "b": 2.0},
        metrics={"a": ["mae"], "b": ["accuracy"]},
    ),
    "deep": case(deep),
    "regularised": case(regularised),
    "own loss": case(with_a_loss_of_its_own),
    "own step": case(with_a_step_of_its_own),
    "class weights": case(
        classes,
        y=CLASSES,
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        fit={"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}},
    ),
    "confusion": case(y=(Y > 0).astype(np.float32), loss="binary_crossentropy", metrics=confusion),
    "sample weights": case(weighted_metrics=["mae"], fit={"sample_weight": WEIGHTS}),
    "validation split": case(metrics=["mae"], fit={"validation_split": 1 / 3}),
    "validation data": case(fit={"validation_data": (X[:10], Y[:10])}),
    "steps per execution": case(steps_per_execution=2),
    "tensors": case(x=tf.convert_to_tensor, y=tf.convert_to_tensor),
    **{name: case(optimizer=name) for name in ("adam", "adamw", "adafactor", "lion", "nadam")},
    **{name: case(optimizer=optimizer) for name, optimizer in OPTIMIZERS.items()},
}


def compiled(strategy: Any, api: Any = keras, **options: Any) -> Any:
    options = {"model": dense, "optimizer": "sgd", "loss": "mse", **options}
    with strategy.scope() if strategy else tf.device("/CPU:0"):
        api.utils.set_random_seed(3)
        model, optimizer = options.pop("model")(api), options.pop("optimizer")
        if callable(optimizer):
            optimizer = optimizer()
        else:
            optimizer = api.optimizers.get(optimizer)
            optimizer.learning_rate = 0.05
        arguments = {name: value() if callable(value) else value for name, value in options.items()}
        model.compile(optimizer, **arguments)
    return model


def fitted(
    strategy: Any,
    x: Any,
    y: Any,
    fit: dict[str, Any],
    *,
    batch: int = BATCH,
    epochs: int = 2,
    **options: Any,
) -> Any:
    if callable(x):
        x, y = x(X), y(Y)
    model = compiled(strategy, **options)
    size = None if isinstance(x, tf.data.Dataset) else batch  # a dataset has its own batches
    history = model.fit(x, y, batch_size=size, epochs=epochs, shuffle=False, verbose=0, **fit)
    return model, history.history


def assert_same(expected: Any, model: Any, atol: float = 2e-5) -> None:
    weights = list(zip(expected.get_weights(), model.get_weights(), strict=True))
    assert weights
    for wanted, actual in weights:
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=atol)


def assert_same_history(expected: dict[str, Any], actual: dict[str, Any]) -> None:
    assert set(actual) == set(expected)
    for key, values in expected.items():
        np.testing.assert_allclose(actual[key], values, rtol=1e-4, atol=1e-5)


def assert_trained_alike(
    reference: Any, strategy: Any, fit_case: dict[str, Any], *, atol: float = 2e-5, **options: Any
) -> None:
    """Compare a fit's weights and histories on two strategies, or on a strategy and a device."""
    (expected, expected_history), (model, history) = (
        fitted(on, **fit_case, **options) for on in (reference, strategy)
    )
    assert_same(expected, model, atol)
    assert_same_history(expected_history, history)


def squares_lessened(model: Any, optimizer: Any, x: Any) -> Any:
    """Take a custom training step towards outputs of zero, and return its loss."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss
