"""The function for all replicas of a process runs on one device, and in place if possible."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import tensorflow as tf
from support.strategies import (
    all_reduce,
    copies,
    each,
    local,
    make,
    stepper,
)

REPLICAS = 4


def crossings(step: Any) -> collections.Counter[str]:
    """Count the values that cross devices in the function for all replicas, by operation."""
    library = step.get_concrete_function().graph.as_graph_def().library
    function = max(library.function, key=lambda each: len(each.node_def))
    nodes = {node.name: node for node in function.node_def}
    edges = {
        (text, node.device, node.op)
        for node in function.node_def
        for text in node.input
        if (source := nodes.get(text.lstrip("^").partition(":")[0]))
        and source.device != node.device
    }
    return collections.Counter(op for _, _, op in edges)


def test_updates_do_not_cross_devices(lenient: Any) -> None:
    initial = (*(tf.ones([k + 1, 2]) for k in range(5)), 3, 4)
    weights = [make(lenient, value) for value in initial]

    @tf.function
    def step() -> Any:
        def replica() -> Any:
            for number, weight in enumerate(weights):
                ones = tf.ones_like(weight) * (number + 1)
                weight.assign_add(ones * tf.cast(all_reduce(tf.constant(1.0)), weight.dtype))
            return tf.add_n([tf.reduce_sum(tf.cast(weight, tf.float32)) for weight in weights])

        return lenient.run(replica)

    for _ in range(3):
        results = local(lenient, step())
    expected = [1.0 + 12.0 * (k + 1) for k in range(5)]
    for weight, value in zip(weights, [*expected, 3 + 12 * 6, 4 + 12 * 7], strict=True):
        assert all((copy == value).all() for copy in copies(weight))
    sums = sum(2 * (k + 1) * value for k, value in enumerate(expected)) + 3 + 72 + 4 + 84
    np.testing.assert_allclose(results, [sums] * REPLICAS)
    assert not crossings(step)


def test_an_update_is_read_before_the_next(lenient: Any) -> None:
    v, w, u = (make(lenient, value) for value in (tf.ones([64]), tf.zeros([64]), tf.zeros([64])))

    def replica() -> Any:
        for _ in range(10):
            v.assign_add(all_reduce(v / (2.0 * REPLICAS)))
            w.assign(v * 2.0)
            v.assign_sub(w / 6.0)
        u.assign(w)
        return v + 0.0

    step = stepper(lenient, replica)
    for turn in range(5):
        results = step()
        for variable, value in ((v, 1.0), (w, 3.0), (u, 3.0)):
            for copy in copies(variable):
                np.testing.assert_allclose(copy, np.full(64, value), rtol=1e-4, err_msg=str(turn))
        np.testing.assert_allclose(results, np.ones([REPLICAS, 64]), rtol=1e-4)


def test_each_replica_reads_its_copy_after_the_update(lenient: Any) -> None:
    """Read each replica's result from its copy, and a result of one core that waits for all."""
    v, w = make(lenient, tf.zeros([256])), make(lenient, tf.zeros([256]))

    def replica(x: Any) -> Any:
        assigned = v.assign(all_reduce(x))
        with tf.control_dependencies([assigned]):
            shared = tf.identity(all_reduce(tf.ones([])))
        own_results = v.read_value() * (x + shared)
        w.assign(all_reduce(own_results))
        return own_results, w.read_value()

    step = stepper(lenient, replica)
    for turn in range(1, 6):
        inputs = each(lenient, [tf.fill([256], float(turn * (k + 1))) for k in range(REPLICAS)])
        own_results, after = zip(*step(inputs), strict=True)
        total_of_x = turn * REPLICAS * (REPLICAS + 1) / 2
        expected = [total_of_x * (turn * (k + 1) + REPLICAS) for k in range(REPLICAS)]
        for k in range(REPLICAS):
            np.testing.assert_allclose(own_results[k], np.full(256, expected[k]))
            np.testing.assert_allclose(after[k], np.full(256, sum(expected)))
        for copy in copies(w):
            np.testing.assert_allclose(copy, np.full(256, sum(expected)))
