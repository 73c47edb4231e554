"""Functions that were traced outside of the replicas, called within them."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from support.strategies import local, run, strategy_of

SUMMED = {
    "synchronization": tf.VariableSynchronization.ON_READ,
    "aggregation": tf.VariableAggregation.SUM,
}


def held(strategy: Any, **kind: Any) -> tuple[Any, Any, Any]:
    with strategy.scope():
        variable = tf.Variable(0.0, **kind)
    function = tf.function(lambda: variable + 0.0, input_signature=[])
    return variable, function, function.get_concrete_function()


def set_apart(strategy: Any, variable: Any) -> None:
    def assign() -> None:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        variable.assign(tf.cast(replica, tf.float32) + 1.0)

    strategy.run(tf.function(assign))


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("inside", ["plainly", "in a loop", "in a function"])
def test_a_sum_of_copies_is_refused(replicas: int, inside: str) -> None:
    strategy = strategy_of(replicas)
    variable, function, concrete = held(strategy, **SUMMED)
    set_apart(strategy, variable)
    assert float(concrete()) == sum(range(1, replicas + 1))

    def call() -> Any:
        if inside == "plainly":
            return concrete()
        if inside == "in a function":
            return tf.function(lambda: concrete() + 0.0)()
        found = tf.constant(0.0)
        for _ in tf.range(1):
            found = found + concrete()
        return found

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"copies of a variable|access resource"
    ):
        run(strategy, call)
    assert run(strategy, function) == [float(k) for k in range(1, replicas + 1)]


def test_a_variable_that_is_the_same_everywhere() -> None:
    strategy = strategy_of(3)
    variable, _, concrete = held(strategy)
    variable.assign(7.0)
    assert run(strategy, lambda: concrete() * 2.0) == [14.0] * 3


def test_one_replica_has_one_copy() -> None:
    strategy = strategy_of(1)
    variable, _, concrete = held(strategy, **SUMMED)
    variable.assign(7.0)
    assert local(strategy, strategy.run(tf.function(lambda: concrete() * 2.0))) == [14.0]
