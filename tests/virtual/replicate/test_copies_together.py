"""Copies of a variable share a resource as long as they are equal."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.divergence import function, rank
from support.strategies import (
    SUM,
    SUMMED_ON_READ,
    all_reduce,
    copies,
    each,
    local,
    make,
    replica_id,
    run,
    strategy_of,
)

from tpunb.tensorflow.virtual.copies.variable_copies import copies_of
from tpunb.tensorflow.virtual.replicate import rewritable_function

pytestmark = pytest.mark.usefixtures("quick_collections")

MEAN = tf.VariableAggregation.MEAN
CORES = 3


def are_together(variable: Any) -> bool:
    return copies_of(variable.values[0]).are_together  # type: ignore[union-attr]


# Changes that keep copies together.


@pytest.mark.parametrize(
    ("how", "value", "expected"),
    [("assign", 5.0, 5.0), ("assign_add", 2.0, 3.0), ("assign_sub", 2.0, -1.0)],
)
@pytest.mark.parametrize("aggregation", [tf.VariableAggregation.NONE, MEAN])
def test_a_change_from_outside_happens_once(
    three: Any, how: str, value: float, expected: float, aggregation: Any
) -> None:
    v = make(three, 1.0, aggregation=aggregation)
    result = getattr(v, how)(value)
    assert copies(v) == [expected] * CORES
    assert [float(part) for part in three.experimental_local_results(result)] == [expected] * CORES
    assert getattr(v, how)(value, read_value=False) is None
    assert are_together(v)


def test_rows_added_from_outside(three: Any) -> None:
    v = make(three, [1.0, 1.0, 1.0])
    v.scatter_add(tf.IndexedSlices(tf.constant([2.0, 3.0]), tf.constant([0, 2])))
    assert [value.tolist() for value in copies(v)] == [[3.0, 1.0, 4.0]] * CORES
    assert are_together(v)


def test_equal_updates_on_all_replicas(three: Any) -> None:
    v = make(three, 1.0, aggregation=MEAN)

    def step() -> Any:
        before = v.read_value()
        v.assign_add(rank())
        v.assign(v * 2.0)
        v.assign_sub(1.0)
        return before, v.read_value()

    expected = (1.0 + (CORES + 1) / 2) * 2.0 - 1.0
    assert run(three, step) == [(1.0, expected)] * CORES
    assert copies(v) == [expected] * CORES
    assert are_together(v)


def test_each_replica_reads_its_rows_before_a_change(three: Any) -> None:
    table = make(three, tf.range(6.0))

    def step() -> Any:
        before = tf.gather(table, replica_id())
        table.assign(table + all_reduce(before))
        return before, tf.gather(table, replica_id())

    summed = float(sum(range(CORES)))
    assert run(three, step) == [(float(k), k + summed) for k in range(CORES)]
    assert are_together(table)


def test_an_optimizer_operation_that_changes_several_variables(three: Any) -> None:
    with three.scope():
        v, m, s = (tf.Variable([1.0, 2.0]) for _ in range(3))

    def step() -> Any:
        gradient = all_reduce(tf.fill([2], rank()))
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

    results = run(three, step)
    assert all(np.array_equal(results[0], value) for value in results + copies(v))
    assert results[0][0] < 1.0
    assert all(map(are_together, (v, m, s)))


def test_a_joint_loop_changes_copies(three: Any) -> None:
    v = make(three, 1.0)

    def body(k: Any) -> Any:
        v.assign_add(all_reduce(rank()) / 6.0)
        return k + 1

    def step() -> Any:
        tf.while_loop(lambda k: k < 4, body, (0,))
        return v.read_value()

    assert run(three, step) == [5.0] * CORES
    assert copies(v) == [5.0] * CORES
    assert are_together(v)


def test_checkpoints(three: Any, tmp_path: Path) -> None:
    v = make(three, 7.0)
    path = tf.train.Checkpoint(v=v).save(tmp_path / "kept")
    v.assign(1.0)
    tf.train.Checkpoint(v=v).restore(path).assert_consumed()
    assert copies(v) == [7.0] * CORES
    assert are_together(v)


def test_a_copy_outlives_its_variable(three: Any) -> None:
    v = make(three, 7.0)
    last = v.values[-1]
    del v
    gc.collect()
    assert float(last) == 7.0
    last.assign(8.0)
    assert float(last) == 8.0


# Changes that separate copies.


def in_branch_of_replica(v: Any) -> None:
    tf.cond(tf.constant(True) & (all_reduce(1.0) > 0.0), lambda: v.assign_add(2.0), v.read_value)


def in_loop_of_replica(v: Any) -> None:
    def body(k: Any) -> Any:
        v.assign_add(1.0)
        return k + 1

    tf.while_loop(lambda k: k < 2, body, (0,))


@pytest.mark.parametrize("change", [in_branch_of_replica, in_loop_of_replica])
def test_each_replica_changes_its_own_copy(three: Any, change: Callable[[Any], None]) -> None:
    v = make(three, 1.0)

    def step() -> Any:
        change(v)
        return v.read_value()

    assert run(three, step) == [3.0] * CORES
    assert copies(v) == [3.0] * CORES
    v.assign_add(1.0)
    assert copies(v) == [4.0] * CORES


def test_a_random_generator_advances_once_on_each_core(three: Any) -> None:
    with three.scope():
        v = tf.Variable(np.arange(3, dtype=np.int64))

    def step() -> Any:
        tf.raw_ops.RngSkip(resource=v.handle, algorithm=tf.constant(1, tf.int64), delta=5)
        return v.read_value()

    alone = tf.Variable(np.arange(3, dtype=np.int64))
    tf.raw_ops.RngSkip(resource=alone.handle, algorithm=tf.constant(1, tf.int64), delta=5)
    results = run(three, step)
    assert [value.tolist() for value in results] == [alone.numpy().tolist()] * CORES


def test_a_custom_update(three: Any) -> None:
    v, slot = make(three, 1.0), make(three, 10.0)

    def update(copy: Any, by: Any) -> Any:
        slot.assign_add(by)
        return copy.assign_add(slot + by)

    three.extended.update(v, update, args=(2.0,))
    assert copies(slot) == [12.0] * CORES
    assert copies(v) == [15.0] * CORES


def test_a_value_for_each_copy(three: Any) -> None:
    v = make(three, 1.0)
    v.assign(each(three, [1.0, 2.0, 3.0]))
    assert copies(v) == [1.0, 2.0, 3.0]


def test_a_graph_that_reads_one_copy(three: Any) -> None:
    v = make(three, 1.0)
    last = function(lambda: v.values[-1] + 0.0)
    assert float(last()) == 1.0
    v.assign(2.0)
    assert float(last()) == 2.0
    run(three, lambda: v.assign(rank()))
    assert float(last()) == CORES


@pytest.mark.parametrize("held", [False, True])
def test_a_graph_that_changes_them(three: Any, held: bool) -> None:
    v = make(three, 1.0)
    double = function(lambda: three.run(lambda: v.assign(v * 2.0)))
    double()

    add = function(lambda: v.assign_add(1.0))
    if held:
        add = add.get_concrete_function()
    for _ in range(2):
        add()
        double()
    assert copies(v) == [14.0] * CORES


def test_a_graph_keeps_the_order_of_its_effects(three: Any) -> None:
    """A function traced while copies are together takes only the first copy's handle."""
    v = make(three, 1.0)
    double = function(lambda: three.run(lambda: v.assign(v * 2.0)))
    double()
    assert are_together(v)

    @function
    def step() -> Any:
        reads = []
        for k in range(4):
            double()
            reads.append([copy + 0.0 for copy in v.values])
            v.values[k % CORES].assign_add(100.0)
            three.extended.update(v, lambda copy: copy.assign_add(1.0))
        return reads

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


def test_a_function_outlives_its_variable(three: Any) -> None:
    def held() -> tuple[Any, Any]:
        v = make(three, 1.0)
        read = function(lambda: three.run(lambda: v + 0.0)).get_concrete_function()
        v.values[1].assign(5.0)
        return read, [id(copy) for copy in v.values]

    read, _ = held()
    gc.collect()
    assert local(three, read()) == [1.0, 5.0, 1.0]


def test_successive_variables_with_the_same_name(three: Any) -> None:
    """A later variable at the same address must not be taken for copies that became separate."""
    for k in range(10):
        v = make(three, float(k), name="same")
        read = function(lambda v=v: three.run(lambda: v + 0.0))
        assert local(three, read()) == [float(k)] * CORES
        if k % 2:
            v.values[1].assign(-1.0)
            assert local(three, read()) == [k, -1.0, k]
        del v, read
        gc.collect()


def test_a_variable_of_another_strategy(three: Any) -> None:
    other = strategy_of(CORES)
    v = make(three, 1.0)
    read = function(lambda: three.run(lambda: v + 0.0))
    assert local(three, read()) == [1.0] * CORES

    def add() -> Any:
        tf.raw_ops.AssignAddVariableOp(resource=v.handle, value=rank())
        return v.read_value()

    assert run(other, add) == [2.0, 3.0, 4.0]
    assert local(three, read()) == [2.0, 3.0, 4.0]


def test_saved_models(three: Any, tmp_path: Path) -> None:
    v = make(three, 2.0)
    module = tf.Module()
    module.v = v

    @tf.function(input_signature=[])
    def serve() -> Any:
        return three.reduce(SUM, three.run(lambda: v + 0.0), axis=None)

    module.serve = serve
    assert float(serve()) == 2.0 * CORES
    for name, separate in (("together", False), ("separate", True)):
        if separate:
            assert float(function(lambda: v.values[-1] + 0.0)()) == 2.0
            assert not are_together(v)
        tf.saved_model.save(module, tmp_path / name)
        assert float(tf.saved_model.load(tmp_path / name).serve()) == 2.0 * CORES


@pytest.mark.parametrize("where", ["_redefine", "expand", "clear_kernel_cache"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_leaves_nothing_half_done(
    three: Any, monkeypatch: pytest.MonkeyPatch, where: str, after: bool, error: Any
) -> None:
    def end() -> None:
        if error is MemoryError:
            raise error
        signal.raise_signal(signal.SIGINT)

    v = make(three, 1.0)
    reads = [function(lambda k=k: three.run(lambda: v + float(k))) for k in range(3)]
    for read in reads:
        read()
    context = rewritable_function.context.context()
    holder = {"clear_kernel_cache": context}.get(where, rewritable_function)
    original, calls = getattr(holder, where), []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 1 and not after:
            end()
        result = original(*args, **kwargs)
        if len(calls) == 1 and after:
            end()
        return result

    monkeypatch.setattr(holder, where, interrupted)
    with pytest.raises(error):
        v.values[1].assign(5.0)
    assert calls
    assert copies(v) == [1.0] * CORES
    v.values[1].assign(5.0)
    for k, read in enumerate(reads):
        assert local(three, read()) == [1.0 + k, 5.0 + k, 1.0 + k]


class OverdueError(Exception):
    """Raised by a test's time limit."""


def overdue(*_: Any) -> None:
    raise OverdueError


SIGNALS = [(signal.SIGINT, signal.default_int_handler, KeyboardInterrupt)]
if hasattr(signal, "SIGALRM"):
    SIGNALS.append((signal.SIGALRM, overdue, OverdueError))


@pytest.mark.parametrize(
    ("number", "handler", "error"), SIGNALS, ids=lambda it: getattr(it, "name", "")
)
def test_a_signal_waits_until_a_function_is_replaced(
    three: Any, monkeypatch: pytest.MonkeyPatch, number: Any, handler: Any, error: Any
) -> None:
    v = make(three, 1.0)
    read = function(lambda: three.run(lambda: v + 1.0))
    read()
    original = rewritable_function.renew_function

    def signalled(*args: Any) -> None:
        signal.raise_signal(number)
        original(*args)

    former = signal.signal(number, handler)
    try:
        monkeypatch.setattr(rewritable_function, "renew_function", signalled)
        with pytest.raises(error):
            v.values[1].assign(5.0)
        monkeypatch.undo()
    finally:
        signal.signal(number, former)
    v.values[1].assign(5.0)
    assert local(three, read()) == [2.0, 6.0, 2.0]


# Copies that are created with the first copy's resource.

ASKED = (
    "name", "dtype", "shape", "trainable", "synchronization", "aggregation", "constraint",
    "device", "handle_name", "_validate_shape", "_distribute_strategy", "_in_graph_mode",
    "_graph_key", "_save_slice_info", "_caching_device", "_trainable",
)  # fmt: skip


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
def test_copies_have_the_properties_that_tensorflow_gives_them(three: Any, kind: str) -> None:
    heard = []

    def creator(next_creator: Any, **kwargs: Any) -> Any:
        heard.append(kwargs["name"])
        return next_creator(**kwargs)

    def make() -> Any:
        with three.scope():
            return tf.Variable([1.0, 2.0], **KINDS[kind])

    variable = make()
    with tf.variable_creator_scope(creator):  # the creator must be called for each copy
        expected = make()
    assert len(heard) == CORES
    assert type(variable) is type(expected)
    for copy, other in zip(variable.values, expected.values, strict=True):
        assert type(copy) is type(other)
        assert properties(copy) == properties(other)
        assert vars(copy).keys() == vars(other).keys()
        np.testing.assert_array_equal(copy, other)


def test_each_copy_has_its_own_key(three: Any) -> None:
    with three.scope():
        variables = [tf.Variable(1.0, name="v") for _ in range(2)]
    keys = [copy._unique_id for variable in variables for copy in variable.values]
    assert len(set(keys)) == 2 * CORES


def test_on_read_variables_have_separate_resources(three: Any) -> None:
    with three.scope():
        v = tf.Variable(1.0, **SUMMED_ON_READ)
    assert len({id(copy.handle) for copy in v.values}) == CORES
    v.values[1].assign(5.0)
    assert copies(v) == [1.0, 5.0, 1.0]


def test_the_initial_value_is_computed_once(three: Any) -> None:
    calls = []

    def first() -> Any:
        calls.append(1)
        return tf.random.uniform([2])

    with three.scope():
        v = tf.Variable(first)
    assert len(calls) == 1
    assert len({tuple(value) for value in copies(v)}) == 1
