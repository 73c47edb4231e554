"""Functions traced while the copies of a variable were equal, called when they are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from support.divergence import (
    SUM,
    diverge,
    do,
    function,
    held_concrete,
    in_a_loop,
    make,
    once,
    rank,
    ranks,
    values,
)
from support.strategies import copies, replica_id, strategy_of


@pytest.fixture(scope="module")
def strategy() -> Any:
    return strategy_of(3)


# Ways to keep a function that reads.


def in_a_nested_function(strategy: Any, v: Any) -> Callable[[], Any]:
    inner = function(lambda: strategy.run(lambda: once(v)))
    return function(lambda: inner())


def in_a_condition(strategy: Any, v: Any) -> Callable[[], Any]:
    flag = tf.Variable(True)

    @tf.function
    def step() -> Any:
        return tf.cond(
            flag,
            lambda: strategy.experimental_local_results(strategy.run(lambda: once(v))),
            lambda: strategy.experimental_local_results(strategy.run(lambda: once(v) * 2.0)),
        )

    return step


def in_a_switch(strategy: Any, v: Any) -> Callable[[], Any]:
    index = tf.Variable(1)

    def branch(factor: float) -> Any:
        return lambda: strategy.experimental_local_results(strategy.run(lambda: once(v) * factor))

    return function(lambda: tf.switch_case(index.read_value(), [branch(3.0), branch(1.0)]))


def nested_held_concrete(strategy: Any, v: Any) -> Callable[[], Any]:
    inner = function(lambda: strategy.run(lambda: once(v))).get_concrete_function()
    return function(lambda: inner()).get_concrete_function()


def eager_run(strategy: Any, v: Any) -> Callable[[], Any]:
    read = function(lambda: once(v))
    return lambda: strategy.run(read)


def under_a_tape(strategy: Any, v: Any) -> Callable[[], Any]:
    outer = make(strategy, 0.0)

    @tf.function
    def step(x: Any) -> Any:
        parts = strategy.experimental_local_results(strategy.run(lambda: once(v)))
        return x * outer, [tf.stop_gradient(part) for part in parts]

    def call() -> Any:
        with tf.GradientTape() as tape:
            x = tf.constant(1.0)
            tape.watch(x)
            y, parts = step(x)
        tape.gradient(y, x)
        return parts

    return call


def wrapped(strategy: Any, v: Any) -> Callable[[], Any]:
    def step() -> Any:
        return strategy.experimental_local_results(strategy.run(lambda: once(v)))

    return tf.compat.v1.wrap_function(step, [])  # type: ignore[no-any-return]


def through_an_own_loop(strategy: Any, v: Any) -> Callable[[], Any]:
    def replica() -> Any:
        y = once(v)
        return tf.while_loop(lambda k, _: k < 2, lambda k, x: (k + 1, x + y / 2.0), (0, 0.0))[1]

    return function(lambda: strategy.run(replica))


def through_a_common_loop(strategy: Any, v: Any) -> Callable[[], Any]:
    def body(k: Any, x: Any) -> Any:
        replica = tf.distribute.get_replica_context()
        return k + 1, x + v / 2.0 + 0.0 * replica.all_reduce(SUM, v.read_value())

    def replica() -> Any:
        return tf.while_loop(lambda k, _: k < 2, body, (0, 0.0))[1]

    return function(lambda: strategy.run(replica))


def through_a_compiled_call(strategy: Any, v: Any) -> Callable[[], Any]:
    compiled = function(lambda x: x * 1.0, jit_compile=True)
    return function(lambda: strategy.run(lambda: compiled(once(v))))


def through_a_gather(strategy: Any, v: Any) -> Callable[[], Any]:
    def replica() -> Any:
        return tf.reduce_sum(tf.gather(tf.stack([once(v), once(v)]), [1]))

    return function(lambda: strategy.run(replica))


READERS = [
    in_a_loop,
    in_a_nested_function,
    in_a_condition,
    in_a_switch,
    held_concrete,
    nested_held_concrete,
    eager_run,
    under_a_tape,
    wrapped,
    through_an_own_loop,
    through_a_common_loop,
    through_a_compiled_call,
    through_a_gather,
]


@pytest.mark.parametrize("reader", READERS)
def test_a_function_that_was_called_before(strategy: Any, reader: Any) -> None:
    v = make(strategy)
    read = reader(strategy, v)
    assert values(strategy, read()) == pytest.approx([10.0] * strategy.num_replicas_in_sync)
    diverge(strategy, v)
    assert values(strategy, read()) == pytest.approx(ranks(strategy))
    do(strategy, lambda: v.assign(7.0))
    assert values(strategy, read()) == pytest.approx([7.0] * strategy.num_replicas_in_sync)


@pytest.mark.parametrize("reader", [held_concrete, nested_held_concrete, wrapped])
def test_a_function_that_was_only_traced_before(strategy: Any, reader: Any) -> None:
    v = make(strategy)
    read = reader(strategy, v)
    diverge(strategy, v)
    assert values(strategy, read()) == ranks(strategy)


def test_reader_and_writer_in_loops_of_one_function(strategy: Any) -> None:
    v = make(strategy)

    @tf.function
    def step() -> Any:
        total = strategy.run(lambda: tf.zeros([]))
        for _ in tf.range(2):
            for _ in tf.range(2):
                total = strategy.run(lambda x: x + once(v), args=(total,))
            strategy.run(lambda: v.assign_add(rank()))
        return total

    expected = [40.0 + 2.0 * one for one in ranks(strategy)]
    assert values(strategy, step()) == expected


def test_wrapping_a_function_that_reads_and_diverges(strategy: Any) -> None:
    v = make(strategy)

    def step() -> Any:
        before = strategy.experimental_local_results(strategy.run(lambda: once(v)))
        with tf.control_dependencies(before):
            after = strategy.run(lambda: v.assign(rank()))
        return before, strategy.experimental_local_results(after)

    step = tf.compat.v1.wrap_function(step, [])
    assert values(strategy, step()[0]) == [10.0] * strategy.num_replicas_in_sync
    assert values(strategy, step()[0]) == ranks(strategy)


# Ways to diverge.


def by_assignment(v: Any) -> None:
    v.assign(rank())


def by_addition(v: Any) -> None:
    v.assign_add(rank() - 10.0)


def by_subtraction(v: Any) -> None:
    v.assign_sub(10.0 - rank())


def in_a_branch(v: Any) -> None:
    tf.cond(rank() > 0.0, lambda: v.assign(rank()), lambda: v.assign(0.0))


def in_one_of_several_branches(v: Any) -> None:
    tf.switch_case(tf.constant(0), [lambda: v.assign(rank()), lambda: v.assign(0.0)])


def in_a_replicas_loop(v: Any) -> None:
    v.assign(0.0)
    tf.while_loop(
        lambda k: k < replica_id() + 1, lambda k: (v.assign_add(1.0), k + 1)[1:], (tf.constant(0),)
    )


def in_a_loop_with_a_collective(v: Any) -> None:
    def body(k: Any) -> Any:
        tf.distribute.get_replica_context().all_reduce(SUM, 1.0)
        v.assign(rank())
        return (k + 1,)

    tf.while_loop(lambda k: k < 1, body, (tf.constant(0),))


def in_a_function(v: Any) -> None:
    function(lambda: v.assign(rank()))()


def in_a_compiled_function(v: Any) -> None:
    function(lambda x: v.assign(x), jit_compile=True)(rank())


def by_random_numbers_of_its_own(v: Any) -> None:
    v.assign(tf.random.stateless_uniform([], [replica_id(), 1], -1.0, 0.0))
    v.assign(tf.math.ceil(v) + rank())


WRITERS = [
    by_assignment,
    by_addition,
    by_subtraction,
    in_a_branch,
    in_one_of_several_branches,
    in_a_replicas_loop,
    in_a_loop_with_a_collective,
    in_a_function,
    in_a_compiled_function,
    by_random_numbers_of_its_own,
]


@pytest.mark.parametrize("write", WRITERS)
def test_ways_to_diverge(strategy: Any, write: Any) -> None:
    v = make(strategy)
    read = held_concrete(strategy, v)
    assert values(strategy, read()) == [10.0] * strategy.num_replicas_in_sync
    do(strategy, lambda: write(v))
    assert values(strategy, read()) == pytest.approx(ranks(strategy))


def test_scattered_updates(strategy: Any) -> None:
    v = make(strategy, [10.0, 10.0])
    read = function(lambda: strategy.run(lambda: once(v)[1])).get_concrete_function()
    read()
    do(strategy, lambda: v.scatter_update(tf.IndexedSlices([rank()], [1])))
    assert values(strategy, read()) == ranks(strategy)


def test_an_optimizer_without_a_collective(strategy: Any) -> None:
    v = make(strategy)
    read = held_concrete(strategy, v)
    read()
    do(
        strategy,
        lambda: tf.raw_ops.ResourceApplyGradientDescent(
            var=v.handle, alpha=1.0, delta=10.0 - rank()
        ),
    )
    assert values(strategy, read()) == ranks(strategy)


def test_several_variables_one_after_the_other(strategy: Any) -> None:
    v, w = make(strategy), make(strategy, 20.0)
    read = function(lambda: strategy.run(lambda: once(v) + once(w))).get_concrete_function()
    assert values(strategy, read()) == [30.0] * strategy.num_replicas_in_sync
    diverge(strategy, v)
    assert values(strategy, read()) == [one + 20.0 for one in ranks(strategy)]
    diverge(strategy, w)
    assert values(strategy, read()) == [one * 2.0 for one in ranks(strategy)]


def test_an_update_that_was_shared_is_no_longer(strategy: Any) -> None:
    v, w = make(strategy), make(strategy)

    def replica() -> Any:
        total = tf.distribute.get_replica_context().all_reduce(SUM, v.read_value())
        w.assign(v + 0.0 * total)

    update = function(lambda: strategy.run(replica)).get_concrete_function()
    reads = held_concrete(strategy, w)
    update()
    assert values(strategy, reads()) == [10.0] * strategy.num_replicas_in_sync
    diverge(strategy, v)
    update()
    assert copies(w) == ranks(strategy)
    assert values(strategy, reads()) == ranks(strategy)


# One copy, written from outside of a replica function.


def eagerly(v: Any) -> None:
    v.values[1].assign(30.0)


def by_a_sum(v: Any) -> None:
    v._values[1].assign_add(20.0)


def in_a_traced_function(v: Any) -> None:
    @tf.function
    def write() -> None:
        v.values[1].assign(30.0)

    write()


def by_its_handle(v: Any) -> None:
    tf.raw_ops.AssignVariableOp(resource=v.values[1].handle, value=30.0)


def by_a_function_traced_for_another(v: Any) -> None:
    @tf.function
    def write(variable: Any) -> None:
        variable.assign(30.0)

    write(tf.Variable(1.0))
    write(v.values[1])


WRITES = (
    eagerly,
    by_a_sum,
    in_a_traced_function,
    by_its_handle,
    by_a_function_traced_for_another,
)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("keep", [in_a_loop, in_a_nested_function, held_concrete])
def test_one_copy_is_written_from_outside(strategy: Any, write: Any, keep: Any) -> None:
    v = make(strategy)
    step, replicas = keep(strategy, v), strategy.num_replicas_in_sync
    assert values(strategy, step()) == pytest.approx([10.0] * replicas)
    mean = function(lambda: strategy.run(lambda: mean_of(v)))
    assert values(strategy, mean()) == pytest.approx([10.0] * replicas)
    write(v)
    expected = [10.0, 30.0, *[10.0] * (replicas - 2)]
    assert values(strategy, step()) == pytest.approx(expected)
    assert values(strategy, mean()) == pytest.approx([sum(expected) / replicas] * replicas)


def mean_of(v: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce("mean", v.read_value())


def test_training_sets_no_copies_apart(strategy: Any) -> None:
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
        model.compile("adam", "mse")
    before = set(strategy.extended._options.divergence.variables)
    model.fit(tf.ones([16, 3]), tf.ones([16, 2]), batch_size=8, verbose=0)
    model.evaluate(tf.ones([16, 3]), tf.ones([16, 2]), batch_size=8, verbose=0)
    assert strategy.extended._options.divergence.variables == before


def test_all_copies_are_written_from_outside(strategy: Any, tmp_path: Any) -> None:
    v = make(strategy)
    before = len(strategy.extended._options.divergence.variables)
    checkpoint = tf.train.Checkpoint(v=v)
    path = checkpoint.write(str(tmp_path / "at"))
    v.assign(3.0)
    checkpoint.read(path).assert_consumed()
    assert copies(v) == [10.0] * strategy.num_replicas_in_sync
    assert len(strategy.extended._options.divergence.variables) == before
