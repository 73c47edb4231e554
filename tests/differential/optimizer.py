"""Run arithmetic that TensorFlow's optimizer may rewrite, with the optimizer and without.

A TPU computes what the program says: no CPU optimizer runs before XLA. The optimizer may therefore
change only the last digits of the virtual TPU's numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from differential.engine import strategy_of

EXACT = (
    "tf.maximum(x, 2.0 * x)",
    "tf.maximum(2.0 * x, x)",
    "tf.maximum(x, x + x)",
    "tf.maximum(tf.reshape(2.0 * x, [24]), x)",
    "tf.minimum(x, 2.0 * x)",
    "tf.maximum(x, -x)",
    "tf.minimum(tf.maximum(x, 0.0), 6.0)",
    "tf.where(x > 0.0, x, 2.0 * x)",
    "tf.nn.leaky_relu(x, 2.0)",
    "tf.math.log(1.0 + x)",
    "tf.math.log(x + 1.0)",
    "tf.math.log(1.0 + tf.exp(x))",
    "tf.math.log(tf.nn.softmax(100.0 * x))",
    "tf.exp(x) - 1.0",
    "tf.identity(tf.exp(-tf.abs(x))) - 1.0",
    "tf.reduce_max(tf.sqrt(x))",
    "tf.reduce_max(tf.math.log(x))",
    "tf.reduce_min(tf.math.rsqrt(x))",
    "tf.reduce_max(tf.math.acosh(x))",
    "tf.reduce_max(tf.reshape(tf.sqrt(x), [4, 6]), 1)",
    "tf.argmax(tf.sqrt(x))",
    "tf.argmax(tf.tanh(20.0 * x))",
    "tf.argmin(tf.nn.relu(x))",
    "tf.argmin(tf.floor(x))",
    "tf.reduce_max(tf.nn.relu(x))",
    "tf.reduce_max(tf.tanh(x))",
    "tf.reduce_max(-x)",
    "tf.nn.max_pool2d(tf.sqrt(image), 2, 2, 'SAME')",
    "tf.nn.max_pool2d(tf.nn.relu(image), 2, 2, 'SAME')",
    "tf.math.logical_not(x < y)",
    "tf.math.logical_not(x >= y)",
    "tf.math.logical_not(tf.equal(x, y))",
    "tf.cast(tf.math.logical_not(tf.identity(x <= y)), x.dtype)",
    "tf.cond(tf.math.logical_not(x[6] < y[6]), lambda: x, lambda: y)",
    "tf.while_loop(lambda i, z: i < 2, lambda i, z: (i + 1, tf.maximum(z, 3.0 * z)), [0, x])[1]",
    "tf.while_loop(lambda i, z: (i < 9) & (z[13] < 3.0), lambda i, z: (i + 1, steep(z, y)), [0, x])[1]",
    "x * 0.0",
    "0.0 / x",
    "x - x",
    "x / x",
    "tf.zeros_like(x) * x",
    "tf.linalg.matmul(x[None], tf.zeros([24, 24], x.dtype))",
    "-(-x)",
    "x + x + x",
    "tf.abs(tf.abs(x))",
    "tf.nn.relu(tf.nn.relu(x))",
    "tf.square(x - y)",
    "tf.sqrt(tf.square(x))",
    "tf.math.log(tf.exp(x))",
    "tf.exp(tf.math.log(x))",
    "tf.cast(tf.cast(x, tf.bfloat16), x.dtype)",
    "tf.cast(tf.cast(x, tf.float16), x.dtype)",
    "tf.clip_by_value(x, -1.0, 1.0)",
    "tf.math.multiply_no_nan(x, 0.0 * y)",
    "tf.split(tf.exp(tf.concat([x, y], 0)), 2)[0]",
)
"""Expressions whose results must be the same to the bit."""

ROUNDED = (
    "x / 3.0",
    "x / tf.sqrt(tf.abs(y))",
    "1.0 / tf.sqrt(tf.abs(x))",
    "1.0 / (1.0 / x)",
    "tf.pow(x, 2.0)",
    "tf.pow(x, 3.0)",
    "tf.pow(tf.abs(x), 0.5)",
    "tf.pow(tf.abs(x), -0.5)",
    "tf.pow(x, -1.0)",
    "(x * 3.0) * 0.1",
    "x * 0.1 + x * 0.2",
    "x + y + x",
    "tf.add_n([x, y, x])",
    "x * tf.sigmoid(x)",
    "x * tf.nn.relu6(x + 3.0) * 0.16666667",
    "x * tf.tanh(tf.nn.softplus(x))",
    "0.5 * x * (1.0 + tf.math.erf(x * 0.70710678))",
    "0.5 * x * (1.0 + tf.tanh(0.7978845608 * (x + 0.044715 * tf.pow(x, 3.0))))",
    "tf.linalg.matmul(0.5 * x[None], tf.transpose(kernel))",
    "x[None] @ kernel + x",
    "tf.nn.relu(tf.nn.bias_add(x[None] @ kernel, x))",
    "tf.nn.relu6(x[None] @ kernel + x)",
    "tf.nn.elu(tf.nn.bias_add(x[None] @ kernel, x))",
    "tf.tanh(tf.nn.bias_add(x[None] @ kernel, x))",
    "tf.nn.leaky_relu(tf.nn.bias_add(x[None] @ kernel, x), 2.0)",
    "tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(image, window, 1, 'SAME'), [0.1, -0.2]))",
    "tf.nn.elu(tf.nn.bias_add(tf.nn.conv2d(image, window, 1, 'SAME'), [0.1, -0.2]))",
    "tf.nn.relu(image + tf.nn.bias_add(tf.nn.conv2d(image, window, 1, 'SAME'), [0.1, -0.2]))",
    "tf.nn.relu(normed(tf.nn.conv2d(image, window, 1, 'SAME')))",
    "tf.nn.relu6(normed(image))",
    "tf.nn.silu(tf.nn.bias_add(x[None] @ kernel, x))",
    "tf.nn.gelu(tf.nn.bias_add(x[None] @ kernel, x), approximate=True)",
    "3.0 * tf.nn.conv2d(image, window, 1, 'SAME')",
    "tf.nn.batch_normalization(kernel, x, tf.abs(y) + 1.0, x, y, 1e-3)",
    "tf.math.reduce_std(x)",
    "tf.math.l2_normalize(x)",
)
"""Expressions whose last digits the optimizer may change.

It multiplies by a reciprocal, adds in another order, or fuses two operations into one kernel.
"""

_SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-30, 120.0, -120.0, 1e-9, 0.5)
_NAMES = ("x", "y", "kernel", "image", "window")
_REPLICAS = 2


def differences(*, special: bool, varying: bool) -> list[str]:
    """Describe the expressions whose results TensorFlow's optimizer changes.

    Args:
        special: Whether the numbers include NaN, infinities and zeros.
        varying: Whether each replica has its own numbers.
    """
    strategy = strategy_of(_REPLICAS, strict=False)
    names = {"tf": tf, "steep": _steep, "normed": _normed}
    expressions = {
        text: eval(f"lambda {', '.join(_NAMES)}: {text}", names) for text in EXACT + ROUNDED
    }

    @tf.function(autograph=False)
    def run(*columns: Any) -> Any:
        def replica(*stacks: Any) -> Any:
            # Separate inputs for each: the optimizer skips nodes that two expressions share.
            inputs = zip(*map(tf.unstack, stacks), strict=True)
            pairs = zip(expressions.items(), inputs, strict=True)
            return {text: compute(*values) for (text, compute), values in pairs}

        return strategy.run(replica, args=columns)

    count = len(expressions)
    columns = [
        strategy.experimental_distribute_values_from_function(
            lambda context, place=place: tf.stack(
                [_inputs(context.replica_id_in_sync_group, special)[place]] * count
            )
        )
        for place in range(len(_NAMES))
    ]
    if not varying:
        columns = [strategy.experimental_local_results(column)[0] for column in columns]
    with optimizer(enabled=False):
        expected = run(*columns)
    with optimizer(enabled=True):
        actual = run(*columns)
    different = []
    for text in expressions:
        both = map(strategy.experimental_local_results, (expected[text], actual[text]))
        for replica, (without, using) in enumerate(zip(*both, strict=True)):
            if not _are_alike(without.numpy(), using.numpy(), exact=text in EXACT):
                different.append(f"{text}, replica {replica}: {without} without, {using} with it")
    return different


def _steep(z: Any, y: Any) -> Any:
    return tf.where(tf.math.logical_not(z < y), tf.maximum(z, 3.0 * z), z + 1.0)


def _normed(images: Any) -> Any:
    return tf.raw_ops.FusedBatchNormV3(
        x=images,
        scale=[1.0, 2.0],
        offset=[0.1, 0.2],
        mean=[0.5, 1.0],
        variance=[2.0, 3.0],
        is_training=False,
    )[0]


@contextlib.contextmanager
def optimizer(*, enabled: bool) -> Iterator[None]:
    """Run the block with TensorFlow's optimizer enabled or disabled."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not enabled})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def _inputs(replica: int, special: bool) -> list[Any]:
    rng = np.random.default_rng(replica)
    x, y = rng.normal(size=(2, 24)) * 3
    image = rng.normal(size=(2, 6, 6, 2))
    if special:
        x[: len(_SPECIAL)] = _SPECIAL
        y = rng.permutation(x)
        y[6] = 1.0  # y[6] is compared with NaN.
        image[rng.random(image.shape) < 0.1] = np.nan
    values = (x, y, rng.normal(size=(24, 24)), image, rng.normal(size=(3, 3, 2, 2)))
    return [tf.constant(value, tf.float32) for value in values]


def _are_alike(without: Any, using: Any, *, exact: bool) -> bool:
    if exact:
        return bool(np.array_equal(without, using, equal_nan=without.dtype.kind == "f"))
    return bool(np.allclose(without, using, 1e-4, 1e-5, equal_nan=True))
