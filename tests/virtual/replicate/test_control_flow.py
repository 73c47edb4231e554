"""Control flow in which replicas take different paths."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import (
    SUMMED_ON_READ,
    all_reduce,
    copies,
    each,
    gradient_of,
    replica_id,
    run,
    strategy_of,
)
from support.tiers import thorough


@pytest.fixture(scope="module")
def two() -> Any:
    return strategy_of(2, strict=False)


def different_lengths(x: Any) -> Any:
    for _ in tf.range(replica_id()):
        x *= 2.0
    return x


def nested_loops(x: Any) -> Any:
    count = 0
    for i in tf.range(replica_id() + 1):
        for _ in tf.range(i):
            count += 1
    return count


def waiting_for_a_value(x: Any) -> Any:
    x *= 9.0
    while x < 30.0:
        if x > 10.0:
            x *= 3.0
        else:
            x += 5.0
    return x


def branches(x: Any) -> Any:
    chosen = tf.cond(x > 2.0, lambda: x * 10.0, lambda: -x)
    switched = tf.switch_case(replica_id() % 3, [lambda: x, lambda: x + 1.0, lambda: x + 2.0])
    return chosen, switched


def tensor_array(x: Any) -> Any:
    array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    for i in tf.range(3):
        array = array.write(i, x * tf.cast(i, tf.float32))
    return array.stack()


def tensor_array_with_collectives(x: Any) -> Any:
    array = tf.TensorArray(tf.float32, size=3)
    for i in tf.range(3):
        array = array.write(i, all_reduce(x) + x)
        x += 1.0
    return array.stack()


def custom_gradients_and_recompute(x: Any) -> Any:
    @tf.custom_gradient
    def clipped(x: Any) -> Any:
        return x * 2.0, lambda dy: tf.clip_by_value(dy, -2.5, 2.5)

    return gradient_of(lambda x: tf.recompute_grad(lambda x: clipped(x) * x)(x), x)


VALUES = [1.0, 2.0, 3.0, 4.0]
PROGRAMS: dict[Callable[[Any], Any], list[Any]] = {
    different_lengths: [1, 4, 12, 32],
    nested_loops: [0, 1, 3, 6],
    waiting_for_a_value: [42, 54, 81, 36],
    branches: [(-1, 1), (-2, 3), (30, 5), (40, 4)],
    tensor_array: [[0, x, 2 * x] for x in VALUES],
    tensor_array_with_collectives: [[10 + x, 15 + x, 20 + x] for x in VALUES],
    custom_gradients_and_recompute: [3, 6, 8.5, 10.5],  # the clipped factor, and 2x
}


@pytest.mark.parametrize("function", PROGRAMS)
def test_replicas_take_different_paths(
    four: Any, lenient: Any, function: Callable[[Any], Any]
) -> None:
    strategy = lenient if function is tensor_array else four  # a TPU refuses growing arrays
    results = run(strategy, function, each(strategy, VALUES))
    np.testing.assert_array_equal(results, PROGRAMS[function])


def test_a_branch_with_a_shared_condition(four: Any) -> None:
    with four.scope():
        flag = tf.Variable(True)

    def step(x: Any) -> Any:
        return tf.cond(flag, lambda: x, lambda: -x)

    assert run(four, step, each(four, [1, 2, 3, 4])) == [1, 2, 3, 4]
    flag.assign(False)
    assert run(four, step, each(four, [1, 2, 3, 4])) == [-1, -2, -3, -4]


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
        return gradient, all_reduce(gradient)

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
        expected_gradients = tape.gradient(expected, [v.value for v in model.trainable_variables])
        np.testing.assert_allclose(y, expected, rtol=1e-5)
        for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
            np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


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
    assert copies(v) == [3.0, 4.0, 5.0, 6.0]


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
        total = tf.Variable(0.0, **SUMMED_ON_READ)

    def step(x: Any) -> Any:
        result = 0.0
        for i in tf.range(2):
            for _ in tf.range(2):
                total.assign_add(x)
                result += v * all_reduce(x)
            if i == 0:
                v.assign_add(all_reduce(x))
        return result, v.read_value(), total.read_value()

    results = run(four, step, each(four, [1.0, 2.0, 3.0, 4.0]))
    assert results == [(240.0, 11.0, 4 * k) for k in (1.0, 2.0, 3.0, 4.0)]
    assert total.numpy() == 40.0


LONG = 30_000
"""Rounds. The same number of nested calls would overflow the stack."""


def long_loop() -> Any:
    return tf.while_loop(lambda x: x < LONG, lambda x: [x + 1], [tf.constant(0)])[0]


ZERO = functools.partial(tf.constant, 0)
LONG_LOOPS: dict[str, Callable[[], Any]] = {
    "in place": long_loop,
    "in a loop": lambda: tf.while_loop(lambda x: x < 1, lambda x: [long_loop()], [ZERO()])[0],
    "compiled": lambda: tf.function(long_loop, jit_compile=True)(),
    "in a branch": lambda: tf.cond(tf.constant(True), long_loop, ZERO),
    "in a case": lambda: tf.switch_case(tf.constant(1), [ZERO, long_loop]),
}


@pytest.mark.parametrize(
    "name", ["in place", "in a loop", *thorough(["compiled", "in a branch", "in a case"])]
)
def test_long_loops_of_constants(two: Any, name: str) -> None:
    assert run(two, LONG_LOOPS[name]) == [LONG, LONG]


def test_an_unused_loop_does_not_run(two: Any) -> None:
    def step(x: Any) -> Any:
        tf.while_loop(lambda i: i >= 0, lambda i: [i], [tf.constant(0)])
        return x + 1.0

    assert run(two, step, each(two, [1.0, 2.0])) == [2.0, 3.0]


def test_a_branch_waits_for_earlier_effects_whose_values_it_does_not_need(two: Any) -> None:
    with two.scope():
        v = tf.Variable(1.0)

    def step(x: Any) -> Any:
        product = x
        for _ in range(16):
            product = product @ x
        v.assign(5.0 + 0.0 * product[0, 0])  # slow: a branch that does not wait would finish first
        doubled = 2.0 * v
        if replica_id() > 0:
            if replica_id() % 2 == 0:
                pass
            else:
                tf.reduce_mean(doubled)  # nothing reads the result
            v.assign_add(1.0)
        else:
            v.assign_add(10.0)
        return doubled

    assert run(two, step, tf.fill([512, 512], 1 / 512)) == [10.0, 10.0]
    assert copies(v) == [15.0, 6.0]


# Loops and branches that each replica runs for itself, inside joint loops and branches.


@pytest.fixture(scope="module", params=[2, 3])
def strategy(request: Any) -> Any:
    return strategy_of(request.param)


def repeated(x: Any, step: Any) -> Any:
    return tf.while_loop(lambda k, _: k < 2, lambda k, y: (k + 1, step(y)), (0, x))[1]


@pytest.mark.parametrize(("first", "expected"), [(1.0, 2.0), (-9.0, 200.0)])
def test_both_branches_have_a_loop(strategy: Any, first: float, expected: float) -> None:
    """The loops have the same name in both branches."""
    inputs = [first, *[1.0] * (strategy.num_replicas_in_sync - 1)]

    def replica(x: Any) -> Any:
        def positive() -> Any:
            return repeated(x, lambda y: y + 1.0) + 0.0 * all_reduce(x)

        def negative() -> Any:
            return repeated(x, lambda y: y + 100.0) + 0.0 * all_reduce(x)

        return tf.cond(all_reduce(x) > 0.0, positive, negative)

    assert run(strategy, replica, each(strategy, inputs)) == [value + expected for value in inputs]


@pytest.mark.parametrize(("first", "expected"), [(1.0, 2.0), (-9.0, 3.0)])
def test_both_branches_have_branches(strategy: Any, first: float, expected: float) -> None:
    inputs = [first, *[1.0] * (strategy.num_replicas_in_sync - 1)]

    def replica(x: Any) -> Any:
        def branch(number: float) -> Any:
            return lambda: (
                x * 0.0
                + number
                + 0.0 * all_reduce(x)
                + tf.switch_case(
                    tf.cast(x > 100.0, tf.int32), [lambda: x * 0.0 + number, lambda: x]
                )
            )

        return tf.cond(all_reduce(x) > 0.0, branch(1.0), branch(1.5))

    assert run(strategy, replica, each(strategy, inputs)) == [expected] * len(inputs)


@pytest.mark.parametrize("index", [0, 1])
def test_a_constant_choice_updates_even_if_its_result_is_unused(strategy: Any, index: int) -> None:
    with strategy.scope():
        v = tf.Variable(10.0)

    def replica() -> Any:
        tf.switch_case(tf.constant(index), [lambda: v.assign(1.0), lambda: v.assign(2.0)])
        return tf.constant(0)

    run(strategy, replica)
    assert copies(v) == [index + 1.0] * strategy.num_replicas_in_sync
