"""Variables on a virtual TPU, equal or different on the cores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import (
    MEAN,
    SUM,
    all_reduce,
    copies,
    each,
    local,
    make,
    replica_id,
    run,
    stepper,
    strategy_of,
)
from tensorflow.python.distribute import values_v2

Aggregation = tf.VariableAggregation
FIRST = Aggregation.ONLY_FIRST_REPLICA
ON_READ = tf.VariableSynchronization.ON_READ


def rank() -> Any:
    return tf.cast(replica_id(), tf.float32)


VALUES = [1.0, 2.0, 3.0, 4.0]
AGGREGATED = [(Aggregation.SUM, 10.0), (Aggregation.MEAN, 2.5), (FIRST, 1.0)]


@pytest.mark.parametrize(
    ("aggregation", "aggregated"),
    [(Aggregation.NONE, VALUES), *((how, [value] * 4) for how, value in AGGREGATED)],
)
@pytest.mark.parametrize(
    ("how", "start", "sign"), [("assign", 0, 1), ("assign_add", 100, 1), ("assign_sub", 100, -1)]
)
def test_aggregation_of_an_assignment(
    four: Any, aggregation: Any, aggregated: list[float], how: str, start: int, sign: int
) -> None:
    v = make(four, 100.0, aggregation=aggregation)

    def step(x: Any) -> Any:
        getattr(v, how)(x)
        return v.read_value()

    expected = [start + sign * value for value in aggregated]
    assert run(four, step, each(four, VALUES)) == copies(v) == expected


ENUMERATIONS = [tf.VariableAggregation, tf.compat.v1.VariableAggregation]


@pytest.mark.parametrize("enumeration", ENUMERATIONS, ids=["2", "1"])
@pytest.mark.parametrize("synchronization", ["AUTO", "ON_WRITE", "ON_READ"])
@pytest.mark.parametrize(("aggregation", "aggregated"), AGGREGATED)
def test_every_kind_of_variable(
    four: Any, enumeration: Any, synchronization: str, aggregation: Any, aggregated: float
) -> None:
    synchronized = tf.VariableSynchronization[synchronization]
    named = enumeration[aggregation.name]
    v = make(four, 1.0, synchronization=synchronized, aggregation=named)

    def step(x: Any) -> Any:
        v.assign_add(x)
        return v.read_value()

    on_read = synchronized == ON_READ
    summed = on_read and aggregation == Aggregation.SUM
    expected = [1.0 + x for x in VALUES] if on_read else [1.0 + aggregated] * 4
    assert run(four, step, each(four, VALUES)) == copies(v) == expected
    assert v.numpy() == aggregated + (4.0 if summed else 1.0)
    v.assign(8.0)
    assert v.numpy() == 8.0
    if summed:
        with pytest.raises(ValueError, match="does not support `assign_add`"):
            v.assign_add(8.0)
        return
    v.assign_add(8.0)
    assert v.numpy() == 16.0


def test_variables_that_tensorflow_refuses(four: Any) -> None:
    with pytest.raises(ValueError, match="NONE"):
        make(four, 1.0, synchronization=tf.VariableSynchronization.NONE)
    v = make(four, 1.0, synchronization=ON_READ, aggregation=Aggregation.NONE)
    with pytest.raises(ValueError, match="NONE"):
        v.numpy()


def test_a_moving_average(four: Any) -> None:
    v, average = make(four, 1.0), tf.train.ExponentialMovingAverage(0.5)

    def replica(x: Any) -> Any:
        v.assign_add(all_reduce(x, MEAN))
        average.apply([v])
        return v.read_value()

    for _ in range(3):
        run(four, replica, each(four, [0.0, 1.0, 1.0, 2.0]))
    assert v.numpy() == 4.0
    # From 1 by halves to 2, 3 and 4.
    assert copies(average.average(v)) == [3.125] * 4


def test_copies_that_diverge_after_a_function_was_traced(four: Any) -> None:
    v, w = make(four, 1.0), make(four, 0.0)

    def replica() -> Any:
        total = all_reduce(v.read_value())
        w.assign(total + v)
        return v.read_value(), total, total + v, w.read_value()

    step = stepper(four, replica)
    assert step() == [(1.0, 4.0, 5.0, 5.0)] * 4
    run(four, lambda: v.assign(rank()))
    assert copies(v) == [0.0, 1.0, 2.0, 3.0]
    assert step() == [(k, 6.0, 6.0 + k, 6.0 + k) for k in range(4)]
    assert copies(w) == [6.0, 7.0, 8.0, 9.0]


def test_a_variable_is_reduced_in_a_function_and_per_replica_in_another(four: Any) -> None:
    v, x = make(four), each(four, VALUES)
    shared = stepper(four, lambda x: v.assign_add(all_reduce(x)))
    add_rank = stepper(four, lambda x: v.assign_add(x))
    shared(x)
    assert copies(v) == [10.0] * 4
    add_rank(x)
    assert copies(v) == [11.0, 12.0, 13.0, 14.0]
    shared(x)
    assert copies(v) == [21.0, 22.0, 23.0, 24.0]


# Functions of variables and of 1, 2, 3 and 4; their results; the copies afterwards.


def a_shared_and_a_separate_update(v: Any, x: Any) -> Any:
    v.assign(all_reduce(x))
    first = v.read_value()
    v.assign_add(x)
    second = v.read_value()
    v.assign_add(all_reduce(v.read_value()))
    return first, second


def reads_between_updates(v: Any, w: Any, x: Any) -> Any:
    before = v.read_value()
    v.assign_add(1.0)
    between = v.read_value()
    v.assign(v * all_reduce(x))
    after = v.read_value()
    w.assign(after)
    v.assign_sub(w)
    v.assign_add(5.0)
    return before, between, after, v.read_value(), w.read_value()


def in_a_loop(shared: Any, own: Any, x: Any) -> Any:
    for i in tf.range(3):
        own.assign_add(x)
        shared.assign_add(all_reduce(x) * tf.cast(i, tf.float32))
        shared.assign_add(1.0)
    return shared.read_value(), own.read_value()


def in_nested_functions(v: Any, x: Any) -> Any:
    @tf.function
    def double() -> None:
        v.assign(v * 2.0)

    @tf.function
    def add(x: Any) -> Any:
        v.assign_add(all_reduce(x))
        double()
        return v.read_value()

    double()
    first = add(x)
    double()
    return first, v.read_value()


def among_functions_that_do_nothing(v: Any, x: Any) -> Any:
    nothing, same = tf.function(lambda: None), tf.function(tf.identity)
    nothing()
    y = same(x)
    v.assign_add(1.0)
    nothing()
    with tf.control_dependencies([y]):
        nothing()
    return same(y), same(v.read_value()), x


def as_often_as_its_rank(v: Any, x: Any) -> Any:
    for _ in tf.range(replica_id()):
        v.assign_add(1.0)
    return v.read_value()


def where_a_condition_holds(v: Any, x: Any) -> Any:
    if x > 2.0:
        v.assign(7.0)
    return v + 0.0


PROGRAMS: dict[Any, tuple[list[float], list[Any], list[list[float]]]] = {
    a_shared_and_a_separate_update: (
        [0.0],
        [(10.0, 10.0 + x) for x in VALUES],
        [[61.0, 62.0, 63.0, 64.0]],
    ),
    reads_between_updates: (
        [1.0, 0.0],
        [(1.0, 2.0, 20.0, 5.0, 20.0)] * 4,
        [[5.0] * 4, [20.0] * 4],
    ),
    in_a_loop: ([0.0, 0.0], [(33.0, 3.0 * x) for x in VALUES], [[33.0] * 4, [3.0, 6.0, 9.0, 12.0]]),
    in_nested_functions: ([1.0], [(24.0, 48.0)] * 4, [[48.0] * 4]),
    among_functions_that_do_nothing: ([1.0], [(x, 2.0, x) for x in VALUES], [[2.0] * 4]),
    as_often_as_its_rank: ([0.0], [0.0, 1.0, 2.0, 3.0], [[0.0, 1.0, 2.0, 3.0]]),
    where_a_condition_holds: ([0.0], [0.0, 0.0, 7.0, 7.0], [[0.0, 0.0, 7.0, 7.0]]),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_order_of_reads_and_updates(four: Any, program: Any) -> None:
    start, results, after = PROGRAMS[program]
    variables = [make(four, value) for value in start]
    assert run(four, lambda x: program(*variables, x), each(four, VALUES)) == results
    assert [copies(variable) for variable in variables] == after


@pytest.mark.parametrize("joined", [True, False])
def test_a_nested_function_reads_before_an_update(joined: bool) -> None:
    """TensorFlow's optimizer moves the constants of a mean into the product that was read."""
    strategy = strategy_of(4, joined=joined)
    mean = tf.VariableAggregation.MEAN
    for _ in range(5):
        a, b = (make(strategy, value, aggregation=mean) for value in (tf.zeros(3), tf.ones(3)))
        scaled = tf.function(lambda x, b=b: x * b, autograph=False)

        def step(a: Any = a, b: Any = b, scaled: Any = scaled) -> Any:
            product = scaled(tf.constant(0.5))
            b.assign_add(tf.fill([3], 1.0) * tf.cast(replica_id(), tf.float32))
            a.assign(product)
            return tf.zeros([])

        run(strategy, step)
        assert {float(value[0]) for value in copies(a)} == {0.5}
        assert {float(value[0]) for value in copies(b)} == {2.5}


def test_a_value_that_was_read_stays_when_the_variable_changes(four: Any) -> None:
    v = make(four, tf.ones([64]))

    def step(x: Any) -> Any:
        reads = []
        for _ in range(5):
            reads.append(v.read_value())
            v.assign_add(tf.ones([64]) * all_reduce(x))
            reads.append(v.read_value())
            v.assign_sub(tf.ones([64]))
        return tf.stack([tf.reduce_sum(read) / 64.0 for read in reads])

    expected = [v for k in range(5) for v in (1.0 + 9.0 * k, 11.0 + 9.0 * k)]
    for result in run(four, step, each(four, VALUES)):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("talk", [False, True])
def test_updates_under_a_condition(four: Any, talk: bool) -> None:
    v = make(four)

    def step(x: Any, flag: Any) -> Any:
        if flag:
            v.assign_add(all_reduce(x) if talk else x)
        else:
            v.assign_sub(1.0)
        return v.read_value()

    x = each(four, VALUES)
    expected = [10.0] * 4 if talk else VALUES
    assert run(four, step, x, tf.constant(True)) == expected
    assert copies(v) == expected
    assert run(four, step, x, tf.constant(False)) == [e - 1.0 for e in expected]


def test_the_first_replicas_flag_decides_for_all(four: Any) -> None:
    v = make(four, False, aggregation=FIRST)
    for flags in ([True, False, False, False], [False, True, True, True]):
        run(four, lambda x: v.assign(x), each(four, flags))
        assert copies(v) == [flags[0]] * 4


def test_scatter_updates(four: Any) -> None:
    v = make(four, tf.ones([3]))

    def step(i: Any) -> Any:
        delta = tf.IndexedSlices(tf.constant([2.0]), tf.reshape(i, [1]), tf.constant([3]))
        v.scatter_add(delta)
        v.scatter_mul(delta)
        return v.read_value()

    results = run(four, step, each(four, [0, 1, 2, 0]))
    np.testing.assert_array_equal(results, [[6, 1, 1], [1, 6, 1], [1, 1, 6], [6, 1, 1]])
    np.testing.assert_array_equal(copies(v), results)


def test_scatter_updates_with_equal_values_on_every_replica(four: Any) -> None:
    v = make(four, tf.ones([3]))

    def step(x: Any) -> Any:
        total = tf.reshape(all_reduce(x), [1])
        v.scatter_sub(tf.IndexedSlices(total, tf.constant([1]), tf.constant([3])))
        return v.read_value()

    for _ in range(2):
        results = run(four, step, each(four, VALUES))
    np.testing.assert_array_equal(results, [[1.0, -19.0, 1.0]] * 4)
    np.testing.assert_array_equal(copies(v), results)


def test_variables_created_in_the_first_call(four: Any) -> None:
    made: list[Any] = []

    def replica(x: Any) -> Any:
        if not made:
            made.append(tf.Variable(5.0))
        made[0].assign_add(all_reduce(x))
        return made[0].read_value()

    step = stepper(four, replica)
    for total in (15.0, 25.0):
        assert step(each(four, VALUES)) == copies(made[0]) == [total] * 4


def test_large_constants_reach_every_copy(four: Any) -> None:
    v = make(four, tf.zeros([2048]))
    large = np.arange(2048, dtype=np.float32)

    def step() -> Any:
        v.assign(large)
        v.assign_add(tf.ones([2048]))
        return tf.reduce_sum(v)

    assert run(four, step) == [(large + 1).sum()] * 4
    for copy in copies(v):
        np.testing.assert_array_equal(copy, large + 1)


def test_gathers_and_slices_of_variables(four: Any) -> None:
    v = make(four, tf.range(12, dtype=tf.float32))

    def step(i: Any) -> Any:
        gathered = tf.gather(v, i)
        v.assign_add(tf.ones([12]) * all_reduce(tf.cast(i[0], tf.float32)))
        return gathered, tf.gather(v, i), v[2:4], tf.nn.embedding_lookup(v, i), tf.shape(v)

    results = run(four, step, each(four, [[0, 1], [2, 3], [4, 5], [6, 7]]))
    for (first, second, part, sparse, shape), at in zip(results, (0, 2, 4, 6), strict=True):
        np.testing.assert_array_equal(first, [at, at + 1])
        np.testing.assert_array_equal(second, [at + 12, at + 13])
        np.testing.assert_array_equal(sparse, second)
        np.testing.assert_array_equal(part, [14, 15])
        assert shape == [12]


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool", "float64", "bfloat16"])
def test_variables_of_many_types(four: Any, dtype: str) -> None:
    v = make(four, tf.cast([0, 0], dtype))

    def step(x: Any) -> Any:
        v.assign(tf.cast(all_reduce(x), dtype))
        return tf.cast(v, tf.int32)

    expected = [1, 1] if dtype == "bool" else [3, 3]
    results = run(four, step, each(four, [[1, 0], [1, 1], [1, 1], [0, 1]]))
    np.testing.assert_array_equal(results, [expected] * 4)


def test_updates_from_outside_reach_every_copy(four: Any) -> None:
    v = make(four, 1.0)
    v.assign(3.0)
    assert run(four, lambda: v + 1.0) == [4.0] * 4

    @tf.function
    def step() -> Any:
        v.assign_add(2.0)
        return four.run(lambda: v.read_value())

    assert local(four, step()) == [5.0] * 4
    assert copies(v) == [5.0] * 4


@pytest.mark.parametrize("enumeration", ENUMERATIONS, ids=["2", "1"])
@pytest.mark.parametrize("synchronization", ["AUTO", "ON_READ"])
def test_an_update_with_extended_update(four: Any, enumeration: Any, synchronization: str) -> None:
    synchronized = tf.VariableSynchronization[synchronization]
    first = enumeration.ONLY_FIRST_REPLICA
    v = make(four, 1.0, synchronization=synchronized, aggregation=first)

    def update() -> Any:
        return four.extended.update(v, lambda v, x: v.assign_add(x), args=(2.0,))

    update()
    assert copies(v) == [3.0] * 4
    tf.function(update)()
    assert copies(v) == [5.0] * 4
    assert v.numpy() == 5.0


def test_variables_of_two_strategies() -> None:
    two, three = strategy_of(2), strategy_of(3)
    v, w = make(two, 1.0), make(three, 1.0)

    @tf.function
    def step() -> Any:
        a = two.run(lambda: v.assign_add(all_reduce(v.read_value())))
        b = three.run(lambda: w.assign_add(all_reduce(w.read_value())))
        return a, b

    step()
    assert copies(v) == [3.0] * 2
    assert copies(w) == [4.0] * 3


def test_two_runs_in_one_function_keep_their_order(four: Any) -> None:
    v = make(four, 1.0)

    @tf.function
    def step(x: Any) -> Any:
        before = four.run(lambda: v + 0.0)
        four.run(lambda x: v.assign_add(all_reduce(x)), args=(x,))
        between = four.reduce(SUM, four.run(lambda: v + 0.0), axis=None)
        four.run(lambda: v.assign(v * 2.0))
        return four.experimental_local_results(before), between, v.read_value()

    before, between, after = step(each(four, VALUES))
    assert [float(x) for x in before] == [1.0] * 4
    assert (between.numpy(), after.numpy()) == (44.0, 22.0)
    assert copies(v) == [22.0] * 4


# Handles of variables.


def test_a_graph_names_the_variables_that_it_captures(four: Any) -> None:
    """The names are the same in every process."""
    v, w = make(four, 1.0, name="scale"), make(four, 2.0, name="layer/shift")
    others = [
        make(four, 1.0, name=name)
        for name in ("two words", "_scale", "\N{LATIN SMALL LETTER SHARP S}")
    ]
    step = tf.function(lambda: four.run(lambda: v * 2.0 + w + tf.add_n(others)))
    names = [tensor.name for tensor in step.get_concrete_function().graph.inputs]
    assert names[:2] == ["scale/handle/inputs_0:0", "layer/shift/handle/inputs_0:0"]
    assert local(four, step()) == [7.0] * 4


def test_a_graph_names_the_copies_that_it_captures(four: Any) -> None:
    v = make(four, 1.0, name="scale")
    v.values[1].assign(2.0)
    step = tf.function(lambda: four.run(lambda: v * 2.0))
    names = [tensor.name for tensor in step.get_concrete_function().graph.inputs]
    assert names == [f"scale/handle/inputs_{k}:0" for k in range(4)]
    assert local(four, step()) == [2.0, 4.0, 2.0, 2.0]


@pytest.mark.parametrize("packed", [False, True])
def test_copies_whose_handles_tensorflow_packs(four: Any, packed: bool) -> None:
    """TensorFlow's experimental variables can pack the handles of all copies into one."""
    copies = []
    for device in four.extended.parameter_devices:
        with tf.device(device):
            copies.append(tf.Variable(1.0))
    v = values_v2.DistributedVariable(copies, enable_packed_handle=packed)
    step = stepper(four, lambda x: [v.assign_add(x), v.read_value()][1])
    assert step(each(four, VALUES)) == [2.0, 3.0, 4.0, 5.0]
    assert step(each(four, VALUES)) == [3.0, 5.0, 7.0, 9.0]
    assert [copy.numpy() for copy in copies] == [3.0, 5.0, 7.0, 9.0]


def test_a_strategy_with_packed_handles() -> None:
    """TensorFlow's own tests set this attribute on every TPU strategy."""
    strategy = strategy_of(2)
    strategy._enable_packed_variable_in_eager_mode = True
    v = make(strategy, 1.0)
    assert run(strategy, lambda: v.assign_add(all_reduce(v.read_value()))) == [3.0] * 2
    assert v.numpy() == 3.0
