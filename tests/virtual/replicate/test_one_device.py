"""What is written for all replicas of a process: on one device, and in place where that does."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.divergence import rank
from support.strategies import (
    SUMMED_ON_READ,
    all_reduce,
    copies,
    each,
    local,
    make,
    run,
    stepper,
    strategy_of,
)

from tpunb.virtual.replicate import replication

REPLICAS = 4


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


def test_updates_go_from_no_device_to_another(lenient: Any) -> None:
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


def test_an_update_that_is_read_before_the_next(lenient: Any) -> None:
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
    """What each replica computes from its copy, and one core's result that waits for all."""
    v, w = make(lenient, tf.zeros([256])), make(lenient, tf.zeros([256]))

    def replica(x: Any) -> Any:
        assigned = v.assign(all_reduce(x))
        with tf.control_dependencies([assigned]):
            shared = tf.identity(all_reduce(tf.ones([])))
        mine = v.read_value() * (x + shared)
        w.assign(all_reduce(mine))
        return mine, w.read_value()

    step = stepper(lenient, replica)
    for turn in range(1, 6):
        given = each(lenient, [tf.fill([256], float(turn * (k + 1))) for k in range(REPLICAS)])
        mine, after = zip(*step(given), strict=True)
        total_of_x = turn * REPLICAS * (REPLICAS + 1) / 2
        expected = [total_of_x * (turn * (k + 1) + REPLICAS) for k in range(REPLICAS)]
        for k in range(REPLICAS):
            np.testing.assert_allclose(mine[k], np.full(256, expected[k]))
            np.testing.assert_allclose(after[k], np.full(256, sum(expected)))
        for copy in copies(w):
            np.testing.assert_allclose(copy, np.full(256, sum(expected)))


# Variables that are read, added to and assigned, which one node does in place.

CORES = 3


@pytest.fixture(scope="module")
def strategy() -> Any:
    return strategy_of(CORES, joined=True)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations of what is written for all replicas."""
    found: list[str] = []

    def expand(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        found.extend(node.op for node in made.definition.node_def)
        return made

    original = replication.expand
    monkeypatch.setattr(replication, "expand", expand)
    return found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda v, x: v.assign(v + x), lambda v, x: v + x),
        (lambda v, x: v.assign(x + v), lambda v, x: v + x),
        (lambda v, x: v.assign(v - x), lambda v, x: v - x),
        (lambda v, x: v.assign(v + v), lambda v, x: v + v),
        (lambda v, x: v.assign(v + x * v), lambda v, x: v + x * v),
    ],
)
def test_what_is_added_in_place(
    strategy: Any,
    written: list[str],
    change: Callable[[Any, Any], Any],
    expected: Callable[[Any, Any], Any],
) -> None:
    v = make(strategy, [1.0, 2.0], **SUMMED_ON_READ)

    def step() -> Any:
        change(v, rank() * tf.constant([1.0, 10.0]))
        change(v, rank() * tf.constant([1.0, 10.0]))
        return v.read_value()

    by = [np.array([1.0, 10.0]) * (k + 1) for k in range(CORES)]
    wanted = [expected(expected(np.array([1.0, 2.0]), x), x).tolist() for x in by]
    assert [value.tolist() for value in run(strategy, step)] == wanted
    assert [value.tolist() for value in copies(v)] == wanted
    assert {"AssignAddVariableOp", "AssignSubVariableOp"} & set(written)
    assert "AssignVariableOp" not in written


def subtracted_from(v: Any) -> Any:
    v.assign(10.0 - v)
    return tf.zeros([])


def with_another_use(v: Any) -> Any:
    before = v.read_value()
    v.assign(before + 1.0)
    return before


def with_the_sum_used(v: Any) -> Any:
    after = v + 1.0
    v.assign(after)
    return after


def with_a_change_between(v: Any) -> Any:
    before = v.read_value()
    v.assign(100.0)
    between = v.read_value()
    v.assign(before + 1.0)
    return between


def of_another_variable(v: Any, other: Any) -> Any:
    v.assign(other + 1.0)
    other.assign(v + 1.0)
    return tf.zeros([])


@pytest.mark.parametrize(
    ("change", "value", "result"),
    [
        (subtracted_from, 7.0, 0.0),
        (with_another_use, 4.0, 3.0),
        (with_the_sum_used, 4.0, 4.0),
        (with_a_change_between, 4.0, 100.0),
    ],
)
def test_what_is_not(
    strategy: Any, change: Callable[[Any], Any], value: float, result: float
) -> None:
    v = make(strategy, 3.0, **SUMMED_ON_READ)
    assert run(strategy, lambda: change(v)) == [result] * CORES
    assert copies(v) == [value] * CORES


def test_two_variables(strategy: Any) -> None:
    v, other = make(strategy, 3.0, **SUMMED_ON_READ), make(strategy, 10.0, **SUMMED_ON_READ)
    run(strategy, lambda: of_another_variable(v, other))
    assert copies(v) == [11.0] * CORES
    assert copies(other) == [12.0] * CORES


def test_a_sum_that_has_another_shape(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable([1.0, 2.0], shape=tf.TensorShape(None), **SUMMED_ON_READ)
    run(strategy, lambda: [v.assign(v + tf.ones([3, 2])), tf.zeros([])][1])
    assert [value.shape for value in copies(v)] == [(3, 2)] * CORES
    w = make(strategy, [1.0, 2.0], **SUMMED_ON_READ)
    run(strategy, lambda: [w.assign(w + rank()), tf.zeros([])][1])
    assert [value.tolist() for value in copies(w)] == [[2.0 + k, 3.0 + k] for k in range(CORES)]
