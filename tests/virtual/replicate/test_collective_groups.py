"""Cross-replica operations: right values, right refusals, and nothing hangs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import each, local, replica_id, run, strategy_of
from tensorflow.python.tpu.ops import tpu_ops

from tpunb.errors.explain import explain

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def context() -> Any:
    return tf.distribute.get_replica_context()


@pytest.fixture(scope="module")
def four() -> Any:
    return strategy_of(4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "uint32"])
def test_all_reduce_sums_every_dtype_that_a_tpu_sums(four: Any, dtype: str) -> None:
    def step(x: Any) -> Any:
        return tf.cast(context().all_reduce(SUM, tf.cast(x, dtype)), tf.float64)

    assert run(four, step, each(four, [1, 2, 3, 4])) == [10.0] * 4


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex64"])
def test_all_reduce_refuses_what_a_tpu_cannot_sum(four: Any, dtype: str) -> None:
    with pytest.raises(TypeError, match="not in list of allowed values"):
        run(four, lambda x: context().all_reduce(SUM, tf.cast(x, dtype)), each(four, [1, 2, 3, 4]))


def test_all_reduce_of_a_nest(four: Any) -> None:
    def step(x: Any) -> Any:
        nest = {"a": x, "b": (x * 2.0, [x + 1.0])}
        return context().all_reduce(MEAN, nest)

    results = run(four, step, each(four, [1.0, 2.0, 3.0, 6.0]))
    assert results == [{"a": 3.0, "b": (6.0, [4.0])}] * 4


def test_all_reduce_of_what_is_the_same_everywhere(four: Any) -> None:
    with four.scope():
        v = tf.Variable(3.0)
    results = run(four, lambda: (context().all_reduce(SUM, v), context().all_reduce(SUM, 2.0)))
    assert results == [(12.0, 8.0)] * 4


def test_all_reduce_of_indexed_slices(four: Any) -> None:
    def step(i: Any) -> Any:
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.reshape(i, [1]), tf.constant([4, 2]))
        return tf.convert_to_tensor(context().all_reduce(SUM, slices))

    for result in run(four, step, each(four, [0, 2, 2, 3])):
        np.testing.assert_array_equal(result, [[1, 1], [0, 0], [2, 2], [1, 1]])


def test_gradient_of_an_embedding_is_summed(four: Any) -> None:
    with four.scope():
        table = tf.Variable(tf.zeros([3, 2]))

    def step(i: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, i))
        gradient = tape.gradient(loss, table)
        return tf.convert_to_tensor(context().all_reduce(SUM, gradient))

    ids = [[0, 0], [1, 0], [2, 2], [0, 1]]
    for result in run(four, step, each(four, ids)):
        np.testing.assert_array_equal(result, [[4, 4], [2, 2], [2, 2]])


def test_gradients_pass_all_reduce_and_all_gather(four: Any) -> None:
    def step(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            summed = context().all_reduce(SUM, x * x)
            gathered = context().all_gather(tf.reshape(x, [1]), axis=0)
            weighed = tf.reduce_sum(gathered * tf.constant([1.0, 2.0, 3.0, 4.0]))
        return tape.gradient(summed, x), tape.gradient(weighed, x)

    results = run(four, step, each(four, [1.0, 2.0, 3.0, 4.0]))
    # Each replica's own loss counts: the gradient of a sum is summed over replicas.
    assert [summed for summed, _ in results] == [8.0, 16.0, 24.0, 32.0]
    assert [weighed for _, weighed in results] == [4.0, 8.0, 12.0, 16.0]


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "bool"])
def test_all_gather(four: Any, axis: int, dtype: str) -> None:
    rows = [np.full([2, 3], i % 2 if dtype == "bool" else i + 1) for i in range(4)]

    def step(x: Any) -> Any:
        return context().all_gather(tf.cast(x, dtype), axis=axis)

    expected = np.concatenate(rows, axis).astype(dtype)
    for result in run(four, step, each(four, rows)):
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == expected.dtype


@pytest.mark.parametrize("axis", [0, 1])
def test_gather_of_equal_shapes(four: Any, axis: int) -> None:
    values = each(four, [np.full([2, 2], float(i)) for i in range(4)])
    expected = np.concatenate([np.full([2, 2], float(i)) for i in range(4)], axis)
    np.testing.assert_array_equal(four.gather(values, axis), expected)
    np.testing.assert_array_equal(tf.function(lambda: four.gather(values, axis))(), expected)


def test_gather_of_unequal_shapes_does_what_tpustrategy_does(four: Any) -> None:
    values = each(four, [np.zeros([i + 1], np.float32) for i in range(4)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="Shape mismatch"):
        four.gather(values, 0)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"[Ss]hape|dimension"):
        run(four, lambda x: context().all_gather(x, axis=0), values)


def test_collectives_of_unequal_shapes_are_refused(four: Any) -> None:
    values = each(four, [np.ones([1 if i < 3 else 0, 1], np.float32) for i in range(4)])
    for collective in (
        lambda x: context().all_reduce(SUM, x),
        lambda x: context().all_gather(x, 0),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="drop_remainder=True") as caught:
            run(four, collective, values)
        assert explain(caught.value).code == "40"


def test_reduce_with_and_without_an_axis(four: Any) -> None:
    values = each(four, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    np.testing.assert_array_equal(four.reduce(SUM, values, axis=None), [16.0, 20.0])
    np.testing.assert_array_equal(four.reduce(MEAN, values, axis=None), [4.0, 5.0])
    assert four.reduce(SUM, values, axis=0).numpy() == 36.0
    assert four.reduce(MEAN, values, axis=0).numpy() == 4.5


def test_sums_in_groups(four: Any) -> None:
    def step(x: Any) -> Any:
        return tpu_ops.cross_replica_sum(x, [[0, 2], [1, 3]])

    assert run(four, step, each(four, [1.0, 2.0, 4.0, 8.0])) == [5.0, 10.0, 5.0, 10.0]


def test_sums_in_groups_of_one_are_what_they_were(four: Any) -> None:
    def step(x: Any) -> Any:
        return tpu_ops.cross_replica_sum(x, [[0], [1], [2], [3]])

    assert run(four, step, each(four, [1.0, 2.0, 4.0, 8.0])) == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize("groups", [[[0, 1]], [[0, 1], [1, 2]], [[0, 1], [2, 7]]])
def test_groups_that_are_no_partition_are_refused(four: Any, groups: Any) -> None:
    with pytest.raises(ValueError, match="exactly one group"):
        run(four, lambda x: tpu_ops.cross_replica_sum(x, groups), each(four, [1.0] * 4))


def test_groups_that_depend_on_data_are_refused(four: Any) -> None:
    def step(x: Any) -> Any:
        return tpu_ops.cross_replica_sum(tf.cast(x, tf.float32), tf.reshape(x, [1, 1]))

    with pytest.raises(ValueError, match="compile-time constant"):
        run(four, step, each(four, [0, 1, 2, 3]))


def test_all_to_all(four: Any) -> None:
    def step(x: Any) -> Any:
        return tpu_ops.all_to_all(x, concat_dimension=0, split_dimension=0, split_count=4)

    rows = np.arange(16).reshape(4, 4)
    np.testing.assert_array_equal(run(four, step, each(four, list(rows))), rows.T)


def test_all_to_all_in_groups(four: Any) -> None:
    def step(x: Any) -> Any:
        return tpu_ops.all_to_all(
            x,
            concat_dimension=1,
            split_dimension=0,
            split_count=2,
            group_assignment=[[0, 1], [2, 3]],
        )

    values = [np.array([[10 * i], [10 * i + 1]]) for i in range(4)]
    results = run(four, step, each(four, values))
    np.testing.assert_array_equal(
        np.reshape(results, [4, 2]), [[0, 10], [1, 11], [20, 30], [21, 31]]
    )


def test_collective_permute(four: Any) -> None:
    def step(x: Any) -> Any:
        return tpu_ops.collective_permute(x, [[0, 1], [1, 2], [2, 3], [3, 0]])

    assert run(four, step, each(four, [1, 2, 3, 4])) == [4, 1, 2, 3]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([[0, 1]], [0, 1, 0, 0]),
        ([[0, 0]], [1, 0, 0, 0]),
        ([[3, 0], [1, 2]], [4, 0, 2, 0]),
    ],
)
def test_a_core_that_nobody_sends_to_gets_zeros(four: Any, pairs: Any, expected: Any) -> None:
    values = each(four, [1, 2, 3, 4])
    assert run(four, lambda x: tpu_ops.collective_permute(x, pairs), values) == expected


@pytest.mark.parametrize("pairs", [[[1, 0], [2, 0]], [[1, 0], [1, 2]], [[0, 4]]])
def test_pairs_that_are_no_permutation_are_refused(four: Any, pairs: Any) -> None:
    with pytest.raises(ValueError, match="permut"):
        run(four, lambda x: tpu_ops.collective_permute(x, pairs), each(four, [1, 2, 3, 4]))


def test_gradients_pass_permutations(four: Any) -> None:
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            moved = tpu_ops.collective_permute(x, [[0, 1], [1, 2], [2, 3], [3, 0]])
            loss = moved * tf.cast(replica_id() + 1, tf.float32)
        return moved, tape.gradient(loss, x)

    results = run(four, step, each(four, [10.0, 20.0, 30.0, 40.0]))
    assert results == [(40.0, 2.0), (10.0, 3.0), (20.0, 4.0), (30.0, 1.0)]


def test_collectives_in_a_loop_of_a_fixed_length(four: Any) -> None:
    def step(x: Any) -> Any:
        for _ in tf.range(3):
            x = context().all_reduce(MEAN, x) + tf.cast(replica_id(), tf.float32)
        return x

    assert run(four, step, each(four, [0.0, 4.0, 8.0, 0.0])) == [6.0, 7.0, 8.0, 9.0]


def test_collectives_in_a_loop_until_they_agree(four: Any) -> None:
    def step(x: Any) -> Any:
        total, rounds = x, 0
        while context().all_reduce(SUM, total) < 100.0:
            total = total * 2.0
            rounds += 1
        return total, rounds

    results = run(four, step, each(four, [1.0, 2.0, 3.0, 4.0]))
    assert results == [(16.0, 4), (32.0, 4), (48.0, 4), (64.0, 4)]


def test_collectives_in_nested_loops_and_branches(four: Any) -> None:
    def step(x: Any) -> Any:
        total = tf.constant(0.0)
        for i in tf.range(2):
            for j in tf.range(3):
                if (i + j) % 2 == 0:
                    total += context().all_reduce(SUM, x)
                else:
                    total -= x
        return total

    expected = [3 * 10.0 - 3 * x for x in (1.0, 2.0, 3.0, 4.0)]
    assert run(four, step, each(four, [1.0, 2.0, 3.0, 4.0])) == expected


def test_collectives_in_one_branch_only(four: Any) -> None:
    def step(x: Any, flag: Any) -> Any:
        return tf.cond(flag, lambda: context().all_reduce(SUM, x), lambda: x)

    values = each(four, [1.0, 2.0, 3.0, 4.0])
    assert run(four, step, values, tf.constant(True)) == [10.0] * 4
    assert run(four, step, values, tf.constant(False)) == [1.0, 2.0, 3.0, 4.0]


def test_collectives_in_a_switch(four: Any) -> None:
    def step(x: Any, which: Any) -> Any:
        return tf.switch_case(which, [lambda: x, lambda: context().all_reduce(SUM, x), lambda: -x])

    values = each(four, [1.0, 2.0, 3.0, 4.0])
    assert run(four, step, values, tf.constant(1)) == [10.0] * 4
    assert run(four, step, values, each(four, [2, 2, 2, 2])) == [-1.0, -2.0, -3.0, -4.0]


@pytest.mark.parametrize("kind", ["if", "switch"])
def test_replicas_that_disagree_about_a_branch_fail(four: Any, kind: str) -> None:
    def step(x: Any) -> Any:
        branches = [lambda: context().all_reduce(SUM, x), lambda: x]
        if kind == "if":
            return tf.cond(x < 3.0, *branches)
        return tf.switch_case(tf.cast(x < 3.0, tf.int32), branches)

    with pytest.raises(tf.errors.InvalidArgumentError, match="disagree about a condition"):
        run(four, step, each(four, [1.0, 2.0, 3.0, 4.0]))
    if kind == "if":
        assert run(four, step, each(four, [1.0] * 4)) == [4.0] * 4


def test_a_trip_count_that_depends_on_the_replica_fails(four: Any) -> None:
    def step(x: Any) -> Any:
        for _ in tf.range(replica_id() + 1):
            x = context().all_reduce(SUM, x)
        return x

    values = each(four, [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="disagree about a condition"):
        run(four, step, values)
    # The strategy works after.
    assert run(four, lambda x: context().all_reduce(SUM, x), values) == [10.0] * 4


def test_collectives_in_a_nested_function(four: Any) -> None:
    @tf.function
    def inner(x: Any) -> Any:
        return context().all_reduce(SUM, x) + x

    @tf.function
    def middle(x: Any) -> Any:
        return inner(x) * 2.0, x

    values = each(four, [1.0, 2.0, 3.0, 4.0])
    expected = [(22.0, 1.0), (24.0, 2.0), (26.0, 3.0), (28.0, 4.0)]
    assert run(four, lambda x: middle(x), values) == expected
    assert run(four, middle, values) == expected


def test_collectives_in_a_compiled_function(four: Any) -> None:
    @tf.function(jit_compile=True)
    def inner(x: Any) -> Any:
        return context().all_reduce(SUM, x) + x

    assert run(four, lambda x: inner(x), each(four, [1.0, 2.0, 3.0, 4.0])) == [
        11.0,
        12.0,
        13.0,
        14.0,
    ]


def test_gradient_of_a_loop_with_collectives(four: Any) -> None:
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(2):
                y = context().all_reduce(MEAN, y) * x
            loss = y
        return tape.gradient(loss, x)

    xs = np.array([1.0, 2.0, 3.0, 4.0])
    # The loss is sum over i of mean(mean(x) * x) * x_i = mean(x)^2 * sum(x).
    expected = 2 * xs.mean() / 4 * xs.sum() + xs.mean() ** 2
    results = run(four, step, each(four, list(xs)))
    np.testing.assert_allclose(results, [expected] * 4)


def test_reduce_to_and_broadcast_inside_a_replica_function(four: Any) -> None:
    def step(x: Any) -> Any:
        extended = four.extended
        return (
            extended._reduce_to(SUM, x, x, options=None) if hasattr(extended, "_reduce_to") else x
        )

    assert run(four, step, each(four, [1.0, 2.0, 3.0, 4.0])) == [10.0] * 4


def test_collectives_on_one_replica() -> None:
    one = strategy_of(1)

    def step(x: Any) -> Any:
        c = context()
        permuted = tpu_ops.collective_permute(x, [[0, 0]])
        return c.all_reduce(SUM, x), c.all_gather(x, axis=0), permuted

    summed, gathered, permuted = run(one, step, tf.constant([3.0]))[0]
    assert (summed, gathered, permuted) == ([3.0], [3.0], [3.0])


def test_fifty_steps_of_many_collectives_on_eight_cores() -> None:
    eight = strategy_of(8)
    with eight.scope():
        v = tf.Variable(tf.zeros([4]))

    def replica(x: Any) -> Any:
        c = context()
        total = c.all_reduce(SUM, x)
        gathered = c.all_gather(tf.reshape(x[0], [1]), axis=0)
        for _ in tf.range(2):
            total = c.all_reduce(MEAN, total + x)
        moved = tpu_ops.collective_permute(x, [[i, (i + 1) % 8] for i in range(8)])
        v.assign_add(c.all_reduce(SUM, moved) * 0.0 + 1.0)
        return tf.reduce_sum(total) + tf.reduce_sum(gathered) + tf.reduce_sum(moved)

    @tf.function
    def step(x: Any) -> Any:
        return eight.run(replica, args=(x,))

    x = each(eight, [np.full([4], float(i), np.float32) for i in range(8)])
    first = local(eight, step(x))
    for _ in range(49):
        assert local(eight, step(x)) == first
    np.testing.assert_array_equal(v, [50.0] * 4)
