"""Control flow in which each replica goes its own way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import each, replica_id, run, strategy_of
from support.tiers import thorough

SUM = tf.distribute.ReduceOp.SUM


@pytest.fixture(scope="module")
def four() -> Any:
    return strategy_of(4)


@pytest.fixture(scope="module")
def two() -> Any:
    return strategy_of(2, strict=False)


@pytest.fixture(scope="module")
def lenient() -> Any:
    """Lets pass what a TPU refuses: the engine's own tests go further than a TPU does."""
    return strategy_of(4, strict=False)


def test_loops_of_different_lengths(four: Any) -> None:
    def step(x: Any) -> Any:
        for _ in tf.range(replica_id()):
            x *= 2.0
        return x

    assert run(four, step, each(four, [1.0] * 4)) == [1.0, 2.0, 4.0, 8.0]


def test_nested_loops_of_different_lengths(four: Any) -> None:
    def step() -> Any:
        count = 0
        for i in tf.range(replica_id() + 1):
            for _ in tf.range(i):
                count += 1
        return count

    assert run(four, step) == [0, 1, 3, 6]


def test_a_loop_that_waits_for_a_value(four: Any) -> None:
    def step(x: Any) -> Any:
        while x < 100.0:
            if x > 10.0:
                x *= 3.0
            else:
                x += 5.0
        return x

    expected = []
    for x in (1.0, 20.0, 99.0, 100.0):
        while x < 100.0:
            x = x * 3.0 if x > 10.0 else x + 5.0
        expected.append(x)
    assert run(four, step, each(four, [1.0, 20.0, 99.0, 100.0])) == expected


def test_branches(four: Any) -> None:
    def step(x: Any) -> Any:
        chosen = tf.cond(x > 2.0, lambda: x * 10.0, lambda: -x)
        switched = tf.switch_case(replica_id() % 3, [lambda: x, lambda: x + 1.0, lambda: x + 2.0])
        return chosen, switched

    results = run(four, step, each(four, [1.0, 2.0, 3.0, 4.0]))
    assert results == [(-1.0, 1.0), (-2.0, 3.0), (30.0, 5.0), (40.0, 4.0)]


def test_a_branch_with_a_shared_condition(four: Any) -> None:
    with four.scope():
        flag = tf.Variable(True)

    def step(x: Any) -> Any:
        return tf.cond(flag, lambda: x, lambda: -x)

    assert run(four, step, each(four, [1, 2, 3, 4])) == [1, 2, 3, 4]
    flag.assign(False)
    assert run(four, step, each(four, [1, 2, 3, 4])) == [-1, -2, -3, -4]


def test_tensor_arrays(lenient: Any) -> None:
    def step(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in tf.range(3):
            array = array.write(i, x * tf.cast(i, tf.float32))
        return array.stack()

    results = run(lenient, step, each(lenient, [1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_array_equal(results, [[0, k, 2 * k] for k in (1.0, 2.0, 3.0, 4.0)])


def test_tensor_arrays_in_a_loop_with_collectives(four: Any) -> None:
    def step(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, size=3)
        for i in tf.range(3):
            total = tf.distribute.get_replica_context().all_reduce(SUM, x)
            array = array.write(i, total + x)
            x += 1.0
        return array.stack()

    results = run(four, step, each(four, [1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_array_equal(results, [[10 + k, 15 + k, 20 + k] for k in (1.0, 2.0, 3.0, 4.0)])


def test_map_fn_scan_and_vectorized_map(four: Any) -> None:
    def step(x: Any) -> Any:
        return (
            tf.map_fn(lambda v: v * v, x),
            tf.scan(lambda a, v: a + v, x),
            tf.vectorized_map(lambda v: v + 1.0, x),
        )

    values = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]
    for (mapped, scanned, added), row in zip(
        run(four, step, each(four, values)), np.array(values), strict=True
    ):
        np.testing.assert_array_equal(mapped, row**2)
        np.testing.assert_array_equal(scanned, np.cumsum(row))
        np.testing.assert_array_equal(added, row + 1)


def test_gradients_of_loops_of_different_lengths(lenient: Any) -> None:
    with lenient.scope():
        v = tf.Variable(3.0)

    def step() -> Any:
        with tf.GradientTape() as tape:
            y = tf.constant(1.0)
            for _ in tf.range(replica_id()):
                y *= v
        gradient = tape.gradient(y, v)
        total = tf.distribute.get_replica_context().all_reduce(SUM, gradient)
        return gradient, total

    assert run(lenient, step) == [(k, 34.0) for k in (0.0, 1.0, 6.0, 27.0)]


def test_lstm(four: Any) -> None:
    import keras

    with four.scope():
        model = keras.Sequential([keras.Input((4, 2)), keras.layers.LSTM(3)])

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(model(x) ** 2)
        return y, tape.gradient(y, [v.value for v in model.trainable_variables])

    x = np.random.default_rng(0).normal(size=[4, 3, 4, 2]).astype(np.float32)
    results = run(four, step, each(four, list(x)))
    for (y, gradients), rows in zip(results, x, strict=True):
        with tf.GradientTape() as tape:
            expected = tf.reduce_sum(model(rows) ** 2)
        own = tape.gradient(expected, [v.value for v in model.trainable_variables])
        np.testing.assert_allclose(y, expected, rtol=1e-5)
        for gradient, wanted in zip(gradients, own, strict=True):
            np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-5)


def test_compiled_functions(four: Any) -> None:
    with four.scope():
        v = tf.Variable(2.0)

    @tf.function(jit_compile=True)
    def inner(x: Any) -> Any:
        return x * v + 1.0

    @tf.function(jit_compile=True)
    def bump(x: Any) -> Any:
        v.assign_add(x)
        return v.read_value()

    values = each(four, [1.0, 2.0, 3.0, 4.0])
    assert run(four, lambda x: inner(x), values) == [3.0, 5.0, 7.0, 9.0]
    assert run(four, lambda x: bump(x), values) == [3.0, 4.0, 5.0, 6.0]
    assert [float(copy) for copy in v.values] == [3.0, 4.0, 5.0, 6.0]


def test_custom_gradients_and_recompute(four: Any) -> None:
    @tf.custom_gradient
    def clipped(x: Any) -> Any:
        return x * 2.0, lambda dy: tf.clip_by_value(dy, -0.5, 0.5)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.recompute_grad(lambda x: clipped(x) * x)(x)
        return tape.gradient(y, x)

    # d/dx = clip(x) + 2x
    assert run(four, step, each(four, [0.25, 1.0, 2.0, 0.5])) == [0.75, 2.5, 4.5, 1.5]


def test_outputs_that_are_inputs_and_constants(lenient: Any) -> None:
    with lenient.scope():
        v = tf.Variable(5.0)

    def step(x: Any, shared: Any) -> Any:
        return x, x, shared, tf.constant(3), v.read_value(), tf.ones([2000])[0]

    results = run(lenient, step, each(lenient, [1, 2, 3, 4]), tf.constant("text"))
    assert results == [(k, k, b"text", 3, 5.0, 1.0) for k in (1, 2, 3, 4)]


def test_loops_that_carry_a_variable_through(four: Any) -> None:
    with four.scope():
        v = tf.Variable(1.0)
        own = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def step(x: Any) -> Any:
        total = 0.0
        for i in tf.range(2):
            for _ in tf.range(2):
                own.assign_add(x)
                total += v * tf.distribute.get_replica_context().all_reduce(SUM, x)
            if i == 0:
                v.assign_add(tf.distribute.get_replica_context().all_reduce(SUM, x))
        return total, v.read_value(), own.read_value()

    results = run(four, step, each(four, [1.0, 2.0, 3.0, 4.0]))
    assert results == [(240.0, 11.0, 4 * k) for k in (1.0, 2.0, 3.0, 4.0)]
    assert own.numpy() == 40.0


LONG = 30_000
"""Rounds; as many nested calls would overflow the stack."""


def long_loop() -> Any:
    return tf.while_loop(lambda x: x < LONG, lambda x: [x + 1], [tf.constant(0)])[0]


def branch_with_a_long_loop() -> Any:
    return tf.cond(tf.constant(True), long_loop, lambda: tf.constant(0))


def case_with_a_long_loop() -> Any:
    return tf.switch_case(tf.constant(1), [lambda: tf.constant(0), long_loop])


def loop_around_a_long_loop() -> Any:
    return tf.while_loop(lambda x: x < 1, lambda x: [long_loop()], [tf.constant(0)])[0]


def compiled_long_loop() -> Any:
    return tf.function(long_loop, jit_compile=True)()


@pytest.mark.parametrize(
    "function",
    [
        long_loop,
        loop_around_a_long_loop,
        *thorough([compiled_long_loop, branch_with_a_long_loop, case_with_a_long_loop]),
    ],
)
def test_long_loops_of_constants(two: Any, function: Any) -> None:
    assert run(two, function) == [LONG, LONG]


def test_a_loop_that_nothing_needs_does_not_run(two: Any) -> None:
    def step(x: Any) -> Any:
        tf.while_loop(lambda i: i >= 0, lambda i: [i], [tf.constant(0)])
        return x + 1.0

    assert run(two, step, each(two, [1.0, 2.0])) == [2.0, 3.0]


def test_a_branch_waits_for_what_it_follows_although_it_needs_no_value_of_it(two: Any) -> None:
    with two.scope():
        v = tf.Variable(1.0)

    def step(x: Any) -> Any:
        product = x
        for _ in range(16):
            product = product @ x
        v.assign(5.0 + 0.0 * product[0, 0])  # after which a branch that does not wait has run long
        doubled = 2.0 * v
        if replica_id() > 0:
            if replica_id() % 2 == 0:
                pass
            else:
                tf.reduce_mean(doubled)  # which nothing reads
            v.assign_add(1.0)
        else:
            v.assign_add(10.0)
        return doubled

    assert run(two, step, tf.fill([512, 512], 1 / 512)) == [10.0, 10.0]
    assert [float(copy) for copy in v.values] == [15.0, 6.0]
