"""Compare the peak memory of twelve models, with tpunb and with libtpu alone.

    cd tests && python -m verdicts.models [--all-effort] [NAMES]

The models are of Keras 3 and tf_keras, and built without a strategy. `tpunb.compile` compiles each
model; TensorFlow alone lowers its train step, and libtpu alone compiles it. The command fails if
peaks differ by more than 1%.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from verdicts.compare import TPU, Compiler, Itself, alone
from verdicts.printed import say

BATCH = 64
Built = tuple[Any, tuple[tf.TensorSpec, ...]]


def _compiled(keras: Any, model: Any, sizes: tuple[int, ...], dtype: Any = tf.float32) -> Built:
    model.compile(keras.optimizers.Adam(), "sparse_categorical_crossentropy")
    return model, (tf.TensorSpec([BATCH, *sizes], dtype), tf.TensorSpec([BATCH], tf.int64))


def mlp(keras: Any) -> Built:
    k = keras.layers
    layers = [k.Dense(2048, "relu"), k.Dropout(0.2), k.Dense(2048, "relu"), k.Dense(10, "softmax")]
    return _compiled(keras, keras.Sequential([keras.Input([784]), *layers]), (784,))


def cnn(keras: Any) -> Built:
    k = keras.layers
    layers = [k.Conv2D(64, 3, activation="relu"), k.MaxPooling2D(), k.Conv2D(128, 3), k.Flatten()]
    last = k.Dense(10, "softmax")
    model = keras.Sequential([keras.Input([32, 32, 3]), *layers, k.BatchNormalization(), last])
    return _compiled(keras, model, (32, 32, 3))


def lstm(keras: Any) -> Built:
    k = keras.layers
    layers = [k.Embedding(5000, 128), k.LSTM(256, return_sequences=True), k.LSTM(128)]
    model = keras.Sequential([keras.Input([80], dtype="int32"), *layers, k.Dense(10, "softmax")])
    return _compiled(keras, model, (80,), tf.int32)


def gru(keras: Any) -> Built:
    k = keras.layers
    layers = [k.Bidirectional(k.GRU(64)), k.Dense(10, "softmax")]
    return _compiled(keras, keras.Sequential([keras.Input([50, 32]), *layers]), (50, 32))


def transformer(keras: Any) -> Built:
    k = keras.layers
    tokens = keras.Input([128], dtype="int32")
    x = k.Embedding(8000, 256)(tokens)
    for _ in range(2):
        x = k.LayerNormalization()(x + k.MultiHeadAttention(4, 64)(x, x))
        x = k.LayerNormalization()(x + k.Dense(256)(k.Dense(1024, "relu")(x)))
    last = k.Dense(10, "softmax")(k.GlobalAveragePooling1D()(x))
    return _compiled(keras, keras.Model(tokens, last), (128,), tf.int32)


def autoencoder(keras: Any) -> Built:
    k = keras.layers
    layers = [k.Conv2D(32, 3, 2, "same"), k.Conv2DTranspose(32, 3, 2, "same"), k.Flatten()]
    last = k.Dense(10, "softmax")
    return _compiled(
        keras, keras.Sequential([keras.Input([64, 64, 3]), *layers, last]), (64, 64, 3)
    )


def separable(keras: Any) -> Built:
    k = keras.layers
    layers = [k.SeparableConv2D(64, 3), k.DepthwiseConv2D(3), k.GlobalAveragePooling2D()]
    model = keras.Sequential([keras.Input([48, 48, 3]), *layers, k.Dense(10, "softmax")])
    return _compiled(keras, model, (48, 48, 3))


def mobilenet(keras: Any) -> Built:
    model = keras.applications.MobileNetV2(weights=None, input_shape=(96, 96, 3), classes=10)
    return _compiled(keras, model, (96, 96, 3))


def resnet(keras: Any) -> Built:
    model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)
    return _compiled(keras, model, (64, 64, 3))


MODELS: dict[str, tuple[str, Callable[[Any], Built]]] = {
    "mlp": ("keras", mlp),
    "cnn": ("keras", cnn),
    "lstm": ("keras", lstm),
    "gru": ("keras", gru),
    "transformer": ("keras", transformer),
    "separable": ("keras", separable),
    "mobilenet": ("keras", mobilenet),
    "resnet": ("keras", resnet),
    "old mlp": ("tf_keras", mlp),
    "old cnn": ("tf_keras", cnn),
    "old lstm": ("tf_keras", lstm),
    "old autoencoder": ("tf_keras", autoencoder),
}
"""The Keras package and the builder of each model, by name."""


def built(name: str) -> Built:
    """A compiled model, and the specs of its batch."""
    package, make = MODELS[name]
    return make(__import__(package))


def itself(model: Any, specs: tuple[tf.TensorSpec, ...], compiler: Compiler) -> Itself:
    """libtpu's own verdict on a model's train step; the optimizer must be built."""
    step = tf.function(lambda x, y: model.train_step((x, y)), jit_compile=True)
    return alone(step.experimental_get_compiler_ir(*specs)(stage="hlo_serialized"), compiler)


def main() -> int:
    """Compare the peaks; return 1 if one is off."""
    from tpunb.compiler.compile import compile as compile_for

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument(
        "--all-effort",
        action="store_true",
        help="libtpu alone compiles at full effort: ten times longer",
    )
    options = parser.parse_args()
    compiler, off = Compiler(effort="" if options.all_effort else None), 0
    for name in options.names:
        model, specs = built(name)
        memory = compile_for(model, *specs, tpu=TPU).memory
        own = itself(model, specs, compiler)
        error = memory.peak / own.peak - 1 if memory and own.peak else float("nan")
        off += not (abs(error) <= 0.01 or own.otherwise)  # as with dropout
        say(f"{name}: {memory and memory.peak} {own.peak} {error:+.2%} {own.refused}")
    compiler.close()
    return int(bool(off))


if __name__ == "__main__":
    sys.exit(main())
