"""Gradients of resized images: TPUs have kernels for them that XLA has not on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import each, local, strategy_of

IMAGES = np.arange(32, dtype=np.float32).reshape([2, 4, 4, 1])


def gradient(x: Any, size: list[int], method: str) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        resized = tf.image.resize(x, size, method)
        loss = tf.reduce_sum(resized * resized)
    return tape.gradient(loss, x)


@pytest.fixture(scope="module")
def two() -> Any:
    return strategy_of(2, strict=True)


@pytest.mark.parametrize("method", ["nearest", "bilinear"])
@pytest.mark.parametrize("size", [[8, 8], [2, 2]])
@pytest.mark.parametrize("nested", [False, True])
def test_gradients_pass_and_are_right(two: Any, method: str, size: list[int], nested: bool) -> None:
    def replica(x: Any) -> Any:
        if not nested:
            return gradient(x, size, method)
        return tf.cond(
            tf.reduce_sum(x) > -1.0, lambda: gradient(x, size, method), lambda: tf.zeros_like(x)
        )

    result = tf.function(lambda x: two.run(replica, args=(x,)))(each(two, [IMAGES, -IMAGES]))
    found = local(two, result)
    expected = gradient(tf.constant(IMAGES), size, method).numpy()
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)
    np.testing.assert_allclose(found[1], 0 * expected if nested else -expected, rtol=1e-5)
