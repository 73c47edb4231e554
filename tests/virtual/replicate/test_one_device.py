"""What the replicas of a process compute, they compute on one device."""

from __future__ import annotations

import collections
import functools
from typing import Any

import numpy as np
import tensorflow as tf
from support.strategies import all_reduce, copies, local, strategy_of

REPLICAS = 4


@functools.cache
def strategy() -> Any:
    return strategy_of(REPLICAS, strict=False)


def variables(*values: Any) -> list[Any]:
    with strategy().scope():
        return [tf.Variable(value) for value in values]


def crossings(step: Any) -> collections.Counter[str]:
    """What goes from one device to another in the function for all replicas, by operation."""
    library = step.get_concrete_function().graph.as_graph_def().library
    function = max(library.function, key=lambda each: len(each.node_def))
    nodes = {node.name: node for node in function.node_def}
    found = {
        (text, node.device, node.op)
        for node in function.node_def
        for text in node.input
        if (source := nodes.get(text.lstrip("^").partition(":")[0]))
        and source.device != node.device
    }
    return collections.Counter(op for _, _, op in found)


def test_updates_go_from_no_device_to_another() -> None:
    weights = variables(*(tf.ones([k + 1, 2]) for k in range(5)), 3, 4)

    @tf.function
    def step() -> Any:
        def replica() -> Any:
            for number, weight in enumerate(weights):
                ones = tf.ones_like(weight) * (number + 1)
                weight.assign_add(ones * tf.cast(all_reduce(tf.constant(1.0)), weight.dtype))
            return tf.add_n([tf.reduce_sum(tf.cast(weight, tf.float32)) for weight in weights])

        return strategy().run(replica)

    for _ in range(3):
        results = local(strategy(), step())
    expected = [1.0 + 12.0 * (k + 1) for k in range(5)]
    for weight, value in zip(weights, [*expected, 3 + 12 * 6, 4 + 12 * 7], strict=True):
        assert all((copy == value).all() for copy in copies(weight))
    sums = sum(2 * (k + 1) * value for k, value in enumerate(expected)) + 3 + 72 + 4 + 84
    np.testing.assert_allclose(results, [sums] * REPLICAS)
    assert not crossings(step)


def test_an_update_that_is_read_before_the_next() -> None:
    v, w, u = variables(tf.ones([64]), tf.zeros([64]), tf.zeros([64]))

    @tf.function
    def step() -> Any:
        def replica() -> Any:
            for _ in range(10):
                v.assign_add(all_reduce(v / (2.0 * REPLICAS)))
                w.assign(v * 2.0)
                v.assign_sub(w / 6.0)
            u.assign(w)
            return v + 0.0

        return strategy().run(replica)

    for turn in range(5):
        results = local(strategy(), step())
        for variable, value in ((v, 1.0), (w, 3.0), (u, 3.0)):
            for copy in copies(variable):
                np.testing.assert_allclose(copy, np.full(64, value), rtol=1e-4, err_msg=str(turn))
        np.testing.assert_allclose(results, np.ones([REPLICAS, 64]), rtol=1e-4)


def test_each_replica_reads_its_copy_after_the_update() -> None:
    """What each replica computes from its copy, and one core's result that waits for all."""
    v, w = variables(tf.zeros([256]), tf.zeros([256]))

    @tf.function
    def step(x: Any) -> Any:
        def replica(x: Any) -> Any:
            assigned = v.assign(all_reduce(x))
            with tf.control_dependencies([assigned]):
                shared = tf.identity(all_reduce(tf.ones([])))
            mine = v.read_value() * (x + shared)
            w.assign(all_reduce(mine))
            return mine, w.read_value()

        return strategy().run(replica, args=(x,))

    for turn in range(1, 6):
        given = strategy().experimental_distribute_values_from_function(
            lambda context, turn=turn: tf.fill(
                [256], float(turn * (1 + context.replica_id_in_sync_group))
            )
        )
        mine, after = (local(strategy(), each) for each in step(given))
        total_of_x = turn * REPLICAS * (REPLICAS + 1) / 2
        expected = [total_of_x * (turn * (k + 1) + REPLICAS) for k in range(REPLICAS)]
        for k in range(REPLICAS):
            np.testing.assert_allclose(mine[k], np.full(256, expected[k]))
            np.testing.assert_allclose(after[k], np.full(256, sum(expected)))
        for copy in copies(w):
            np.testing.assert_allclose(copy, np.full(256, sum(expected)))
