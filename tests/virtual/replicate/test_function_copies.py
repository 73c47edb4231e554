"""Loops and branches that replicas run for themselves, within those that they run together."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from support.strategies import copies, each, run, strategy_of


@pytest.fixture(scope="module", params=[2, 3])
def strategy(request: Any) -> Any:
    return strategy_of(request.param)


def total(x: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce("sum", x)


def repeated(x: Any, step: Any) -> Any:
    return tf.while_loop(lambda k, _: k < 2, lambda k, y: (k + 1, step(y)), (0, x))[1]


@pytest.mark.parametrize(("first", "expected"), [(1.0, 2.0), (-9.0, 200.0)])
def test_both_branches_have_a_loop(strategy: Any, first: float, expected: float) -> None:
    """The loops have the same name in their branches."""
    given = [first, *[1.0] * (strategy.num_replicas_in_sync - 1)]

    def replica(x: Any) -> Any:
        def positive() -> Any:
            return repeated(x, lambda y: y + 1.0) + 0.0 * total(x)

        def negative() -> Any:
            return repeated(x, lambda y: y + 100.0) + 0.0 * total(x)

        return tf.cond(total(x) > 0.0, positive, negative)

    assert run(strategy, replica, each(strategy, given)) == [one + expected for one in given]


@pytest.mark.parametrize(("first", "expected"), [(1.0, 2.0), (-9.0, 3.0)])
def test_both_branches_have_branches(strategy: Any, first: float, expected: float) -> None:
    given = [first, *[1.0] * (strategy.num_replicas_in_sync - 1)]

    def replica(x: Any) -> Any:
        def branch(number: float) -> Any:
            return lambda: (
                x * 0.0
                + number
                + 0.0 * total(x)
                + tf.switch_case(
                    tf.cast(x > 100.0, tf.int32), [lambda: x * 0.0 + number, lambda: x]
                )
            )

        return tf.cond(total(x) > 0.0, branch(1.0), branch(1.5))

    assert run(strategy, replica, each(strategy, given)) == [expected] * len(given)


@pytest.mark.parametrize("index", [0, 1])
def test_a_constant_choice_updates_although_nobody_reads_its_result(
    strategy: Any, index: int
) -> None:
    with strategy.scope():
        v = tf.Variable(10.0)

    def replica() -> Any:
        tf.switch_case(tf.constant(index), [lambda: v.assign(1.0), lambda: v.assign(2.0)])
        return tf.constant(0)

    run(strategy, replica)
    assert copies(v) == [index + 1.0] * strategy.num_replicas_in_sync
