"""Which branches and loops set copies of a variable apart, and which do not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf
from support.strategies import copies, local, strategy_of

REPLICAS = 3


@pytest.fixture
def apart() -> Iterator[Callable[[], set[str]]]:
    """What has been set apart since the test began."""
    variables = strategy().extended._options.divergence.variables
    before = set(variables)
    yield lambda: variables - before
    variables &= before


@functools.cache
def strategy() -> Any:
    return strategy_of(REPLICAS, strict=False)


def run(replica: Callable[[], Any], times: int = 3) -> list[float]:
    """What replicas return in the last of some runs."""
    step = tf.function(lambda: strategy().run(replica), autograph=False)
    for _ in range(times):
        result = step()
    return [float(value) for value in local(strategy(), result)]


def rank() -> Any:
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def total(value: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce("sum", value)


def in_each_second_step(v: Any, n: Any) -> None:
    tf.cond(n % 2 == 1, lambda: [v.assign_add(10.0).op], lambda: [tf.no_op()])


def in_a_nested_branch(v: Any, n: Any) -> None:
    def inner() -> Any:
        return tf.cond(n > 0, lambda: v + 10.0, lambda: v + 0.0)

    tf.cond(n % 2 == 1, lambda: [v.assign(inner()).op], lambda: [tf.no_op()])


def in_a_case(v: Any, n: Any) -> None:
    tf.switch_case(n % 2, [lambda: 0.0 + n_of(v), lambda: n_of(v.assign_add(10.0))])


def in_a_loop(v: Any, n: Any) -> None:
    def turn(k: Any) -> Any:
        v.assign_add(10.0)
        return [k + 1]

    tf.while_loop(lambda k: k < n % 2, turn, [0])


def n_of(value: Any) -> Any:
    return tf.convert_to_tensor(value)


SAME = (in_each_second_step, in_a_nested_branch, in_a_case, in_a_loop)


@pytest.mark.parametrize("write", SAME)
def test_the_same_way_on_all_replicas(write: Any, apart: Any) -> None:
    with strategy().scope():
        v, n = tf.Variable(1.0), tf.Variable(0)

    def replica() -> Any:
        n.assign_add(1)
        write(v, n.read_value())
        return v + 0.0

    assert run(replica) == [21.0] * REPLICAS
    assert copies(v) == [21.0] * REPLICAS
    assert not apart()


@pytest.mark.parametrize("write", SAME)
def test_a_way_of_its_own_on_each_replica(write: Any, apart: Any) -> None:
    with strategy().scope():
        v = tf.Variable(1.0)
    reader = tf.function(lambda: strategy().run(lambda: v + 0.0))
    reader()

    def replica() -> Any:
        write(v, rank() + 0)
        return v + 0.0

    expected = [1.0, 11.0, 1.0]
    assert run(replica, times=1) == expected
    assert [float(value) for value in local(strategy(), reader())] == expected
    assert len(apart()) == 1


def test_the_same_way_with_values_of_its_own(apart: Any) -> None:
    with strategy().scope():
        v = tf.Variable(1.0)

    def replica() -> Any:
        mine = tf.cast(rank() + 0, tf.float32)
        flag = total(tf.constant(1.0)) > 2.0
        tf.cond(flag, lambda: [v.assign_add(mine).op], lambda: [tf.no_op()])
        return v + 0.0

    assert run(replica) == [1.0, 4.0, 7.0]
    assert len(apart()) == 1


def test_random_numbers_in_a_branch(apart: Any) -> None:
    with strategy().scope():
        v = tf.Variable(1.0)

    def replica() -> Any:
        flag = total(tf.constant(1.0)) > 2.0
        tf.cond(flag, lambda: [v.assign(tf.random.uniform([])).op], lambda: [tf.no_op()])
        return v + 0.0

    assert len(set(run(replica))) == REPLICAS
    assert len(apart()) == 1


def test_an_optimizer_that_is_built_in_the_first_step(apart: Any) -> None:
    with strategy().scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
        optimizer = keras.optimizers.Adam(0.1)

    def replica() -> Any:
        with tf.GradientTape() as tape:
            x = tf.ones([4, 3]) * (1.0 + tf.cast(rank() + 0, tf.float32))
            loss = tf.reduce_mean(model(x) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    first, last = run(replica, times=1), run(replica, times=9)
    assert sum(last) < sum(first)
    assert not apart()
    for variable in (*model.variables, *optimizer.variables):
        first, *others = copies(variable.value)
        assert all((other == first).all() for other in others)
