"""The models, data and fits of the tests of Keras 3; it holds no tests itself."""

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
    # Keras turns variables into arrays in NumPy 1's way when it saves them.
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


def dense() -> Any:
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)]
    )


def unbuilt() -> Any:
    return keras.Sequential([keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])


def recurrent() -> Any:
    layers = keras.layers
    words = keras.Input((5,), dtype="int32")
    x = layers.Embedding(10, 3, mask_zero=True)(words)
    return keras.Model(words, layers.Dense(1)(layers.Bidirectional(layers.LSTM(3))(x)))


def attention() -> Any:
    series = keras.Input((5, 4))
    x = keras.layers.MultiHeadAttention(2, 3)(series, series)
    x = keras.layers.LayerNormalization()(x + series)
    return keras.Model(series, keras.layers.Dense(1)(keras.layers.Flatten()(x)))


def convolution() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )


def two_outputs() -> Any:
    x = keras.Input((4,))
    hidden = keras.layers.Dense(5, activation="tanh")(x)
    outputs = {
        "a": keras.layers.Dense(1, name="a")(hidden),
        "b": keras.layers.Dense(3, activation="softmax", name="b")(hidden),
    }
    return keras.Model(x, outputs)


def deep() -> Any:
    inputs = x = keras.Input((4,))
    for _ in range(5):
        x = x + 0.1 * keras.layers.Dense(4, activation="tanh")(x)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def regularised() -> Any:
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(6, kernel_regularizer="l2", bias_regularizer="l1"),
            keras.layers.Dense(1),
        ]
    )


def classes() -> Any:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


def with_a_loss_of_its_own() -> Any:
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = keras.layers.Dense(6), keras.layers.Dense(1)
            self.dropout = keras.layers.Dropout(0.0)

        def call(self, x: Any, training: bool = False) -> Any:
            hidden = self.dropout(self.hidden(x), training=training)
            self.add_loss(0.01 * tf.reduce_mean(hidden**2))
            return self.out(hidden)

    return Model()


def with_a_step_of_its_own() -> Any:
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.out = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.out(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            self._loss_tracker.update_state(
                loss * tf.distribute.get_strategy().num_replicas_in_sync
            )
            return {"loss": self._loss_tracker.result()}

    return Model()


def crossentropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def case(
    model: Callable[[], Any] = dense,
    x: Any = X,
    y: Any = Y,
    optimizer: Any = "sgd",
    fit: dict[str, Any] | None = None,
    **compiling: Any,
) -> dict[str, Any]:
    fit = fit or {}
    return {"model": model, "x": x, "y": y, "optimizer": optimizer, "fit": fit, **compiling}


WEIGHTS = np.linspace(0.0, 1.0, ROWS, dtype=np.float32)
CASES: dict[str, dict[str, Any]] = {
    "not built": case(unbuilt, metrics=["mae"]),
    "recurrent": case(recurrent, WORDS),
    "attention": case(attention, SERIES),
    "convolution": case(convolution, IMAGES, CLASSES, loss=crossentropy, metrics=["accuracy"]),
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
        classes, y=CLASSES, loss=crossentropy, fit={"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}
    ),
    "sample weights": case(weighted_metrics=["mae"], fit={"sample_weight": WEIGHTS}),
    "validation split": case(metrics=["mae"], fit={"validation_split": 1 / 3}),
    "validation data": case(fit={"validation_data": (X[:10], Y[:10])}),
    "steps per execution": case(steps_per_execution=2),
    "tensors": case(x=tf.convert_to_tensor, y=tf.convert_to_tensor),
    **{name: case(optimizer=name) for name in ("adamw", "adafactor", "lion", "nadam")},
}


def compiled(strategy: Any, **options: Any) -> Any:
    options = {"model": dense, "optimizer": "sgd", "loss": "mse", **options}
    with strategy.scope() if strategy else tf.device("/CPU:0"):
        keras.utils.set_random_seed(3)
        model = options.pop("model")()
        optimizer = keras.optimizers.get(options.pop("optimizer"))
        optimizer.learning_rate = 0.05
        if callable(options["loss"]):
            options["loss"] = options["loss"]()
        model.compile(optimizer, **options)
    return model


def fitted(strategy: Any, x: Any, y: Any, fit: dict[str, Any], **options: Any) -> Any:
    if callable(x):
        x, y = x(X), y(Y)
    model = compiled(strategy, **options)
    history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, **fit)
    return model, history.history


def assert_same(one: Any, other: Any, atol: float = 2e-5) -> None:
    weights = list(zip(one.get_weights(), other.get_weights(), strict=True))
    assert weights
    for wanted, found in weights:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)
