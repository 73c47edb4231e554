"""Cross-replica operations give the right values, refuse bad input, and never hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import MEAN, SUM, all_reduce, each, replica_id, run, stepper, strategy_of
from tensorflow.python.tpu.ops import tpu_ops

from tpunb.errors.explain import explain


def context() -> Any:
    return tf.distribute.get_replica_context()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "uint32"])
def test_all_reduce_sums_every_dtype_that_a_tpu_supports(four: Any, dtype: str) -> None:
    def step(x: Any) -> Any:
        return tf.cast(all_reduce(tf.cast(x, dtype)), tf.float64)

    assert run(four, step, each(four, [1, 2, 3, 4])) == [10.0] * 4


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex64"])
def test_all_reduce_refuses_what_a_tpu_cannot_sum(four: Any, dtype: str) -> None:
    with pytest.raises(TypeError, match="not in list of allowed values"):
        run(four, lambda x: all_reduce(tf.cast(x, dtype)), each(four, [1, 2, 3, 4]))


def test_all_reduce_of_a_nest(four: Any) -> None:
    def step(x: Any) -> Any:
        nest = {"a": x, "b": (x * 2.0, [x + 1.0])}
        return context().all_reduce(MEAN, nest)

    results = run(four, step, each(four, [1.0, 2.0, 3.0, 6.0]))
    assert results == [{"a": 3.0, "b": (6.0, [4.0])}] * 4


def test_all_reduce_of_equal_values(four: Any) -> None:
    with four.scope():
        v = tf.Variable(3.0)
    results = run(four, lambda: (all_reduce(v), all_reduce(2.0)))
    assert results == [(12.0, 8.0)] * 4


def test_all_reduce_of_indexed_slices(four: Any) -> None:
    def step(i: Any) -> Any:
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.reshape(i, [1]), tf.constant([4, 2]))
        return tf.convert_to_tensor(all_reduce(slices))

    for result in run(four, step, each(four, [0, 2, 2, 3])):
        np.testing.assert_array_equal(result, [[1, 1], [0, 0], [2, 2], [1, 1]])


def test_gradient_of_an_embedding_is_summed(four: Any) -> None:
    with four.scope():
        table = tf.Variable(tf.zeros([3, 2]))

    def step(i: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, i))
        gradient = tape.gradient(loss, table)
        return tf.convert_to_tensor(all_reduce(gradient))

    ids = [[0, 0], [1, 0], [2, 2], [0, 1]]
    for result in run(four, step, each(four, ids)):
        np.testing.assert_array_equal(result, [[4, 4], [2, 2], [2, 2]])


def test_gradients_pass_all_reduce_and_all_gather(four: Any) -> None:
    def step(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            summed = all_reduce(x * x)
            gathered = context().all_gather(tf.reshape(x, [1]), axis=0)
            weighed = tf.reduce_sum(gathered * tf.constant([1.0, 2.0, 3.0, 4.0]))
        return tape.gradient(summed, x), tape.gradient(weighed, x)

    results = run(four, step, each(four, [1.0, 2.0, 3.0, 4.0]))
    # Each replica's loss counts: the gradient of a sum is summed over the replicas.
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


def test_collectives_of_unequal_shapes_are_refused(four: Any) -> None:
    values = each(four, [np.ones([1 if i < 3 else 0, 1], np.float32) for i in range(4)])
    for collective in (
        lambda x: all_reduce(x),
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


@pytest.mark.parametrize("groups", [[[0, 1]], [[0, 1], [1, 2]], [[0, 1], [2, 7]]])
def test_groups_that_do_not_partition_the_replicas_are_refused(four: Any, groups: Any) -> None:
    with pytest.raises(ValueError, match="exactly one group"):
        run(four, lambda x: tpu_ops.cross_replica_sum(x, groups), each(four, [1.0] * 4))


def test_groups_that_depend_on_data_are_refused(four: Any) -> None:
    def step(x: Any) -> Any:
        return tpu_ops.cross_replica_sum(tf.cast(x, tf.float32), tf.reshape(x, [1, 1]))

    with pytest.raises(ValueError, match="compile-time constant"):
        run(four, step, each(four, [0, 1, 2, 3]))


# Functions of 1, 2, 3 and 4 (one number for each replica), and their results.


def permuted(*pairs: tuple[int, int]) -> Callable[[Any], Any]:
    return lambda x: tpu_ops.collective_permute(x, [list(pair) for pair in pairs])


def summed_in(*groups: list[int]) -> Callable[[Any], Any]:
    return lambda x: tpu_ops.cross_replica_sum(x, list(groups))


ROUND = [(0, 1), (1, 2), (2, 3), (3, 0)]


def all_to_all(x: Any) -> Any:
    return tpu_ops.all_to_all(
        tf.fill([4], x) + tf.range(4.0),
        concat_dimension=0,
        split_dimension=0,
        split_count=4,
    )


def all_to_all_in_groups(x: Any) -> Any:
    return tpu_ops.all_to_all(
        tf.stack([[x], [-x]]),
        concat_dimension=1,
        split_dimension=0,
        split_count=2,
        group_assignment=[[0, 1], [2, 3]],
    )


def gradient_of_a_permutation(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        moved = permuted(*ROUND)(x)
        loss = moved * tf.cast(replica_id() + 1, tf.float32)
    return moved, tape.gradient(loss, x)


def in_a_loop_of_a_fixed_length(x: Any) -> Any:
    for _ in tf.range(3):
        x = context().all_reduce(MEAN, x) + tf.cast(replica_id(), tf.float32)
    return x


def in_a_loop_until_they_agree(x: Any) -> Any:
    total, rounds = x, 0
    while all_reduce(total) < 100.0:
        total = total * 2.0
        rounds += 1
    return total, rounds


def in_nested_loops_and_branches(x: Any) -> Any:
    total = tf.constant(0.0)
    for i in tf.range(2):
        for j in tf.range(3):
            if (i + j) % 2 == 0:
                total += all_reduce(x)
            else:
                total -= x
    return total


def in_a_nested_function(x: Any) -> Any:
    inner = tf.function(lambda x: all_reduce(x) + x)
    return tf.function(lambda x: (inner(x) * 2.0, x))(x)


def in_a_compiled_function(x: Any) -> Any:
    return tf.function(lambda x: all_reduce(x) + x, jit_compile=True)(x)


def reduced_by_the_strategy(x: Any) -> Any:
    return tf.distribute.get_strategy().extended._reduce_to(SUM, x, x, options=None)


PROGRAMS: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "sums in groups": (summed_in([0, 2], [1, 3]), [4, 6, 4, 6]),
    "groups of one": (summed_in([0], [1], [2], [3]), [1, 2, 3, 4]),
    "all to all": (all_to_all, [[1 + k, 2 + k, 3 + k, 4 + k] for k in range(4)]),
    "all to all in groups": (all_to_all_in_groups, [[[1, 2]], [[-1, -2]], [[3, 4]], [[-3, -4]]]),
    "around": (permuted(*ROUND), [4, 1, 2, 3]),
    "to one other": (permuted((0, 1)), [0, 1, 0, 0]),
    "to itself": (permuted((0, 0)), [1, 0, 0, 0]),
    "from two": (permuted((3, 0), (1, 2)), [4, 0, 2, 0]),
    "gradient": (gradient_of_a_permutation, [(4, 2), (1, 3), (2, 4), (3, 1)]),
    "loop": (in_a_loop_of_a_fixed_length, [5.5, 6.5, 7.5, 8.5]),
    "open loop": (in_a_loop_until_they_agree, [(16, 4), (32, 4), (48, 4), (64, 4)]),
    "nested loops": (in_nested_loops_and_branches, [27, 24, 21, 18]),
    "nested function": (in_a_nested_function, [(22, 1), (24, 2), (26, 3), (28, 4)]),
    "compiled function": (in_a_compiled_function, [11, 12, 13, 14]),
    "by the strategy": (reduced_by_the_strategy, [10] * 4),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_exchanged_values(four: Any, name: str) -> None:
    function, expected = PROGRAMS[name]
    results = run(four, function, each(four, [1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_array_equal(results, expected)


@pytest.mark.parametrize(
    ("which", "expected"), [(0, [1, 2, 3, 4]), (1, [10] * 4), (2, [-1, -2, -3, -4])]
)
def test_collectives_in_one_branch_only(four: Any, which: int, expected: list[int]) -> None:
    def step(x: Any, which: Any) -> Any:
        total = tf.cond(which == 1, lambda: all_reduce(x), lambda: x)
        return total, tf.switch_case(which, [lambda: x, lambda: all_reduce(x), lambda: -x])

    values = each(four, [1.0, 2.0, 3.0, 4.0])
    for index in (tf.constant(which), each(four, [which] * 4)):
        results = run(four, step, values, index)
        assert [switched for _, switched in results] == expected
        assert [total for total, _ in results] == ([10] * 4 if which == 1 else [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("value", "axis", "message"),
    [
        (1.0, 0, r"cannot gather a scalar.*\n.*tf.expand_dims\(x, 0\), axis=0"),
        ({"a": [np.ones(2)], "b": np.int32(1)}, -1, "cannot gather a scalar"),
        (np.ones(2), 1, r"along axis 1 of a tensor of shape \(2,\).\n.*from -1 to 0"),
        (np.ones([2, 3]), -3, "from -2 to 1"),
    ],
)
def test_missing_axes_are_refused(four: Any, value: Any, axis: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(four, lambda: context().all_gather(value, axis))


def test_the_fix_for_a_gathered_scalar_works(four: Any) -> None:
    gathered = run(
        four,
        lambda x: context().all_gather(tf.expand_dims(x, 0), axis=0),
        each(four, [1.0, 2.0, 3.0, 4.0]),
    )
    np.testing.assert_array_equal(gathered, [[1.0, 2.0, 3.0, 4.0]] * 4)


@pytest.mark.parametrize("pairs", [[[1, 0], [2, 0]], [[1, 0], [1, 2]], [[0, 4]]])
def test_pairs_that_are_not_a_permutation_are_refused(four: Any, pairs: Any) -> None:
    with pytest.raises(ValueError, match="permut"):
        run(four, lambda x: tpu_ops.collective_permute(x, pairs), each(four, [1, 2, 3, 4]))


@pytest.mark.parametrize("kind", ["if", "switch"])
def test_replicas_that_disagree_about_a_branch_fail(four: Any, kind: str) -> None:
    def step(x: Any) -> Any:
        branches = [lambda: all_reduce(x), lambda: x]
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
            x = all_reduce(x)
        return x

    lenient = strategy_of(4, strict={"collective-branch": False})
    values = each(lenient, [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="disagree about a condition"):
        run(lenient, step, values)
    # The strategy still works.
    assert run(lenient, lambda x: all_reduce(x), values) == [10.0] * 4


@pytest.mark.parametrize("sign", [1, -1])
def test_an_index_outside_of_the_branches_takes_the_last(four: Any, sign: int) -> None:
    def step(x: Any) -> Any:
        index = sign * tf.cast(x, tf.int32)
        return tf.switch_case(index, [lambda: x, lambda: all_reduce(x)])

    assert run(four, step, each(four, [1.0, 2.0, 3.0, 4.0])) == [10.0] * 4


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

    step = stepper(eight, replica)
    x = each(eight, [np.full([4], float(i), np.float32) for i in range(8)])
    first = step(x)
    for _ in range(49):
        assert step(x) == first
    np.testing.assert_array_equal(v, [50.0] * 4)
