"""Variables that are read, added to and assigned, which one node does in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.divergence import rank
from support.strategies import copies, run, strategy_of

from tpunb.virtual.replicate import replication

CORES = 3
OWN = {
    "synchronization": tf.VariableSynchronization.ON_READ,
    "aggregation": tf.VariableAggregation.SUM,
}


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


def own(strategy: Any, value: Any) -> Any:
    with strategy.scope():
        return tf.Variable(value, **OWN)


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
    v = own(strategy, [1.0, 2.0])

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
    v = own(strategy, 3.0)
    assert run(strategy, lambda: change(v)) == [result] * CORES
    assert copies(v) == [value] * CORES


def test_two_variables(strategy: Any) -> None:
    v, other = own(strategy, 3.0), own(strategy, 10.0)
    run(strategy, lambda: of_another_variable(v, other))
    assert copies(v) == [11.0] * CORES
    assert copies(other) == [12.0] * CORES


def test_a_sum_that_has_another_shape(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable([1.0, 2.0], shape=tf.TensorShape(None), **OWN)
    run(strategy, lambda: [v.assign(v + tf.ones([3, 2])), tf.zeros([])][1])
    assert [value.shape for value in copies(v)] == [(3, 2)] * CORES
    w = own(strategy, [1.0, 2.0])
    run(strategy, lambda: [w.assign(w + rank()), tf.zeros([])][1])
    assert [value.tolist() for value in copies(w)] == [[2.0 + k, 3.0 + k] for k in range(CORES)]
