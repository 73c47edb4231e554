"""Compare the time estimate with published step times that were measured on TPUs.

    cd tests && python -m verdicts.measured [NAMES]

Prints a row of the table in `docs/compiler-accuracy.md` for each model. Compiles each model at full
effort, which takes minutes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

from tpunb.compiler.compile import compile as compile_for
from tpunb.virtual import VirtualTPUStrategy
from verdicts.printed import say_row

Built = tuple[Any, tuple[tf.TensorSpec, ...]]


Row = tuple[str, Callable[[], Built], float]
"""A TPU type, a factory of the model or function that ran there, and the seconds of a step."""


def images(
    kind: str, size: int, batch: int, optimizer: Callable[[], Any], *, bf16: bool = True
) -> Callable[[], Built]:
    """A model of Keras's applications, with `batch` images on each of 8 cores."""

    def build() -> Built:
        keras.mixed_precision.set_global_policy("mixed_bfloat16" if bf16 else "float32")
        model = getattr(keras.applications, kind)(weights=None, input_shape=(size, size, 3))
        model.compile(optimizer(), "sparse_categorical_crossentropy")
        whole = 8 * batch
        return model, (tf.TensorSpec([whole, size, size, 3]), tf.TensorSpec([whole], tf.int64))

    return build


def momentum() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def rmsprop() -> Any:
    return keras.optimizers.RMSprop(0.01, momentum=0.9)


class Bert(keras.Model):
    """BERT-base with both heads, for sequences of 512 tokens."""

    def __init__(self, vocabulary: int = 32000, hidden: int = 768, layers: int = 12) -> None:
        super().__init__()
        k = keras.layers
        self.words, self.places = k.Embedding(vocabulary, hidden), k.Embedding(512, hidden)
        self.kinds, self.first = k.Embedding(2, hidden), k.LayerNormalization()
        self.attention = [
            k.MultiHeadAttention(12, hidden // 12, dropout=0.1) for _ in range(layers)
        ]
        self.wide = [k.Dense(4 * hidden, "gelu") for _ in range(layers)]
        self.narrow = [k.Dense(hidden) for _ in range(layers)]
        self.norms = [k.LayerNormalization() for _ in range(2 * layers)]
        self.drops = [k.Dropout(0.1) for _ in range(2 * layers + 1)]
        self.head, self.last = k.Dense(hidden, "gelu"), k.LayerNormalization()
        self.bias = self.add_weight(shape=[vocabulary], initializer="zeros")
        self.pooled, self.next = k.Dense(hidden, "tanh"), k.Dense(2)

    def call(self, tokens: Any, kinds: Any, mask: Any, masked: Any, training: bool = True) -> Any:
        x = self.words(tokens) + self.places(tf.range(512)) + self.kinds(kinds)
        x = self.drops[-1](self.first(x), training=training)
        visible = tf.cast(mask, tf.bool)[:, None, :]
        for place, attend in enumerate(self.attention):
            change = attend(x, x, attention_mask=visible, training=training)
            change = self.drops[2 * place](change, training=training)
            x = self.norms[2 * place](x + change)
            change = self.narrow[place](self.wide[place](x))
            change = self.drops[2 * place + 1](change, training=training)
            x = self.norms[2 * place + 1](x + change)
        words = self.last(self.head(tf.gather(x, masked, batch_dims=1)))
        logits = tf.matmul(words, self.words.embeddings, transpose_b=True) + self.bias
        return logits, self.next(self.pooled(x[:, 0]))


def bert(batch: int, masked: int) -> Callable[[], Built]:
    """A pretraining step in float32, with `batch` sequences on a core."""

    def build() -> Built:
        keras.mixed_precision.set_global_policy("float32")
        model, optimizer = Bert(), keras.optimizers.AdamW(1e-4)
        model(*[tf.zeros([1, size], tf.int32) for size in (512, 512, 512, masked)])
        optimizer.build(model.trainable_variables)
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits

        @tf.function
        def step(tokens: Any, kinds: Any, mask: Any, places: Any, words: Any, follows: Any) -> Any:
            with tf.GradientTape() as tape:
                logits, relation = model(tokens, kinds, mask, places)
                loss = tf.reduce_mean(cross_entropy(words, logits))
                loss += tf.reduce_mean(cross_entropy(follows, relation))
            gradients = tape.gradient(loss, model.trainable_variables)
            gradients = list(map(tf.convert_to_tensor, gradients))
            gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        sizes = (
            [batch, 512],
            [batch, 512],
            [batch, 512],
            [batch, masked],
            [batch, masked],
            [batch],
        )
        return step, tuple(tf.TensorSpec(size, tf.int32) for size in sizes)

    return build


def product(size: int, dtype: Any) -> Callable[[], Built]:
    return lambda: (tf.function(tf.matmul), (tf.TensorSpec([size, size], dtype),) * 2)


def sine() -> Built:
    return tf.function(tf.sin), (tf.TensorSpec([8192, 8192]),)


ROWS: dict[str, Row] = {
    "ResNet-50": ("v3-8", images("ResNet50", 224, 128, momentum), 0.137),
    "ResNet-50 on v2": ("v2-8", images("ResNet50", 224, 128, momentum), 0.229),
    "EfficientNet-B7, 512², 16 a core, float32": (
        "v3-8",
        images("EfficientNetB7", 512, 16, keras.optimizers.Adam, bf16=False),
        0.915,
    ),
    "EfficientNet-B0": ("v2-8", images("EfficientNetB0", 224, 128, rmsprop), 0.189),
    "BERT-base, 16 of 512 a core": ("v3-8", bert(16, 75), 0.302),
    "BERT-base, 32 of 512 a core": ("v3-8", bert(32, 80), 0.605),
    "8192³, float32": ("v3-1", product(8192, tf.float32), 19.3e-3),
    "sine of 8192²": ("v3-1", sine, 9.69e-3),
    "4096³, bfloat16": ("v5e-1", product(4096, tf.bfloat16), 827e-6),
    "8192³, bfloat16": ("v5e-1", product(8192, tf.bfloat16), 6.05e-3),
    "1024³, bfloat16": ("v5e-1", product(1024, tf.bfloat16), 119e-6),
}


def main() -> None:
    """Print the rows."""
    strategy = VirtualTPUStrategy("v3-8")
    for name in sys.argv[1:] or ROWS:
        tpu, build, seconds = ROWS[name]
        alone = tpu.endswith("-1")
        with tf.distribute.get_strategy().scope() if alone else strategy.scope():
            model, specs = build()
        program = compile_for(
            model,
            *specs,
            tpu="v3-8" if tpu == "v3-1" else tpu,
            strategy=None if alone else strategy,
            speed=True,
            timeout=3600,
        )
        say_row(name, tpu, program, seconds)


if __name__ == "__main__":
    main()
