"""`outside_compilation` runs parts of a replica function on the host, wherever they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.bfloat16 import bf, whole_numbers
from support.strategies import all_reduce, each, local, run, strategy_of, strategy_of_parts

import tpunb

outside = tf.compat.v1.tpu.outside_compilation


@pytest.fixture(scope="module")
def two() -> Any:
    return strategy_of(2, strict=True)


@pytest.fixture(autouse=True)
def never_softly(place_softly: Any) -> None:
    """The host runs only what `outside_compilation` names."""
    place_softly(False)


def in_text(x: Any) -> Any:
    """Ten times a number, plus 0.1, by way of a string."""
    return tf.strings.to_number(tf.strings.format("{}1", tf.cast(x, tf.int32))) / 10.0


def in_a_branch(x: Any) -> Any:
    if x < 5.0:
        x = outside(in_text, x)
    return x + 1.0


def in_a_loop(x: Any) -> Any:
    for _ in tf.range(2):
        x = outside(in_text, x)
    return x


def in_a_branch_of_a_loop(x: Any) -> Any:
    for k in tf.range(3):
        if k > 0:
            x = outside(in_text, x) + 1.0
    return x


def in_a_switch(x: Any) -> Any:
    return tf.switch_case(
        tf.cast(x, tf.int32) % 2, [lambda: outside(in_text, x), lambda: outside(tf.square, x)]
    )


def in_a_function(x: Any) -> Any:
    return tf.function(lambda x: outside(in_text, x))(x) + 1.0


def in_a_compiled_function(x: Any) -> Any:
    return tf.function(lambda x: outside(in_text, x), jit_compile=True)(x) + 1.0


def of_a_function(x: Any) -> Any:
    return outside(tf.function(in_text), x)


def of_a_loop(x: Any) -> Any:
    def twice(x: Any) -> Any:
        return tf.while_loop(lambda k, _: k < 2, lambda k, x: (k + 1, in_text(x)), (0, x))[1]

    return outside(twice, x)


def of_several(x: Any) -> Any:
    if x < 5.0:
        y, n, even = outside(lambda: (in_text(x), tf.constant([1, 2], tf.int64), x < 2.0))
        return tf.where(even, y, y * tf.reduce_sum(tf.cast(n, tf.float32)))
    return x


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (in_a_branch, [2.1, 7.0]),
        (in_a_loop, [1.1, 6.1]),
        (in_a_branch_of_a_loop, [3.1, 8.1]),
        (in_a_switch, [1.0, 6.1]),
        (in_a_function, [2.1, 7.1]),
        (in_a_compiled_function, [2.1, 7.1]),
        (of_a_function, [1.1, 6.1]),
        (of_a_loop, [1.1, 6.1]),
        (of_several, [1.1, 6.0]),
    ],
)
def test_the_host_returns_a_value(two: Any, function: Callable[..., Any], expected: Any) -> None:
    values = each(two, [1.0, 6.0])
    np.testing.assert_allclose(run(two, function, values), expected, rtol=1e-6)
    assert tpunb.check(function, values, strategy=two).ok
    assert tpunb.check(function, tf.TensorSpec([])).ok


def test_code_after_a_host_call_in_a_loop_is_still_examined(two: Any) -> None:
    def sized(x: Any) -> Any:
        for _ in tf.range(2):
            x += tf.reduce_sum(tf.zeros([tf.cast(outside(in_text, x), tf.int32)]))
        return x

    def printing(x: Any) -> Any:
        if x < 5.0:
            x = outside(in_text, x)
            tf.print(x)
        return x

    reports = [tpunb.check(fn, each(two, [1.0, 6.0]), strategy=two) for fn in (sized, printing)]
    assert [[error.code for error in report.errors] for report in reports] == [
        ["constant-size"],
        ["unsupported-op"],
    ]


def summaries(path: Path) -> list[tuple[str, float]]:
    """The scalars that were written, by name and value."""
    scalars = []
    for file in path.iterdir():
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            scalars += [
                (one.tag, float(tf.make_ndarray(one.tensor))) for one in event.summary.value
            ]
    return sorted(scalars)


def test_summaries_in_loops_and_branches(two: Any, tmp_path: Path) -> None:
    def write(x: Any) -> Any:
        tf.summary.write("x", x, step=0)
        return x * 2.0

    def step(x: Any) -> Any:
        for k in tf.range(3):
            if k > 0:
                x = outside(write, x)
        return x

    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default(), tf.summary.record_if(True):
        assert run(two, step, each(two, [1.0, 1.0])) == [4.0, 4.0]
        assert tpunb.check(step, 1.0, strategy=two).ok
    writer.close()
    # As on a TPU, only the first replica writes.
    assert [value for _, value in summaries(tmp_path)] == [1.0, 2.0]


@pytest.mark.parametrize("order", [1, 2])
def test_the_host_computes_gradients_of_its_results(two: Any, order: int) -> None:
    seen: list[Any] = []

    def step(x: Any) -> Any:
        y = outside(lambda a: tf.square(tf.square(a)), x + 7.0) * 3.0
        for _ in range(order):
            [y] = tf.compat.v1.gradients([y], [x], colocate_gradients_with_ops=True)
        seen.extend(tf.compat.v1.get_default_graph().get_operations())
        return y

    assert run(two, step, each(two, [2.0, 2.0])) == [[8748.0, 2916.0][order - 1]] * 2
    marks = {
        one.get_attr("_xla_outside_compilation")
        for one in seen
        if "gradients" in one.name and "_xla_outside_compilation" in one.node_def.attr
    }
    assert marks
    assert all(mark.startswith(b"0.gradients") for mark in marks)


def test_gradients_pass_through_the_host_in_loops(two: Any) -> None:
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(2):
                y = outside(tf.square, y) * 1.0
        return tape.gradient(y, x)

    assert run(two, step, each(two, [1.0, 2.0])) == [4.0, 32.0]


def test_the_host_writes_its_variables(two: Any) -> None:
    with two.scope():
        on_cores = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
    on_host = tf.Variable(0.0)

    def step(x: Any) -> Any:
        on_cores.assign_add(2.0)
        if x > 0.0:
            outside(lambda: on_host.assign_add(4.0, read_value=False))
        return on_cores + 0.0

    assert run(two, step, each(two, [1.0, 1.0])) == [2.0, 2.0]
    assert on_host.numpy() == 8.0
    assert tpunb.check(step, 1.0, strategy=two).ok


def test_a_loop_may_read_but_not_write_a_host_variable(two: Any) -> None:
    v = tf.Variable(2.0)

    def reads(x: Any) -> Any:
        for _ in tf.range(2):
            x *= v
        return x

    def writes(x: Any) -> Any:
        for _ in tf.range(2):
            v.assign_add(x)
        return x

    assert run(two, reads, each(two, [1.0, 2.0])) == [4.0, 8.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="outside of the strategy's scope"):
        run(two, writes, each(two, [1.0, 2.0]))


def test_a_function_around_the_replicas_is_not_compiled_as_a_whole(two: Any) -> None:
    """TensorFlow's `testJitCompile` asks this of a TPU."""

    @tf.function(jit_compile=True)
    def step(x: Any) -> Any:
        return two.run(lambda x: outside(in_text, x) + 1.0, args=(x,))

    for _ in range(2):
        np.testing.assert_allclose(local(two, step(tf.constant(1.0))), [2.1, 2.1])

    @tf.function
    def caller(x: Any) -> Any:
        return step(x)

    with pytest.raises(tf.errors.NotFoundError, match="transfer manager") as refused:
        caller(tf.constant([1.0]))
    known = tpunb.explain(refused.value)
    assert known is not None
    assert known.number == 43


def test_host_tensors_need_not_fit_in_a_core(two: Any) -> None:
    def step(x: Any) -> Any:
        return tf.reduce_mean(tf.broadcast_to(x, [2**20, 2**20]))

    assert [error.code for error in tpunb.check(step, 1.0, strategy=two).errors] == ["memory"]
    assert tpunb.check(lambda x: outside(step, x), 1.0, strategy=two).ok
    assert tpunb.check(lambda x: outside(tf.function(step), x), 1.0, strategy=two).ok


@pytest.mark.parametrize("spmd", [False, True], ids=["plain", "spmd"])
def test_replicas_of_two_cores(spmd: bool) -> None:
    strategy = strategy_of_parts(2, strict=True, spmd=spmd)

    def step(x: Any) -> Any:
        x = strategy.experimental_split_to_logical_devices(x, [2, 1])
        y = outside(lambda x: x + tf.strings.to_number(tf.strings.as_string(x)), x)
        y = strategy.experimental_split_to_logical_devices(y, [2, 1])
        if tf.reduce_sum(x) > 0.0:
            y += outside(tf.square, x)
        total = all_reduce(tf.reduce_sum(y))
        return outside(in_text, total)

    values = each(strategy, [np.ones([2, 2], np.float32), np.full([2, 2], 2.0, np.float32)])
    np.testing.assert_allclose(run(strategy, step, values), [44.1] * 2)


def test_host_loops_multiply_in_the_hosts_arithmetic() -> None:
    strategy = strategy_of(2, arithmetic="tpu")
    x, w = whole_numbers(4, 4, seed=1), whole_numbers(4, 4, seed=2)

    def once(x: Any) -> Any:
        return tf.while_loop(lambda k, _: k < 1, lambda k, x: (k + 1, tf.matmul(x, w)), (0, x))[1]

    np.testing.assert_array_equal(run(strategy, lambda x: outside(once, x), x)[0], x @ w)
    np.testing.assert_array_equal(run(strategy, once, x)[0], bf(x) @ bf(w))
