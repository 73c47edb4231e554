"""The models whose training is measured: a small model of each kind that notebooks use."""

from __future__ import annotations

from typing import Any

__all__ = ["MODELS", "inputs", "model"]

MODELS = {
    "mlp": "MLP",
    "cnn": "CNN",
    "lstm": "LSTM",
    "transformer": "transformer",
}
"""The models, with their names in tables."""

_WORDS = 1000
_LENGTH = 16
_CLASSES = 10


def inputs(name: str, batch: int) -> Any:
    """Return a batch of examples: images of 8 by 8 pixels, or sentences of 16 words.

    Args:
        name: The model's name.
        batch: The number of examples.
    """
    import tensorflow as tf

    if name == "transformer":
        return tf.random.stateless_uniform((batch, _LENGTH), (1, 2), 0, _WORDS, tf.int32)
    return tf.random.stateless_uniform((batch, 8, 8, 1), (1, 2))


def model(name: str) -> Any:
    """Return a new model.

    Args:
        name: One of `MODELS`.
    """
    import keras

    keras.utils.set_random_seed(0)
    if name == "transformer":
        return _transformer(keras)
    layers = {"mlp": _mlp, "cnn": _cnn, "lstm": _lstm}[name](keras.layers)
    return keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Dense(_CLASSES)])


def _mlp(layers: Any) -> list[Any]:
    return [
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dense(64, activation="relu"),
    ]


def _cnn(layers: Any) -> list[Any]:
    """Return the layers of TensorFlow's TPU guide, with a quarter of its channels."""
    return [
        layers.Conv2D(64, 3, activation="relu"),
        layers.Conv2D(64, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(32, activation="relu"),
    ]


def _lstm(layers: Any) -> list[Any]:
    """Return a loop over the rows of an image."""
    return [layers.Reshape((8, 8)), layers.LSTM(32)]


def _transformer(keras: Any) -> Any:
    """Return a model with one block of attention over embedded words."""
    layers = keras.layers
    words = keras.Input((_LENGTH,), dtype="int32")
    x = layers.Embedding(_WORDS, 32)(words)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 16)(x, x))
    dense = layers.Dense(32)(layers.Dense(64, activation="relu")(x))
    x = layers.LayerNormalization()(x + dense)
    return keras.Model(words, layers.Dense(_CLASSES)(layers.GlobalAveragePooling1D()(x)))
