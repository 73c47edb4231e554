"""Functions traced while a variable's copies were equal, called after the copies diverged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf
from support.divergence import (
    diverge,
    do,
    function,
    held_concrete,
    in_a_loop,
    once,
    rank,
    ranks,
    values,
)
from support.keras_models import squares_lessened
from support.strategies import all_reduce, copies, make, replica_id, run, stepper

# Ways to keep a function that reads a variable.


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


def through_a_loop_of_each_replica(strategy: Any, v: Any) -> Callable[[], Any]:
    def replica() -> Any:
        y = once(v)
        return tf.while_loop(lambda k, _: k < 2, lambda k, x: (k + 1, x + y / 2.0), (0, 0.0))[1]

    return function(lambda: strategy.run(replica))


def through_a_joint_loop(strategy: Any, v: Any) -> Callable[[], Any]:
    def body(k: Any, x: Any) -> Any:
        return k + 1, x + v / 2.0 + 0.0 * all_reduce(v.read_value())

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
    through_a_loop_of_each_replica,
    through_a_joint_loop,
    through_a_compiled_call,
    through_a_gather,
]


@pytest.mark.parametrize("reader", READERS)
def test_a_function_that_was_called_before(three: Any, reader: Any) -> None:
    v = make(three, 10.0)
    read = reader(three, v)
    assert values(three, read()) == pytest.approx([10.0] * 3)
    diverge(three, v)
    assert values(three, read()) == pytest.approx(ranks(three))
    do(three, lambda: v.assign(7.0))
    assert values(three, read()) == pytest.approx([7.0] * 3)


@pytest.mark.parametrize("reader", [held_concrete, nested_held_concrete, wrapped])
def test_a_function_that_was_only_traced_before(three: Any, reader: Any) -> None:
    v = make(three, 10.0)
    read = reader(three, v)
    diverge(three, v)
    assert values(three, read()) == ranks(three)


def test_reader_and_writer_in_loops_of_one_function(three: Any) -> None:
    v = make(three, 10.0)

    @tf.function
    def step() -> Any:
        total = three.run(lambda: tf.zeros([]))
        for _ in tf.range(2):
            for _ in tf.range(2):
                total = three.run(lambda x: x + once(v), args=(total,))
            three.run(lambda: v.assign_add(rank()))
        return total

    expected = [40.0 + 2.0 * rank for rank in ranks(three)]
    assert values(three, step()) == expected


def test_wrapping_a_function_that_reads_and_diverges(three: Any) -> None:
    v = make(three, 10.0)

    def step() -> Any:
        before = three.experimental_local_results(three.run(lambda: once(v)))
        with tf.control_dependencies(before):
            after = three.run(lambda: v.assign(rank()))
        return before, three.experimental_local_results(after)

    step = tf.compat.v1.wrap_function(step, [])
    assert values(three, step()[0]) == [10.0] * 3
    assert values(three, step()[0]) == ranks(three)


# Ways to diverge.


def in_a_loop_with_a_collective(v: Any) -> None:
    def body(k: Any) -> Any:
        all_reduce(1.0)
        v.assign(rank())
        return (k + 1,)

    tf.while_loop(lambda k: k < 1, body, (0,))


def in_a_loop_of_a_replica(v: Any) -> None:
    v.assign(0.0)
    tf.while_loop(lambda k: k < rank(), lambda k: v.assign_add(1.0) * 0.0 + k + 1.0, (0.0,))


def by_different_random_numbers(v: Any) -> None:
    v.assign(tf.random.stateless_uniform([], [replica_id(), 1], -1.0, 0.0))
    v.assign(tf.math.ceil(v) + rank())


WRITERS: dict[str, Callable[[Any], Any]] = {
    "assignment": lambda v: v.assign(rank()),
    "addition": lambda v: v.assign_add(rank() - 10.0),
    "subtraction": lambda v: v.assign_sub(10.0 - rank()),
    "branch": lambda v: tf.cond(rank() > 0.0, lambda: v.assign(rank()), lambda: v.assign(0.0)),
    "one of several branches": lambda v: tf.switch_case(
        tf.constant(0), [lambda: v.assign(rank()), lambda: v.assign(0.0)]
    ),
    "replica's loop": in_a_loop_of_a_replica,
    "loop with a collective": in_a_loop_with_a_collective,
    "function": lambda v: function(lambda: v.assign(rank()))(),
    "compiled function": lambda v: function(lambda x: v.assign(x), jit_compile=True)(rank()),
    "random numbers": by_different_random_numbers,
    "optimizer": lambda v: tf.raw_ops.ResourceApplyGradientDescent(
        var=v.handle, alpha=1.0, delta=10.0 - rank()
    ),
}


@pytest.mark.parametrize("write", WRITERS)
def test_ways_to_diverge(three: Any, write: str) -> None:
    v = make(three, 10.0)
    read = held_concrete(three, v)
    assert values(three, read()) == [10.0] * 3
    do(three, lambda: WRITERS[write](v))
    assert values(three, read()) == pytest.approx(ranks(three))


def test_scattered_updates(three: Any) -> None:
    v = make(three, [10.0, 10.0])
    read = function(lambda: three.run(lambda: once(v)[1])).get_concrete_function()
    read()
    do(three, lambda: v.scatter_update(tf.IndexedSlices([rank()], [1])))
    assert values(three, read()) == ranks(three)


def test_several_variables_in_succession(three: Any) -> None:
    v, w = make(three, 10.0), make(three, 20.0)
    read = function(lambda: three.run(lambda: once(v) + once(w))).get_concrete_function()
    assert values(three, read()) == [30.0] * 3
    diverge(three, v)
    assert values(three, read()) == [rank + 20.0 for rank in ranks(three)]
    diverge(three, w)
    assert values(three, read()) == [rank * 2.0 for rank in ranks(three)]


@pytest.mark.parametrize("keep", [in_a_loop, in_a_nested_function, held_concrete])
def test_one_copy_is_written_from_outside(three: Any, keep: Any) -> None:
    v = make(three, 10.0)
    step = keep(three, v)
    total = function(lambda: three.run(lambda: all_reduce(v.read_value())))
    for expected in ([10.0] * 3, [10.0, 40.0, 10.0]):
        assert values(three, step()) == pytest.approx(expected)
        assert values(three, total()) == [sum(expected)] * 3
        v.values[1].assign(40.0)


def test_training_does_not_separate_copies(three: Any) -> None:
    with three.scope():
        model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
        model.compile("adam", "mse")
    before = set(three.extended._options.divergence.variables)
    model.fit(tf.ones([16, 3]), tf.ones([16, 2]), batch_size=8, verbose=0)
    model.evaluate(tf.ones([16, 3]), tf.ones([16, 2]), batch_size=8, verbose=0)
    assert three.extended._options.divergence.variables == before


# Branches and loops that separate copies, and others that do not.


@pytest.fixture
def apart(three: Any) -> Iterator[Callable[[], set[str]]]:
    """The variables whose copies were separated since the test began."""
    variables = three.extended._options.divergence.variables
    before = set(variables)
    yield lambda: variables - before
    variables &= before


def last_of(strategy: Any, replica: Callable[[], Any], times: int = 3) -> list[float]:
    """The replicas' results in the last of several runs."""
    step = stepper(strategy, replica, autograph=False)
    return [step() for _ in range(times)][-1]


def in_every_second_step(v: Any, n: Any) -> None:
    tf.cond(n % 2 == 1, lambda: [v.assign_add(10.0).op], lambda: [tf.no_op()])


def in_a_nested_branch(v: Any, n: Any) -> None:
    def inner() -> Any:
        return tf.cond(n > 0, lambda: v + 10.0, lambda: v + 0.0)

    tf.cond(n % 2 == 1, lambda: [v.assign(inner()).op], lambda: [tf.no_op()])


def in_a_case(v: Any, n: Any) -> None:
    tf.switch_case(n % 2, [lambda: v + 0.0, lambda: v.assign_add(10.0) + 0.0])


def in_iterations_of_a_loop(v: Any, n: Any) -> None:
    def iteration(k: Any) -> Any:
        v.assign_add(10.0)
        return [k + 1]

    tf.while_loop(lambda k: k < n % 2, iteration, [0])


SAME = (in_every_second_step, in_a_nested_branch, in_a_case, in_iterations_of_a_loop)


@pytest.mark.parametrize("write", SAME)
def test_the_same_path_on_all_replicas(three: Any, write: Any, apart: Any) -> None:
    v, n = make(three, 1.0), make(three, 0)

    def replica() -> Any:
        n.assign_add(1)
        write(v, n.read_value())
        return v + 0.0

    assert last_of(three, replica) == [21.0] * 3
    assert copies(v) == [21.0] * 3
    assert not apart()


@pytest.mark.parametrize("write", SAME)
def test_a_different_path_on_each_replica(three: Any, write: Any, apart: Any) -> None:
    v = make(three, 1.0)
    reader = stepper(three, lambda: v + 0.0, autograph=False)
    reader()

    def replica() -> Any:
        write(v, replica_id() + 0)
        return v + 0.0

    expected = [1.0, 11.0, 1.0]
    assert run(three, replica) == expected
    assert reader() == expected
    assert len(apart()) == 1


def test_the_same_path_with_different_values(three: Any, apart: Any) -> None:
    v = make(three, 1.0)

    def replica() -> Any:
        own_value = tf.cast(replica_id() + 0, tf.float32)
        flag = all_reduce(1.0) > 2.0
        tf.cond(flag, lambda: [v.assign_add(own_value).op], lambda: [tf.no_op()])
        return v + 0.0

    assert last_of(three, replica) == [1.0, 4.0, 7.0]
    assert len(apart()) == 1


def test_random_numbers_in_a_branch(three: Any, apart: Any) -> None:
    v = make(three, 1.0)

    def replica() -> Any:
        flag = all_reduce(1.0) > 2.0
        tf.cond(flag, lambda: [v.assign(tf.random.uniform([])).op], lambda: [tf.no_op()])
        return v + 0.0

    assert len(set(last_of(three, replica))) == 3
    assert len(apart()) == 1


def test_an_optimizer_built_in_the_first_step(three: Any, apart: Any) -> None:
    with three.scope():
        model = keras.Sequential(
            [keras.Input([3]), keras.layers.Dense(2, kernel_initializer="ones")]
        )
        optimizer = keras.optimizers.Adam(0.1)

    def replica() -> Any:
        x = tf.ones([4, 3]) * (1.0 + tf.cast(replica_id() + 0, tf.float32))
        return squares_lessened(model, optimizer, x)

    first, last = run(three, replica), last_of(three, replica, times=9)
    assert sum(last) < sum(first)
    assert not apart()
    for variable in (*model.variables, *optimizer.variables):
        first, *others = copies(variable.value)
        assert all((other == first).all() for other in others)
