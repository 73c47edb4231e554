"""Copies of a mirrored variable that are created with the resource of the first one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import copies, strategy_of

from tpunb.virtual.variable_copies import handle_of

CORES = 3
ASKED = (
    "name", "dtype", "shape", "trainable", "synchronization", "aggregation", "constraint",
    "device", "handle_name", "_validate_shape", "_distribute_strategy", "_in_graph_mode",
    "_graph_key", "_save_slice_info", "_caching_device", "_trainable",
)  # fmt: skip


@pytest.fixture(scope="module")
def strategy() -> Any:
    return strategy_of(CORES)


def capped(value: Any) -> Any:
    return tf.minimum(value, 9.0)


KINDS = {
    "plain": {},
    "named": {"name": "weights"},
    "not trained": {"trainable": False},
    "constrained": {"constraint": capped},
    "summed": {"aggregation": tf.VariableAggregation.SUM},
    "of any shape": {"shape": tf.TensorShape([None])},
    "on write": {
        "synchronization": tf.VariableSynchronization.ON_WRITE,
        "aggregation": tf.VariableAggregation.MEAN,
    },
}


def properties(copy: Any) -> dict[str, Any]:
    return {name: getattr(copy, name, None) for name in ASKED}


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_as_tensorflow_creates_them(strategy: Any, kind: str) -> None:
    heard = []

    def creator(next_creator: Any, **kwargs: Any) -> Any:
        heard.append(kwargs["name"])
        return next_creator(**kwargs)

    def make() -> Any:
        with strategy.scope():
            return tf.Variable([1.0, 2.0], **KINDS[kind])

    made = make()
    with tf.variable_creator_scope(creator):  # which is to hear of each copy
        expected = make()
    assert len(heard) == CORES
    assert type(made) is type(expected)
    for copy, other in zip(made.values, expected.values, strict=True):
        assert type(copy) is type(other)
        assert properties(copy) == properties(other)
        assert vars(copy).keys() == vars(other).keys()
        np.testing.assert_array_equal(copy, other)


def test_each_has_a_key_of_its_own(strategy: Any) -> None:
    with strategy.scope():
        variables = [tf.Variable(1.0, name="v") for _ in range(2)]
    keys = [copy._unique_id for variable in variables for copy in variable.values]
    assert len(set(keys)) == 2 * CORES


def test_what_is_read_once_has_resources_of_its_own(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(
            1.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    assert len({id(copy._handle) for copy in v.values}) == CORES
    v.values[1].assign(5.0)
    assert copies(v) == [1.0, 5.0, 1.0]


def test_they_come_apart(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable([1.0, 2.0], name="apart")
    v.values[1].assign([3.0, 4.0])
    assert [value.tolist() for value in copies(v)] == [[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]]
    assert [handle_of(copy)._name for copy in v.values] == [copy.name for copy in v.values]


def test_one_value_is_computed_for_all(strategy: Any) -> None:
    calls = []

    def first() -> Any:
        calls.append(1)
        return tf.random.uniform([2])

    with strategy.scope():
        v = tf.Variable(first)
    assert len(calls) == 1
    assert len({tuple(value) for value in copies(v)}) == 1
