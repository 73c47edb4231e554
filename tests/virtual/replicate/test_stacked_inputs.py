"""Arguments with all replicas' values in one tensor, where this costs a step nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import SUM, all_reduce, each, local, replica_id, strategy_of

from tpunb.tensorflow.virtual.replicate import arguments as passed_arguments

REPLICAS = 4


@functools.cache
def strategy(**options: Any) -> Any:
    return strategy_of(REPLICAS, **options)


def arguments(step: Any, *args: Any) -> list[int]:
    """The ranks of the arguments of the function for all replicas."""
    graph = step.get_concrete_function(*args).graph
    (call,) = [
        operation
        for operation in graph.get_operations()
        if operation.type == "StatefulPartitionedCall"
    ]
    return [tensor.shape.rank for tensor in call.inputs if tensor.dtype != tf.resource]


def calling(function: Callable[..., Any], *args: Any, on: Any = None) -> Any:
    target = on or strategy()
    return tf.function(lambda: target.run(function, args=args))


@pytest.mark.parametrize("options", [{}, {"joined": False}, {"at_once": 1}])
def test_captured_values_are_passed_as_one_tensor(options: dict[str, Any]) -> None:
    target = strategy(**options)
    rows = np.random.default_rng(0).normal(size=[REPLICAS, 3, 5]).astype(np.float32)
    weights = tf.constant(np.random.default_rng(1).normal(size=[5, 2]).astype(np.float32))
    x = each(target, list(rows))

    def replica(x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        product = tf.nn.relu(x @ weights)
        return product, context.all_reduce(SUM, tf.reduce_sum(product)), x[replica_id() % 3]

    step = calling(replica, x, on=target)
    assert arguments(step) == [1, 3, 2]
    for number, (product, total, row) in enumerate(local(target, step())):
        expected = np.maximum(rows @ weights.numpy(), 0)
        np.testing.assert_allclose(product, expected[number], rtol=1e-5)
        np.testing.assert_allclose(total, expected.sum(), rtol=1e-5)
        np.testing.assert_array_equal(row, rows[number][number % 3])


@pytest.mark.parametrize(
    "values",
    [
        [1.5, 2.5, 3.5, 4.5],
        [[1.0], [2.0, 3.0], [], [4.0]],
        ["a", "b", "c", "d"],
        [True, False, False, True],
    ],
    ids=["scalars", "different sizes", "strings", "bools"],
)
def test_values_of_any_kind(values: list[Any]) -> None:
    target = strategy_of(REPLICAS, strict=False)
    results = local(target, calling(tf.identity, each(target, values), on=target)())
    expected = [tf.constant(value).numpy() for value in values]
    assert [np.asarray(result).tolist() for result in results] == [
        np.asarray(e).tolist() for e in expected
    ]


def test_large_values_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passed_arguments, "_MOST_BYTES", 4 * 200 * REPLICAS)
    small, large = (each(strategy(), [[1.0] * count] * 4) for count in (200, 201))
    step = calling(lambda a, b: (tf.reduce_sum(a), tf.reduce_sum(b)), small, large)
    assert arguments(step) == [1, 2, 1, 1, 1, 1]
    assert local(strategy(), step()) == [(200.0, 201.0)] * 4


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [0, 0, 1, 2]])
def test_parts_of_one_tensor(order: list[int]) -> None:
    @tf.function
    def step(whole: Any) -> Any:
        parts = tf.unstack(whole * 2.0, REPLICAS)
        context = strategy().experimental_distribute_values_from_function
        x = context(lambda ctx: parts[order[ctx.replica_id_in_sync_group]])
        return strategy().run(lambda x: x + 1.0, args=(x,))

    whole = tf.reshape(tf.range(8.0), [4, 2])
    results = local(strategy(), step(whole))
    np.testing.assert_array_equal(results, [whole.numpy()[k] * 2 + 1 for k in order])
    ranks = arguments(step, whole)
    assert ranks == ([1, 2] if len(set(order)) == REPLICAS else [1, 1, 1, 1, 1])


def test_in_a_loop_with_collectives() -> None:
    x = each(strategy(), [1.0, 2.0, 3.0, 4.0])

    def replica(x: Any) -> Any:
        total = tf.constant(0.0)
        for _ in tf.range(3):
            total += all_reduce(x * x) * x
        return total

    results = local(strategy(), calling(replica, x)())
    np.testing.assert_allclose(results, [90.0, 180.0, 270.0, 360.0])
