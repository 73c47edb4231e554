"""Replicas without examples, with kernels anywhere in a replica function."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.patience import PATIENCE
from support.strategies import all_reduce, local, strategy_of
from support.tiers import THOROUGH, thorough
from tensorflow.python.distribute import values

random = np.random.default_rng(0)
IMAGES = random.normal(size=[2, 8, 8, 4]).astype(np.float32)
SHAPES = {
    "flat": [3, 3, 4, 6],
    "bias": [6],
    "deep": [3, 3, 6, 1],
    "volume": [3, 3, 3, 1, 2],
    "back": [3, 3, 3, 6],
}
WEIGHTS = {name: random.normal(size=size).astype(np.float32) for name, size in SHAPES.items()}


def network(x: Any, weights: Any) -> Any:
    """Kernels that handle empty batches badly, above all oneDNN's."""
    x = tf.nn.conv2d(x, weights["flat"], 1, "VALID")
    x = tf.nn.relu(tf.nn.bias_add(x, weights["bias"]))
    x = tf.nn.depthwise_conv2d(x, weights["deep"], [1, 1, 1, 1], "VALID")
    up = tf.nn.conv2d_transpose(x, weights["back"], [tf.shape(x)[0], 8, 8, 3], 2, "SAME")
    x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    volumes = tf.nn.conv3d(up[..., None], weights["volume"], [1] * 5, "SAME")
    volumes = tf.nn.max_pool3d(volumes, 2, 2, "VALID")
    return tf.reduce_sum(x) + tf.reduce_sum(volumes)


def in_place(x: Any, weights: Any) -> Any:
    return network(x, weights)


def in_a_branch(x: Any, weights: Any) -> Any:
    first = tf.cond(tf.size(x) >= 0, lambda: network(x, weights), lambda: 0.0)
    return tf.switch_case(tf.rank(x) - 3, [lambda: 0.0, lambda: first + network(x, weights)])


def in_a_loop(x: Any, weights: Any) -> Any:
    total = 0.0
    for _ in tf.range(2):
        total += tf.function(network)(x, weights)
    return total


def gradients(function: Callable[..., Any], x: Any, weights: Any) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        tape.watch([x, weights])
        loss = function(x, weights)
    x, weights = tape.gradient(loss, [x, weights])
    return x, [tf.convert_to_tensor(weights[name]) for name in SHAPES]


def summed(function: Callable[..., Any]) -> Callable[..., Any]:
    def replica(x: Any, weights: Any) -> Any:
        x, weight_gradients = gradients(function, x, weights)
        return x, all_reduce(weight_gradients)

    return replica


def in_a_loop_with_collectives(x: Any, weights: Any) -> Any:
    everything = [tf.zeros(size) for size in SHAPES.values()]
    per_example = tf.zeros_like(x)
    for _ in tf.range(2):
        example_gradients, weight_gradients = summed(in_a_branch)(x, weights)
        per_example += example_gradients
        everything = [a + b for a, b in zip(everything, weight_gradients, strict=True)]
    return per_example, everything


PLACES = {
    "in place": (summed(in_place), 1),
    "in a branch": (summed(in_a_branch), 2),
    "in a loop": (summed(in_a_loop), 2),
    "in a loop with collectives": (in_a_loop_with_collectives, 4),
}


def all_on_the_first_replica(strategy: Any) -> Any:
    """All examples on the first replica."""
    count = strategy.num_replicas_in_sync
    return values.PerReplica([tf.constant(IMAGES), *[tf.constant(IMAGES[:0])] * (count - 1)])


@pytest.mark.parametrize(
    "sizes",
    [[None, None, None, 4], *thorough([[None, 8, 8, 4]])],
    ids=["all", "batch"],
)
@pytest.mark.parametrize(
    ("place", "replicas"),
    [
        *((place, 3) for place in PLACES),
        *thorough([("in a branch", 2)]),
    ],
)
def test_gradients_of_an_empty_batch(place: str, sizes: list[int | None], replicas: int) -> None:
    strategy = strategy_of(replicas, strict=False)
    function, times = PLACES[place]
    with strategy.scope():
        weights = {name: tf.Variable(value) for name, value in WEIGHTS.items()}

    @tf.function
    def step(batch: Any) -> Any:
        def replica(x: Any) -> Any:
            # The input pipeline tells which sizes are known.
            x = tf.raw_ops.PlaceholderWithDefault(input=x, shape=sizes)
            return function(x, {name: weight + 0.0 for name, weight in weights.items()})

        return strategy.run(replica, args=(batch,))

    results = local(strategy, step(all_on_the_first_replica(strategy)))
    constants = {name: tf.constant(value) for name, value in WEIGHTS.items()}
    expected = gradients(network, tf.constant(IMAGES), constants)
    for number, (examples, weight_gradients) in enumerate(results):
        assert examples.shape == (0 if number else 2, 8, 8, 4)
        for actual, wanted in zip(weight_gradients, expected[1], strict=True):
            np.testing.assert_allclose(actual, times * wanted.numpy(), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(results[0][0], times * expected[0].numpy(), rtol=1e-3, atol=1e-3)


@THOROUGH
def test_the_other_setting_of_onednn() -> None:
    """oneDNN is on or off for a whole process, so another process runs the other setting."""
    other = "0" if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "1" else "1"
    files = [__file__, str(Path(__file__).with_name("test_workarounds.py"))]
    chosen = ["-p", "no:cacheprovider", "-k", "3-batch or leaky"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *chosen, *files],
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": other},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
