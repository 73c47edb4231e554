"""Loops, branches, calls, lists, variables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from verdicts.specs import F, I, entries, gradient_of, variable, with_state

X, N = F(8, 16), I()


def counted(x: Any) -> Any:
    for _ in tf.range(5):
        x = tf.tanh(x)
    return x


def counted_by_data(x: Any, n: Any) -> Any:
    for _ in tf.range(n):
        x = tf.tanh(x)
    return x


def until(x: Any) -> Any:
    while tf.reduce_sum(x) < 100.0:
        x = x * 2.0
    return x


def nested(x: Any) -> Any:
    for i in tf.range(3):
        for _ in tf.range(2):
            x = x + tf.cast(i, tf.float32)
    return x


def left_early(x: Any) -> Any:
    for _ in tf.range(10):
        if tf.reduce_sum(x) > 50.0:
            break
        x = x * 2.0
    return x


def open_gradient(x: Any) -> Any:
    return tf.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, tf.sin(y)), (0, x))[1]


def bounded(x: Any, n: Any) -> Any:
    return tf.while_loop(
        lambda i, y: i < n, lambda i, y: (i + 1, tf.sin(y)), (0, x), maximum_iterations=8
    )[1]


def listed(x: Any) -> Any:
    values = tf.TensorArray(tf.float32, size=4)
    for i in tf.range(4):
        values = values.write(i, x * tf.cast(i, tf.float32))
    return values.stack()


def listed_and_read(x: Any) -> Any:
    values = tf.TensorArray(tf.float32, size=8).unstack(x)
    total = tf.zeros([16])
    for i in tf.range(8):
        total += values.read(i)
    return total


def growing(x: Any) -> Any:
    values = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    for i in tf.range(4):
        values = values.write(i, x)
    return values.stack()


def listed_by_data(x: Any, n: Any) -> Any:
    values = tf.TensorArray(tf.float32, size=n, element_shape=[8, 16])
    for i in tf.range(n):
        values = values.write(i, x)
    return values.stack()


def concatenated(x: Any) -> Any:
    values = tf.TensorArray(tf.float32, size=3)
    for i in tf.range(3):
        values = values.write(i, x)
    return values.concat()


def grows(x: Any) -> Any:
    y = x[:1]
    for _ in tf.range(3):
        tf.autograph.experimental.set_loop_options(
            shape_invariants=[(y, tf.TensorShape([None, 16]))]
        )
        y = tf.concat([y, x[:1]], 0)
    return y


@tf.custom_gradient
def clipped(x: Any) -> Any:
    return x, lambda g: tf.clip_by_value(g, -1.0, 1.0)


@tf.recompute_grad
def recomputed(x: Any) -> Any:
    return tf.tanh(tf.matmul(x, x))


@tf.function
def called(x: Any) -> Any:
    return x * 2.0 + 1.0


@tf.function(jit_compile=True)
def compiled(x: Any) -> Any:
    return x * 2.0 + 1.0


def returned_early(x: Any) -> Any:
    if tf.reduce_sum(x) > 0:
        return x * 2.0
    return tf.nn.relu(x)


def assigned_in_branch(v: Any, x: Any) -> Any:
    if tf.reduce_sum(x) > 0:
        v.assign_add(x)
    return v.read_value()


def assigned_in_loop(v: Any, x: Any) -> Any:
    for _ in tf.range(3):
        v.assign_add(x)
    return v.read_value()


def per_row(fn: Any) -> Any:
    return lambda x: tf.map_fn(fn, x)


FUNCTIONS = entries(
    counted=(counted, X),
    counted_gradient=(gradient_of(counted), X),
    counted_by_data=(counted_by_data, X, N),
    counted_by_data_gradient=(
        lambda x, n: gradient_of(lambda value: counted_by_data(value, n))(x),
        X,
        N,
    ),
    until=(until, X),
    until_gradient=(gradient_of(until), X),
    nested=(nested, X),
    nested_gradient=(gradient_of(nested), X),
    left_early=(left_early, X),
    open_gradient=(gradient_of(open_gradient), X),
    bounded=(bounded, X, N),
    bounded_gradient=(lambda x, n: gradient_of(lambda value: bounded(value, n))(x), X, N),
    branch=(lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2.0, lambda: -x), X),
    branch_gradient=(
        gradient_of(lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2.0, lambda: -x)),
        X,
    ),
    branch_shapes=(lambda x: tf.reduce_sum(tf.cond(x[0, 0] > 0, lambda: x[:2], lambda: x[:3])), X),
    cases=(lambda x, n: tf.switch_case(n, [lambda: x, lambda: -x, lambda: x * 2.0]), X, N),
    returned_early=(returned_early, X),
    listed=(listed, X),
    listed_gradient=(gradient_of(listed), X),
    listed_and_read=(gradient_of(listed_and_read), X),
    listed_by_data=(listed_by_data, X, N),
    concatenated=(concatenated, X),
    growing=(growing, X),
    grows=(grows, X),
    map_rows=(per_row(lambda row: row * 2.0), X),
    map_rows_gradient=(gradient_of(per_row(tf.tanh)), X),
    map_in_parallel=(lambda x: tf.vectorized_map(lambda row: tf.reduce_sum(row**2), x), X),
    scan=(lambda x: tf.scan(lambda a, row: a + row, x), X),
    scan_gradient=(gradient_of(lambda x: tf.scan(lambda a, row: a * row, x)), X),
    fold=(lambda x: tf.foldl(lambda a, row: a + row, x), X),
    custom_gradient=(gradient_of(clipped), X),
    recomputed=(gradient_of(recomputed), F(8, 8)),
    called=(called, X),
    compiled=(compiled, X),
    second_order=(gradient_of(lambda x: gradient_of(lambda value: value**3)(x)[0]), X),
    jacobian=(lambda x: _jacobian(x), F(4)),
    forward_mode=(lambda x: _forward(x), F(4)),
    stopped=(gradient_of(lambda x: tf.stop_gradient(x) * x), X),
    variable_read=(with_state(variable(8, 16), lambda v, x: v + x), X),
    variable_assigned=(with_state(variable(8, 16), lambda v, x: v.assign_add(x)), X),
    variable_in_branch=(with_state(variable(8, 16), assigned_in_branch), X),
    variable_in_loop=(with_state(variable(8, 16), assigned_in_loop), X),
    variable_of_integers=(
        with_state(variable(dtype=tf.int64), lambda v, x: (v.assign_add(1), x)[0]),
        X,
    ),
    variable_picked=(
        with_state(
            lambda: [variable(8, 16)(), variable(8, 16)()],
            lambda v, x, n: tf.cond(n > 0, lambda: v[0] + x, lambda: v[1] - x),
        ),
        X,
        N,
    ),
    ordered=(lambda x: _ordered(x), X),
    barrier=(lambda x: tf.grad_pass_through(tf.round)(x), X),
    print_nothing=(lambda x: tf.identity_n([x, x]), X),
)


def _jacobian(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x**2 * tf.reduce_sum(x)
    return tape.jacobian(y, x)


def _forward(x: Any) -> Any:
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
        y = tf.sin(x) * x
    return accumulator.jvp(y)


def _ordered(x: Any) -> Any:
    first = x * 2.0
    with tf.control_dependencies([first]):
        return x + 1.0
