"""Replica functions of single operations, of which each has a rule for all replicas together."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

RNG = np.random.default_rng(11)
TABLE = RNG.normal(size=[9, 5]).astype(np.float32)
SHARED = RNG.normal(size=[5, 6]).astype(np.float32)
KERNEL = RNG.normal(size=[2, 2, 3, 4]).astype(np.float32)
DEPTHWISE = RNG.normal(size=[2, 2, 3, 2]).astype(np.float32)


def elements(x: Any, y: Any) -> list[Any]:
    first, scalar = x[:1], tf.reduce_sum(y)
    return [
        tf.nn.relu(x) + tf.tanh(y),
        x * first,
        x * TABLE[:1],
        x - TABLE[0],
        x + TABLE[:3],
        x * scalar + scalar,
        TABLE[0] * scalar,
        tf.where(x > 0.0, x, y),
        tf.where(scalar > 0.0, x, TABLE[:3]),
        tf.cast(x, tf.int32) + tf.constant([1, 2, 3, 4, 5]),
        tf.math.squared_difference(x, y),
        tf.add_n([x, y, x]),
        tf.bitcast(x, tf.int32),
        tf.raw_ops.ReluGrad(gradients=tf.ones_like(x), features=y),
    ]


def reductions(x: Any, y: Any) -> list[Any]:
    images = tf.reshape(tf.concat([x, y], 1), [3, 5, 2])
    return [
        *(
            tf.reduce_sum(images, axis, keepdims=k)
            for axis in (0, 1, -1, [0, 2], None)
            for k in (0, 1)
        ),
        tf.reduce_mean(x, 0),
        tf.reduce_max(images, [1, 2]),
        tf.reduce_all(x > 0.0, 1),
        tf.argmax(x, 0),
        tf.argmin(images, -1),
        tf.cumsum(x, 0),
        tf.cumsum(images, 1, reverse=True),
        tf.reverse(images, [0, 2]),
        tf.nn.softmax(x),
        tf.nn.log_softmax(x[0]),
        tf.math.top_k(x, 2),
        tf.math.in_top_k([1, 0, 2], x, 2),
        tf.nn.sparse_softmax_cross_entropy_with_logits([1, 4, 0], x),
        tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(y), x),
    ]


def shapes(x: Any, y: Any) -> list[Any]:
    images = tf.reshape(tf.concat([x, y], 1), [3, 5, 2])
    return [
        tf.reshape(x, [3, 1, 5]),
        tf.reshape(x, [-1]),
        tf.reshape(images, [15, 2]),
        tf.transpose(images, [0, 2, 1]),
        tf.transpose(images),
        tf.expand_dims(x, 0),
        tf.expand_dims(x, -1),
        tf.squeeze(tf.expand_dims(x, 1)),
        tf.concat([x, TABLE[:3], y], 1),
        tf.concat([x, TABLE], 0),
        tf.stack([x, y], 1),
        tf.stack([x, TABLE[:3]], -1),
        tf.unstack(images, axis=-1),
        tf.unstack(x),
        tf.split(images, 5, 1),
        tf.split(x, [1, 2], 0),
        tf.split(images, [2, 3], -2),
        images[1, ..., tf.newaxis, ::2],
        images[:, -1],
        images[::-1, 1:4:2, :1],
        tf.slice(images, [1, 0, 1], [2, -1, 1]),
        tf.pad(x, [[1, 0], [2, 3]]),
        tf.pad(x, [[1, 1], [0, 2]], constant_values=3.0),
        tf.pad(x, [[1, 1], [0, 2]], "REFLECT"),
        tf.tile(x, [2, 3]),
        tf.broadcast_to(x[:, :1], [2, 3, 4]),
        tf.one_hot(tf.argmax(x, 1), 7),
        tf.one_hot(tf.argmax(x, 1), 7, axis=0),
        tf.one_hot(tf.argmax(x[0]), 7),
        tf.gather(TABLE, tf.argmax(x, 1)),
        tf.gather(TABLE, tf.argmax(x[0])),
        tf.gather(images, tf.argmax(x, 1), axis=1),
        tf.gather(images, [1, 0], axis=-1),
        tf.gather(images, tf.argmax(images, -1), axis=2, batch_dims=2),
    ]


def products(x: Any, y: Any) -> list[Any]:
    images = tf.reshape(tf.concat([x, y], 1), [3, 5, 2])
    pixels = tf.reshape(tf.tile(images, [1, 3, 1]), [2, 5, 3, 3])
    return [
        x @ SHARED,
        tf.matmul(x, SHARED, transpose_b=False) @ tf.transpose(SHARED),
        tf.matmul(SHARED, x, transpose_a=True, transpose_b=True),
        tf.matmul(x, y, transpose_b=True),
        tf.matmul(x, y, transpose_a=True),
        tf.matmul(images, images, transpose_a=True),
        tf.matmul(images, SHARED[:2]),
        tf.matmul(tf.expand_dims(SHARED, 0), images, transpose_a=True),
        tf.einsum("abc,cd->abd", images, SHARED[:2]),
        tf.einsum("abc,adc->abd", images, images),
        tf.nn.bias_add(x, TABLE[0]),
        tf.nn.conv2d(pixels, KERNEL, 1, "SAME"),
        tf.nn.depthwise_conv2d(pixels, DEPTHWISE, [1, 1, 1, 1], "VALID"),
        tf.nn.max_pool2d(pixels, 2, 1, "VALID"),
        tf.nn.avg_pool2d(pixels, 2, 2, "SAME"),
        tf.image.resize(pixels, [7, 4]),
        tf.raw_ops.FusedBatchNormV3(
            x=pixels,
            scale=TABLE[0, :3],
            offset=TABLE[1, :3],
            mean=TABLE[2, :3],
            variance=TABLE[3, :3] ** 2,
            is_training=False,
        ).y,
    ]
