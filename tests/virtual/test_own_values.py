"""Variables whose replicas have values of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.divergence import function, rank, running
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
from support.tiers import thorough

from tpunb.tensorflow.virtual.replicate.joined_forms import REAL

pytestmark = pytest.mark.usefixtures("circumstances")

CORES = 3
BY = [1.0, 2.0, 3.0]
TYPES = sorted(REAL | {tf.complex64}, key=str)


@pytest.fixture(scope="module", params=[True, *thorough([False])], ids=["joined", "apart"])
def strategy(request: pytest.FixtureRequest) -> Any:
    return strategy_of(CORES, joined=request.param)


def of_each(strategy: Any, value: Any = 0.0, how: str = "SUM", **options: Any) -> Any:
    aggregation = tf.VariableAggregation[how]
    return make(strategy, value, **{**SUMMED_ON_READ, "aggregation": aggregation}, **options)


def write(v: Any, replica: int, value: float) -> None:
    """Write a copy by its handle."""
    tf.raw_ops.AssignVariableOp(resource=v.values[replica].handle, value=value)


# In replica functions.


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda v, x: v.assign(v + x), lambda v, x: v + x),
        (lambda v, x: v.assign(x - v), lambda v, x: x - v),
        (lambda v, x: v.assign_add(x), lambda v, x: v + x),
        (lambda v, x: v.assign_sub(x * v), lambda v, x: v - x * v),
        (lambda v, x: v.assign(v * 0.9 + tf.reverse(x, [0]) * 0.1),
         lambda v, x: v * 0.9 + x[::-1] * 0.1),
        (lambda v, _: v.assign([7.0, 8.0]), lambda v, _: np.array([7.0, 8.0])),
    ],
)  # fmt: skip
def test_each_replica_changes_its_own_value(
    strategy: Any,
    change: Callable[[Any, Any], Any],
    expected: Callable[[Any, Any], Any],
) -> None:
    v = of_each(strategy, [1.0, 2.0])

    def step() -> Any:
        change(v, rank() * tf.constant([1.0, 10.0]))
        change(v, rank() * tf.constant([1.0, 10.0]))
        return v.read_value()

    by = [np.array([1.0, 10.0]) * (k + 1) for k in range(CORES)]
    values = [expected(expected(np.array([1.0, 2.0]), x), x) for x in by]
    np.testing.assert_allclose(run(strategy, step), values, rtol=1e-6)
    np.testing.assert_allclose(copies(v), values, rtol=1e-6)


def with_another_use(v: Any) -> Any:
    before = v.read_value()
    v.assign(before + 1.0)
    return before


def with_a_change_between(v: Any) -> Any:
    before = v.read_value()
    v.assign(100.0)
    between = v.read_value()
    v.assign(before + 1.0)
    return between


@pytest.mark.parametrize(
    ("change", "result"), [(with_another_use, 3.0), (with_a_change_between, 100.0)]
)
def test_reads_and_writes_keep_their_order(
    strategy: Any, change: Callable[[Any], Any], result: float
) -> None:
    v = of_each(strategy, 3.0)
    assert run(strategy, lambda: change(v)) == [result] * CORES
    assert copies(v) == [4.0] * CORES


def test_two_variables(strategy: Any) -> None:
    v, other = of_each(strategy, 3.0), of_each(strategy, 10.0)

    def step() -> Any:
        v.assign(other + rank())
        other.assign(v + all_reduce(v.read_value()))

    run(strategy, lambda: [step(), tf.zeros([])][1])
    assert copies(v) == [11.0, 12.0, 13.0]
    assert copies(other) == [47.0, 48.0, 49.0]


@pytest.mark.parametrize("dtype", TYPES, ids=lambda kind: kind.name)
def test_types(strategy: Any, dtype: tf.DType) -> None:
    v = of_each(strategy, tf.zeros([2], dtype), how="NONE")
    run(strategy, lambda: [v.assign(tf.cast([rank() - 1.0, 2.0], dtype)), tf.zeros([])][1])
    expected = tf.cast([[float(k), 2.0] for k in range(CORES)], dtype).numpy()
    np.testing.assert_array_equal(copies(v), expected)
    v.values[1].assign(tf.cast([1.0, 1.0], dtype))
    expected[1] = 1
    if dtype != tf.bool:
        v.values[2].assign_add(tf.cast([5.0, 4.0], dtype))
        v.values[0].assign_sub(expected[0])
        expected[2], expected[0] = [7, 6], 0
    np.testing.assert_array_equal(copies(v), expected)


def test_another_shape(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable([1.0, 2.0], shape=tf.TensorShape(None), **SUMMED_ON_READ)
    run(strategy, lambda: [v.assign(v + tf.ones([3, 2])), tf.zeros([])][1])
    assert [value.shape for value in copies(v)] == [(3, 2)] * CORES


def test_replicas_take_turns() -> None:
    strategy = strategy_of(4, at_once=1)
    v = of_each(strategy, tf.zeros([4]))

    def step(x: Any) -> Any:
        y = tf.matmul(x, x)
        v.assign(v * 0.5 + y[0, :4])
        z = tf.matmul(y, x) + v[0]
        v.assign_add(z[0, :4])
        return tf.reduce_sum(z)

    inputs = [np.full([1100, 1100], (k + 1) / 1000, np.float32) for k in range(4)]
    results = stepper(strategy, step)(each(strategy, inputs))
    for k, x in enumerate(inputs):
        y = x @ x
        z = y @ x + y[0, 0]
        np.testing.assert_allclose(results[k], z.sum(), rtol=1e-4)
        np.testing.assert_allclose(copies(v)[k], (y + z)[0, :4], rtol=1e-4)


# Other uses of a copy; functions traced before stay right.


def in_a_loop(v: Any) -> None:
    for k in tf.range(3):
        v.assign_add(tf.cast(k, tf.float32) * rank())


def in_a_branch(v: Any) -> None:
    tf.cond(rank() > 1.5, lambda: v.assign_add(3.0 * rank()), v.read_value)


def in_a_compiled_call(v: Any) -> None:
    @tf.function(jit_compile=True)
    def compiled(x: Any) -> Any:
        return v.assign_add(x * 3.0)

    compiled(rank())


def by_its_handle(v: Any) -> None:
    tf.raw_ops.AssignAddVariableOp(resource=v.handle, value=rank() * 3.0)


@pytest.mark.parametrize("change", [in_a_loop, in_a_branch, in_a_compiled_call, by_its_handle])
def test_other_changes_in_a_replica_function(strategy: Any, change: Callable[[Any], None]) -> None:
    v = of_each(strategy, 1.0)
    before = stepper(strategy, lambda: v.assign_add(rank()))
    assert before() == [1.0 + by for by in BY]
    after = stepper(strategy, lambda: [change(v), v.read_value()][1])
    added = [0.0 if change is in_a_branch and by < 1.5 else 3.0 * by for by in BY]
    assert after() == [1.0 + by + more for by, more in zip(BY, added, strict=True)]
    assert before() == [1.0 + 2.0 * by + more for by, more in zip(BY, added, strict=True)]
    assert after() == copies(v)


LOOKS: dict[str, Callable[[Any], Any]] = {
    "value": lambda c: c.value(),
    "NumPy": lambda c: c.numpy(),
    "an operator": lambda c: c + 0.0,
    "an operation": lambda c: tf.raw_ops.AddV2(x=c, y=0.0),
    "a function": lambda c: function(lambda: c + 0.0)(),
    "a function's argument": lambda c: function(lambda a: a + 0.0)(c),
    "a handle": lambda c: tf.raw_ops.ReadVariableOp(resource=c.handle, dtype=tf.float32),
    "a tensor": tf.convert_to_tensor,
    "a copy": copy.deepcopy,
    "float": float,
}


@pytest.mark.parametrize("way", LOOKS)
def test_a_single_copy_is_read(strategy: Any, way: str) -> None:
    v = of_each(strategy, 1.0)
    step = stepper(strategy, lambda: v.assign_add(rank()))
    step()
    assert [float(LOOKS[way](copy)) for copy in v.values] == [2.0, 3.0, 4.0]
    assert step() == [3.0, 5.0, 7.0]
    assert [float(LOOKS[way](copy)) for copy in v.values] == [3.0, 5.0, 7.0]


@pytest.mark.parametrize("replica", [0, CORES - 1])
def test_a_single_copy_is_not_read_in_a_replica_function_that_uses_the_variable(
    strategy: Any, replica: int
) -> None:
    v = of_each(strategy, 1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a single copy|one by one"):
        run(strategy, lambda: v.values[replica] + v)


def test_a_tape_watches_a_copy(strategy: Any) -> None:
    v = of_each(strategy, 3.0)
    with tf.GradientTape() as tape:
        tape.watch(v.values[1])
        y = v.values[0] * 5.0 + v.values[1] * v.values[1]
    assert float(tape.gradient(y, v.values[1])) == 6.0


def test_a_held_function_still_works(strategy: Any) -> None:
    v = of_each(strategy, 0.0)

    @tf.function
    def steps() -> Any:
        for _ in tf.range(5):
            strategy.run(lambda: v.assign_add(rank()))

    concrete = steps.get_concrete_function()
    concrete()
    assert copies(v) == [5.0, 10.0, 15.0]
    write(v, 1, 0.0)
    concrete()
    assert copies(v) == [10.0, 10.0, 30.0]


def test_another_strategy_uses_the_variable(strategy: Any) -> None:
    v = of_each(strategy, 0.0)
    stepped = stepper(strategy, lambda: v.assign_add(rank()))
    stepped()
    other = strategy_of(CORES)
    assert run(other, lambda: v.assign_add(10.0 * rank())) == [11.0, 22.0, 33.0]
    assert stepped() == [12.0, 24.0, 36.0]
    assert copies(v) == [12.0, 24.0, 36.0]


# Across replicas.


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("how", "value"), [("SUM", 6.0), ("MEAN", 2.0), ("ONLY_FIRST_REPLICA", 1.0)]
)
def test_a_read_across_replicas(strategy: Any, how: str, value: float, traced: bool) -> None:
    v = of_each(strategy, 0.0, how)
    step = stepper(strategy, lambda: v.assign_add(rank()))
    step()

    def read() -> Any:
        return v.read_value() + 0.0

    read = function(read) if traced else read
    assert float(read()) == value
    step()
    assert float(read()) == 2.0 * value


@pytest.mark.parametrize(("how", "value"), [("SUM", 6.0), ("MEAN", 2.0)])
def test_a_read_across_replicas_in_a_step(strategy: Any, how: str, value: float) -> None:
    v = of_each(strategy, 0.0, how)

    @tf.function
    def step() -> Any:
        strategy.run(lambda: v.assign_add(rank()))
        return v.read_value()

    assert [float(step()), float(step())] == [value, 2.0 * value]
    write(v, 1, 100.0)
    weight = 1.0 if how == "SUM" else CORES
    assert float(step()) == sum([3.0, 102.0, 9.0]) / weight


def test_a_write_waits_for_an_earlier_read(strategy: Any) -> None:
    v, ones = of_each(strategy, tf.zeros([1000])), tf.ones([1000])

    @tf.function
    def step() -> Any:
        strategy.run(lambda: v.assign_add(ones))
        between = v.read_value()
        strategy.run(lambda: v.assign_add(ones))
        return between

    for turn in range(100):
        np.testing.assert_array_equal(step(), np.full(1000, (2 * turn + 1) * CORES))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("how", "part"),
    [("SUM", 4.0), ("MEAN", 12.0), ("NONE", 12.0), ("ONLY_FIRST_REPLICA", 12.0)],
)
def test_an_assignment_across_replicas(strategy: Any, how: str, part: float, traced: bool) -> None:
    v = of_each(strategy, 1.0, how)
    step = stepper(strategy, lambda: v.assign_add(rank()))
    step()

    def change() -> None:
        v.assign(12.0, read_value=False)

    change = function(change) if traced else change
    change()
    assert copies(v) == [part] * CORES
    assert step() == [part + by for by in BY]
    change()
    assert copies(v) == [part] * CORES


@pytest.mark.parametrize("traced", [False, True])
def test_tensorflow_1_aggregations(strategy: Any, traced: bool) -> None:
    """TensorFlow 1 has another enumeration, whose members equal those of TensorFlow 2."""
    v1 = tf.compat.v1.VariableAggregation
    for how, value in [("SUM", 6.0), ("MEAN", 2.0), ("ONLY_FIRST_TOWER", 1.0)]:
        v = make(strategy, 0.0, **{**SUMMED_ON_READ, "aggregation": v1[how]})
        stepper(strategy, lambda v=v: v.assign_add(rank()))()
        read = tf.function(v.read_value) if traced else v.read_value
        assert float(read()) == value
        v.assign(12.0)
        assert float(read()) == 12.0


def test_an_addition_across_replicas(strategy: Any) -> None:
    v = of_each(strategy, 1.0, "MEAN")
    step = stepper(strategy, lambda: v.assign_add(rank()))
    step()
    v.assign_add(10.0)
    assert copies(v) == [12.0, 13.0, 14.0]
    assert step() == [13.0, 15.0, 17.0]
    total = of_each(strategy, 1.0)
    with pytest.raises(ValueError, match="does not support `assign_add`"):
        total.assign_add(1.0)


def test_a_wrong_shape_is_refused(strategy: Any) -> None:
    v = of_each(strategy, [1.0, 2.0], "MEAN")
    with pytest.raises(ValueError, match="Shape mismatch"):
        v.assign([1.0, 2.0, 3.0])
    assert [value.tolist() for value in copies(v)] == [[1.0, 2.0]] * CORES


AGGREGATIONS = [tf.VariableAggregation, tf.compat.v1.VariableAggregation]


@pytest.mark.parametrize("enumeration", AGGREGATIONS, ids=["2", "1"])
@pytest.mark.parametrize(
    ("how", "part"), [("SUM", 2.0), ("MEAN", 2.0), ("ONLY_FIRST_REPLICA", 1.0)]
)
def test_a_checkpoint(
    strategy: Any, tmp_path: Any, enumeration: Any, how: str, part: float
) -> None:
    v = make(strategy, 0.0, **{**SUMMED_ON_READ, "aggregation": enumeration[how]})
    step = stepper(strategy, lambda: v.assign_add(rank()))
    step()
    path = tf.train.Checkpoint(v=v).write(str(tmp_path / "six"))
    step()
    tf.train.Checkpoint(v=v).read(path).assert_consumed()
    assert copies(v) == [part] * CORES
    assert step() == [part + by for by in BY]


@pytest.mark.parametrize("expanded", [False, True])
def test_a_saved_model(strategy: Any, tmp_path: Any, expanded: bool) -> None:
    module = tf.Module()
    module.v = of_each(strategy, 2.0, "MEAN")
    step = stepper(strategy, lambda: module.v.assign_add(rank()))
    step()

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def times(x: Any) -> Any:
        parts = strategy.run(lambda x: x * module.v, args=(x,))
        return strategy.experimental_local_results(parts)

    module.times = times
    assert [float(value) for value in times(2.0)] == [6.0, 8.0, 10.0]
    policy = tf.saved_model.experimental.VariablePolicy.EXPAND_DISTRIBUTED_VARIABLES
    options = tf.saved_model.SaveOptions(experimental_variable_policy=policy if expanded else None)
    tf.saved_model.save(module, str(tmp_path), options=options)
    loaded = tf.saved_model.load(str(tmp_path))
    assert [float(value) for value in loaded.times(2.0)] == [8.0] * CORES
    assert step() == [4.0, 6.0, 8.0]


def test_a_function_that_adds_a_variable_of_each_replica_is_saved(
    strategy: Any, tmp_path: Any
) -> None:
    module = tf.Module()
    module.v = of_each(strategy, 0.0, "MEAN")
    stepper(strategy, lambda: module.v.assign_add(1.0))()
    spec = tf.TensorSpec([], tf.float32)
    module.plus = tf.function(lambda x: x + module.v, autograph=False, input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert (float(loaded.plus(0.0)), float(module.plus(2.0))) == (1.0, 3.0)
    loaded.v.assign(5.0)
    assert (float(loaded.plus(0.0)), float(module.plus(2.0))) == (5.0, 3.0)


def test_a_step_that_changes_a_variable_of_each_replica_is_saved(
    strategy: Any, tmp_path: Any
) -> None:
    module = tf.Module()
    module.v = of_each(strategy, 1.0, "MEAN")

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def step(x: Any) -> Any:
        def replica(x: Any) -> Any:
            module.v.assign_add(x)
            return module.v + x

        return strategy.experimental_local_results(strategy.run(replica, args=(x,)))

    module.step = step
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    loaded.step(1.0)
    assert float(loaded.v) == 1.0 + CORES
    assert [float(value) for value in module.step(1.0)] == [3.0] * CORES


def test_a_dataset_reads_a_variable_of_each_replica(strategy: Any) -> None:
    v = of_each(strategy, 0.0, "MEAN")
    numbers = iter(tf.data.Dataset.range(9).map(lambda _: v + 0.0))
    assert float(next(numbers)) == 0.0
    stepper(strategy, lambda: v.assign_add(rank()))()
    v.values[1].assign(8.0)
    next(numbers)
    assert float(next(numbers)) == 4.0


def test_a_read_in_a_vectorized_map(strategy: Any) -> None:
    v = of_each(strategy, 1.0)
    plus = function(lambda x: tf.vectorized_map(lambda row: row + v, x))
    assert plus(tf.zeros([2])).numpy().tolist() == [3.0, 3.0]


def test_a_creator_is_called_for_each_copy(strategy: Any) -> None:
    heard = []

    def creator(create: Any, **options: Any) -> Any:
        heard.append(options["name"])
        return create(**options)

    with tf.variable_creator_scope(creator), strategy.scope():
        v = tf.Variable(1.0, name="v", **SUMMED_ON_READ)
    assert len(heard) == CORES
    step = stepper(strategy, lambda: v.assign_add(rank()))
    assert step() == [2.0, 3.0, 4.0]


def test_a_deep_copy(strategy: Any) -> None:
    v = of_each(strategy, 1.0)
    stepper(strategy, lambda: v.assign_add(rank()))()
    other = copy.deepcopy(v)
    other.assign(30.0)
    assert copies(v) == [2.0, 3.0, 4.0]
    assert copies(other) == [10.0] * CORES


# While functions run: other threads and callbacks.


def test_another_thread_reads_and_assigns(strategy: Any) -> None:
    v = of_each(strategy, 0.0)
    with running(strategy, lambda: v.assign_add(rank())):
        for _ in range(20):
            parts = copies(v)
            assert min(parts) >= 0.0
            v.assign(0.0)
            v.values[1].assign_add(1.0)


def step_with(strategy: Any, v: Any, callback: Any) -> Any:
    @tf.function
    def step() -> Any:
        first = strategy.run(lambda: v.assign_add(rank()))
        with tf.control_dependencies(strategy.experimental_local_results(first)):
            done = tf.py_function(callback, [], tf.int32)
        with tf.control_dependencies([done]):
            strategy.run(lambda: v.assign_add(rank()))

    return step


@pytest.mark.parametrize("change", [lambda v: v.values[1].assign(9.0), lambda v: write(v, 1, 9.0)])
def test_a_copy_is_changed_in_a_callback(strategy: Any, change: Callable[[Any], Any]) -> None:
    v = of_each(strategy, 0.0)

    def use() -> int:
        change(v)
        return 0

    step_with(strategy, v, use)()
    assert copies(v) == [2.0, 11.0, 6.0]


def test_reads_in_a_callback(strategy: Any) -> None:
    v = of_each(strategy, 0.0)
    seen = []

    def use() -> int:
        seen.append(float(v.values[1]))
        return 0

    step = step_with(strategy, v, use)
    step()
    step()
    assert seen == [2.0, 6.0]


# Keras.


def test_a_metric_is_reset(strategy: Any) -> None:
    with strategy.scope():
        metric = tf.keras.metrics.Mean()
    step = function(lambda x: strategy.run(metric.update_state, args=(x,)))
    x = each(strategy, [[1.0], [2.0], [6.0]])
    for _ in range(2):
        step(x)
        assert float(metric.result()) == 3.0
        metric.reset_state()
    assert float(metric.result()) == 0.0


def test_local_results_have_the_value_of_each_replica(strategy: Any) -> None:
    v = of_each(strategy, 0.0)
    stepper(strategy, lambda: v.assign_add(rank()))()
    assert [float(value) for value in local(strategy, v)] == BY
