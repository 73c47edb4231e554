"""Arrays that TensorFlow would truncate in a replica function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import replica_id, run, strategy_of

HALVES = np.array([0.5, 2.0])
TRUNCATED = "would turn the float64 array on the {} into int32, and 0.5 into 0"


def integer() -> Any:
    return tf.cast(replica_id(), tf.int32)


@pytest.mark.parametrize(
    ("side", "compute"),
    [
        ("left", lambda: HALVES + integer()),
        ("right", lambda: integer() * HALVES),
        ("right", lambda: tf.maximum(integer(), HALVES)),
        ("right", lambda: tf.where(integer() > 0, integer(), HALVES)),
        ("left", lambda: np.float64(0.5) - integer()),
        ("right", lambda: tf.cond(integer() > 0, lambda: integer() + HALVES, lambda: [0, 0])),
    ],
)
def test_truncated_floats_are_refused(two: Any, side: str, compute: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=TRUNCATED.format(side)) as caught:
        run(two, compute)
    assert "`tf.cast(x, tf.float64)`" in str(caught.value)


def test_a_truncated_assignment_is_refused(two: Any) -> None:
    with two.scope():
        count = tf.Variable([0, 0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="into int32"):
        run(two, lambda: count.assign(HALVES))


def test_dropped_imaginary_parts_are_refused(two: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="complex128 array"):
        run(two, lambda: tf.constant(1.0) + np.array([1 + 2j]))


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda: np.array([1.0, 2.0]) * integer(), [1, 2]),
        (lambda: tf.constant(HALVES, tf.int32) * integer(), [0, 2]),
        (lambda: tf.convert_to_tensor(HALVES, tf.int32) * integer(), [0, 2]),
        (lambda: tf.cast(HALVES, tf.int32) * integer(), [0, 2]),
        (lambda: HALVES.astype(np.float32) * tf.cast(integer(), tf.float32), [0.5, 2.0]),
    ],
)
def test_other_conversions_stay(two: Any, compute: Any, expected: list[float]) -> None:
    np.testing.assert_array_equal(run(two, compute)[1], expected)


def test_without_rules_tensorflow_decides() -> None:
    lenient = strategy_of(2, strict=False)
    np.testing.assert_array_equal(run(lenient, lambda: HALVES * integer())[1], [0, 2])


def test_outside_of_replica_functions_nothing_changes(two: Any) -> None:
    run(two, integer)
    np.testing.assert_array_equal(HALVES + tf.constant(1), [1, 3])
    np.testing.assert_array_equal(tf.function(lambda: HALVES + tf.constant(1))(), [1, 3])
