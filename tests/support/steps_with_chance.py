"""Losses of training steps that draw random numbers, for `tpunb.compare`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

FEATURES = 6

Loss = Callable[[Any, Any, Any], Any]
LOSSES: dict[str, Loss] = {}
"""The mean loss of a replica's examples `x`, `y`, given a model of as many outputs as features."""


def _loss(function: Loss) -> Loss:
    LOSSES[function.__name__.strip("_")] = function
    return function


def _error(model: Any, x: Any, target: Any) -> Any:
    return tf.reduce_mean(tf.square(model(x, training=True) - target))


@_loss
def _diffusion(model: Any, x: Any, _: Any) -> Any:
    step = tf.random.uniform([tf.shape(x)[0], 1], 0, 100, tf.int32)
    share, noise = tf.cast(step, tf.float32) / 100, tf.random.normal(tf.shape(x))
    return _error(model, tf.sqrt(1 - share) * x + tf.sqrt(share) * noise, noise)


@_loss
def _mixup_of_shuffled_examples(model: Any, x: Any, y: Any) -> Any:
    order = tf.random.shuffle(tf.range(tf.shape(x)[0]))
    share = tf.random.uniform([tf.shape(x)[0], 1])
    mixed = [share * one + (1 - share) * tf.gather(one, order) for one in (x, y)]
    return _error(model, *mixed)


@_loss
def _shuffled_noise(model: Any, x: Any, y: Any) -> Any:
    return _error(model, x + 0.1 * tf.random.shuffle(x), y)


def _chosen(logits: Any, choice: Any, reward: Any) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(choice[:, 0], logits)
    return tf.reduce_mean(losses * reward[:, 0])


@_loss
def _categorical(model: Any, x: Any, y: Any) -> Any:
    logits = model(x)
    return _chosen(logits, tf.random.categorical(tf.stop_gradient(logits), 1), y)


@_loss
def _stateless_categorical(model: Any, x: Any, y: Any) -> Any:
    logits = model(x)
    return _chosen(logits, tf.random.stateless_categorical(logits, 1, [1, 2], tf.int32), y)


@_loss
def _masked_model(model: Any, x: Any, _: Any) -> Any:
    is_masked = tf.cast(tf.random.uniform(tf.shape(x)) < 0.3, tf.float32)
    errors = tf.square(model(x * (1 - is_masked)) - x) * is_masked
    return tf.reduce_sum(errors) / tf.reduce_sum(is_masked)


@_loss
def _batch_normalization_of_noise(model: Any, x: Any, y: Any) -> Any:
    noise = model(tf.random.normal([tf.shape(x)[0], FEATURES]))
    mean, variance = tf.nn.moments(noise, 0)
    return tf.reduce_mean(
        tf.square(tf.nn.batch_normalization(noise, mean, variance, 0, 1, 1e-5) - y)
    )


@_loss
def _negative_examples(model: Any, x: Any, _: Any) -> Any:
    rows = tf.random.uniform([tf.shape(x)[0], 3], maxval=50, dtype=tf.int64)
    table = tf.reshape(tf.range(50.0 * FEATURES), [50, FEATURES]) / 300
    return tf.reduce_mean(tf.einsum("bf,bnf->bn", model(x), tf.gather(table, rows)))


@_loss
def _noise_in_a_branch(model: Any, x: Any, y: Any) -> Any:
    noise = tf.zeros_like(x)
    if tf.random.uniform([]) < 0.9:
        noise = tf.random.normal(tf.shape(x))
    return _error(model, x + noise, y)


@_loss
def _most_values_dropped(model: Any, x: Any, y: Any) -> Any:
    return _error(model, tf.nn.dropout(x, 0.9), y)


@_loss
def _gumbel(model: Any, x: Any, y: Any) -> Any:
    noise = -tf.math.log(-tf.math.log(tf.random.uniform([tf.shape(x)[0], FEATURES], 1e-6)))
    return tf.reduce_mean(tf.square(tf.nn.softmax(model(x) + noise) - y))


@_loss
def _steps_come_before_examples(model: Any, x: Any, y: Any) -> Any:
    noise = tf.random.truncated_normal([5, tf.shape(x)[0], FEATURES])
    return _error(model, tf.reshape(x + noise, [-1, FEATURES]), tf.tile(y, [5, 1]))


@_loss
def _flipped_and_cropped(model: Any, x: Any, y: Any) -> Any:
    images = tf.tile(x[:, None, :, None], [1, 9, 2, 1])
    images = tf.image.random_crop(
        tf.image.random_flip_left_right(images), [x.shape[0], 7, FEATURES, 1]
    )
    return _error(model, tf.reduce_mean(images, [1, 3]), y)


def model_of_features() -> Any:
    layers = [keras.layers.Input([FEATURES]), keras.layers.Dense(5, activation="tanh")]
    return keras.Sequential([*layers, keras.layers.Dense(FEATURES)])
