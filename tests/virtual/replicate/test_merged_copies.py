"""Copies of a variable that share a resource for as long as they are equal."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.divergence import SUM, function, make, rank
from support.strategies import copies, each, local, replica_id, run, strategy_of

from tpunb.virtual.replicate import replication
from tpunb.virtual.variable_copies import copies_of

MEAN = tf.VariableAggregation.MEAN
CORES = 3


@pytest.fixture(scope="module")
def strategy() -> Any:
    return strategy_of(CORES)


def are_merged(variable: Any) -> bool:
    return copies_of(variable.values[0]).are_merged  # type: ignore[union-attr]


def total(x: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce(SUM, x)


# What keeps them merged.


@pytest.mark.parametrize(
    ("how", "given", "expected"),
    [("assign", 5.0, 5.0), ("assign_add", 2.0, 3.0), ("assign_sub", 2.0, -1.0)],
)
@pytest.mark.parametrize("aggregation", [tf.VariableAggregation.NONE, MEAN])
def test_a_change_from_outside_is_made_once(
    strategy: Any, how: str, given: float, expected: float, aggregation: Any
) -> None:
    v = make(strategy, 1.0, aggregation=aggregation)
    result = getattr(v, how)(given)
    assert copies(v) == [expected] * CORES
    assert [float(part) for part in strategy.experimental_local_results(result)] == [
        expected
    ] * CORES
    assert getattr(v, how)(given, read_value=False) is None
    assert are_merged(v)


def test_rows_that_are_added_from_outside(strategy: Any) -> None:
    v = make(strategy, [1.0, 1.0, 1.0])
    v.scatter_add(tf.IndexedSlices(tf.constant([2.0, 3.0]), tf.constant([0, 2])))
    assert [value.tolist() for value in copies(v)] == [[3.0, 1.0, 4.0]] * CORES
    assert are_merged(v)


def test_updates_that_are_the_same_everywhere(strategy: Any) -> None:
    v = make(strategy, 1.0, aggregation=MEAN)

    def step() -> Any:
        before = v.read_value()
        v.assign_add(rank())
        v.assign(v * 2.0)
        v.assign_sub(1.0)
        return before, v.read_value()

    expected = (1.0 + (CORES + 1) / 2) * 2.0 - 1.0
    assert run(strategy, step) == [(1.0, expected)] * CORES
    assert copies(v) == [expected] * CORES
    assert are_merged(v)


def test_rows_of_each_replica_are_read_before_a_change(strategy: Any) -> None:
    table = make(strategy, tf.range(6.0))

    def step() -> Any:
        before = tf.gather(table, replica_id())
        table.assign(table + total(before))
        return before, tf.gather(table, replica_id())

    summed = float(sum(range(CORES)))
    assert run(strategy, step) == [(float(k), k + summed) for k in range(CORES)]
    assert are_merged(table)


def test_optimizers_that_change_several_variables_in_one_operation(strategy: Any) -> None:
    with strategy.scope():
        v, m, s = (tf.Variable([1.0, 2.0]) for _ in range(3))

    def step() -> Any:
        gradient = total(tf.fill([2], rank()))
        tf.raw_ops.ResourceApplyAdam(
            var=v.handle,
            m=m.handle,
            v=s.handle,
            beta1_power=0.9,
            beta2_power=0.99,
            lr=0.1,
            beta1=0.9,
            beta2=0.99,
            epsilon=1e-7,
            grad=gradient,
        )
        return v.read_value()

    found = run(strategy, step)
    assert all(np.array_equal(found[0], value) for value in found + copies(v))
    assert found[0][0] < 1.0
    assert all(map(are_merged, (v, m, s)))


def test_a_common_loop_changes_them(strategy: Any) -> None:
    v = make(strategy, 1.0)

    def body(k: Any) -> Any:
        v.assign_add(total(rank()) / 6.0)
        return k + 1

    def step() -> Any:
        tf.while_loop(lambda k: k < 4, body, (0,))
        return v.read_value()

    assert run(strategy, step) == [5.0] * CORES
    assert copies(v) == [5.0] * CORES
    assert are_merged(v)


def test_checkpoints(strategy: Any, tmp_path: Path) -> None:
    v = make(strategy, 7.0)
    path = tf.train.Checkpoint(v=v).save(tmp_path / "kept")
    v.assign(1.0)
    tf.train.Checkpoint(v=v).restore(path).assert_consumed()
    assert copies(v) == [7.0] * CORES
    assert are_merged(v)


def test_a_copy_outlives_its_variable(strategy: Any) -> None:
    v = make(strategy, 7.0)
    last = v.values[-1]
    del v
    gc.collect()
    assert float(last) == 7.0
    last.assign(8.0)
    assert float(last) == 8.0


# What splits them.


def in_own_branch(v: Any) -> None:
    tf.cond(tf.constant(True) & (total(1.0) > 0.0), lambda: v.assign_add(2.0), v.read_value)


def in_own_loop(v: Any) -> None:
    def body(k: Any) -> Any:
        v.assign_add(1.0)
        return k + 1

    tf.while_loop(lambda k: k < 2, body, (0,))


@pytest.mark.parametrize("change", [in_own_branch, in_own_loop])
def test_each_replica_changes_its_own_copy(strategy: Any, change: Callable[[Any], None]) -> None:
    v = make(strategy, 1.0)

    def step() -> Any:
        change(v)
        return v.read_value()

    assert run(strategy, step) == [3.0] * CORES
    assert copies(v) == [3.0] * CORES
    v.assign_add(1.0)
    assert copies(v) == [4.0] * CORES


def test_a_random_generator_advances_once_on_each_core(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(np.arange(3, dtype=np.int64))

    def step() -> Any:
        tf.raw_ops.RngSkip(resource=v.handle, algorithm=tf.constant(1, tf.int64), delta=5)
        return v.read_value()

    alone = tf.Variable(np.arange(3, dtype=np.int64))
    tf.raw_ops.RngSkip(resource=alone.handle, algorithm=tf.constant(1, tf.int64), delta=5)
    found = run(strategy, step)
    assert [value.tolist() for value in found] == [alone.numpy().tolist()] * CORES


def test_one_copy_is_written(strategy: Any) -> None:
    v, read = make(strategy, 1.0), None
    read = function(lambda: strategy.run(lambda: v + 0.0))
    assert local(strategy, read()) == [1.0] * CORES
    v.values[1].assign(9.0)
    assert local(strategy, read()) == [1.0, 9.0, 1.0]
    v.values[0].assign(8.0)
    assert local(strategy, read()) == [8.0, 9.0, 1.0]


def test_an_update_of_ones_own(strategy: Any) -> None:
    v, slot = make(strategy, 1.0), make(strategy, 10.0)

    def update(copy: Any, by: Any) -> Any:
        slot.assign_add(by)
        return copy.assign_add(slot + by)

    strategy.extended.update(v, update, args=(2.0,))
    assert copies(slot) == [12.0] * CORES
    assert copies(v) == [15.0] * CORES


def test_a_value_for_each_copy(strategy: Any) -> None:
    v = make(strategy, 1.0)
    v.assign(each(strategy, [1.0, 2.0, 3.0]))
    assert copies(v) == [1.0, 2.0, 3.0]


def test_a_graph_that_reads_one_copy(strategy: Any) -> None:
    v = make(strategy, 1.0)
    last = function(lambda: v.values[-1] + 0.0)
    assert float(last()) == 1.0
    v.assign(2.0)
    assert float(last()) == 2.0
    run(strategy, lambda: v.assign(rank()))
    assert float(last()) == CORES


@pytest.mark.parametrize("held", [False, True])
def test_a_graph_that_changes_them(strategy: Any, held: bool) -> None:
    v = make(strategy, 1.0)
    double = function(lambda: strategy.run(lambda: v.assign(v * 2.0)))
    double()

    add = function(lambda: v.assign_add(1.0))
    if held:
        add = add.get_concrete_function()
    for _ in range(2):
        add()
        double()
    assert copies(v) == [14.0] * CORES


def test_the_order_of_what_a_graph_does(strategy: Any) -> None:
    """A function takes the first copy's handle alone if it was traced when they were merged."""
    v = make(strategy, 1.0)
    double = function(lambda: strategy.run(lambda: v.assign(v * 2.0)))
    double()
    assert are_merged(v)

    @function
    def step() -> Any:
        found = []
        for k in range(4):
            double()
            found.append([copy + 0.0 for copy in v.values])
            v.values[k % CORES].assign_add(100.0)
            strategy.extended.update(v, lambda copy: copy.assign_add(1.0))
        return found

    expected, values = [], np.array([1.0] * CORES) * 2.0
    values[:] = 2.0
    for _ in range(2):
        expected = []
        for k in range(4):
            values = values * 2.0
            expected.append(values.tolist())
            values[k % CORES] += 100.0
            values += 1.0
        assert np.array(step()).tolist() == expected
    assert [float(value) for value in copies(v)] == values.tolist()


def test_a_function_outlives_what_it_uses(strategy: Any) -> None:
    def held() -> tuple[Any, Any]:
        v = make(strategy, 1.0)
        read = function(lambda: strategy.run(lambda: v + 0.0)).get_concrete_function()
        v.values[1].assign(5.0)
        return read, [id(copy) for copy in v.values]

    read, _ = held()
    gc.collect()
    assert local(strategy, read()) == [1.0, 5.0, 1.0]


def test_variables_of_one_name_one_after_the_other(strategy: Any) -> None:
    """What was split is no concern of a later variable, though it had the same address."""
    for k in range(10):
        v = make(strategy, float(k), name="same")
        read = function(lambda v=v: strategy.run(lambda: v + 0.0))
        assert local(strategy, read()) == [float(k)] * CORES
        if k % 2:
            v.values[1].assign(-1.0)
            assert local(strategy, read()) == [k, -1.0, k]
        del v, read
        gc.collect()


def test_a_variable_of_another_strategy(strategy: Any) -> None:
    other = strategy_of(CORES)
    v = make(strategy, 1.0)
    read = function(lambda: strategy.run(lambda: v + 0.0))
    assert local(strategy, read()) == [1.0] * CORES

    def add() -> Any:
        tf.raw_ops.AssignAddVariableOp(resource=v.handle, value=rank())
        return v.read_value()

    assert run(other, add) == [2.0, 3.0, 4.0]
    assert local(strategy, read()) == [2.0, 3.0, 4.0]


def test_saved_models(strategy: Any, tmp_path: Path) -> None:
    v = make(strategy, 2.0)
    module = tf.Module()
    module.v = v

    @tf.function(input_signature=[])
    def serve() -> Any:
        return strategy.reduce(SUM, strategy.run(lambda: v + 0.0), axis=None)

    module.serve = serve
    assert float(serve()) == 2.0 * CORES
    for name, split in (("merged", False), ("split", True)):
        if split:
            assert float(function(lambda: v.values[-1] + 0.0)()) == 2.0
            assert not are_merged(v)
        tf.saved_model.save(module, tmp_path / name)
        assert float(tf.saved_model.load(tmp_path / name).serve()) == 2.0 * CORES


@pytest.mark.parametrize("where", ["_redefine", "expand", "clear_kernel_cache"])
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_leaves_nothing_half_done(
    strategy: Any, monkeypatch: pytest.MonkeyPatch, where: str, after: bool
) -> None:
    v = make(strategy, 1.0)
    reads = [function(lambda k=k: strategy.run(lambda: v + float(k))) for k in range(3)]
    for read in reads:
        read()
    context = replication.context.context()
    holder = {"clear_kernel_cache": context}.get(where, replication)
    original, calls = getattr(holder, where), []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 1 and not after:
            raise KeyboardInterrupt
        result = original(*args, **kwargs)
        if len(calls) == 1 and after:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(holder, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        v.values[1].assign(5.0)
    assert calls
    assert copies(v) == [1.0] * CORES
    v.values[1].assign(5.0)
    for k, read in enumerate(reads):
        assert local(strategy, read()) == [1.0 + k, 5.0 + k, 1.0 + k]
