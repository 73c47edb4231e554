"""Diverging copies on logical devices, in sessions, saved models and threads; and their memory."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from typing import Any

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
from support.strategies import (
    SUMMED_ON_READ,
    all_reduce,
    copies,
    each,
    local,
    make,
    run,
    strategy_of,
    strategy_of_parts,
)


@pytest.fixture(scope="module", params=[2, 3])
def strategy(request: Any) -> Any:
    return strategy_of(request.param)


def test_an_update_from_outside_with_a_value_for_each_replica(strategy: Any) -> None:
    v = make(strategy, 10.0, aggregation=tf.VariableAggregation.NONE)
    read = held_concrete(strategy, v)
    assert values(strategy, read()) == [10.0] * strategy.num_replicas_in_sync
    values_of_replicas = each(strategy, ranks(strategy))
    strategy.extended.update(v, lambda copy, value: copy.assign(value), args=(values_of_replicas,))
    assert copies(v) == ranks(strategy)
    assert values(strategy, read()) == ranks(strategy)


@pytest.mark.parametrize("spmd", [False, True])
def test_copies_on_logical_devices(spmd: bool) -> None:
    """One copy per replica is on its second device; under SPMD, on every device."""
    strategy = strategy_of_parts(2, spmd=spmd)
    with contextlib.ExitStack() as stack:
        stack.enter_context(strategy.scope())
        if not spmd:
            stack.enter_context(strategy.extended.experimental_logical_device(1))
        v = tf.Variable(10.0)
    read = held_concrete(strategy, v)
    assert values(strategy, read()) == [10.0] * 2
    diverge(strategy, v)
    assert values(strategy, read()) == [1.0, 2.0]
    if spmd:
        assert [[c.numpy() for c in part.variables] for part in v.values] == [[1.0] * 2, [2.0] * 2]


# TensorFlow 1 and saved models.


def test_a_session_that_has_run_the_reader(strategy: Any) -> None:
    with tf.Graph().as_default(), strategy.scope():
        v = tf.compat.v1.get_variable("v", initializer=10.0, use_resource=True)
        read = strategy.experimental_local_results(strategy.run(lambda: once(v)))
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            assert session.run(read) == (10.0,) * strategy.num_replicas_in_sync
            write = strategy.experimental_local_results(strategy.run(lambda: v.assign(rank())))
            session.run(write)
            assert list(session.run(read)) == ranks(strategy)


def saved(strategy: Any, path: Any, **functions: Any) -> None:
    """Save traced functions with a variable."""
    model = tf.Module()
    model.v = functions.pop("v")
    for name, traced in functions.items():
        setattr(model, name, traced)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(model, str(path), options=options)


@pytest.mark.parametrize("scope", [False, True])
def test_a_saved_model_has_one_value_for_all_copies(
    strategy: Any, tmp_path: Any, scope: Any
) -> None:
    v = make(strategy, 10.0)

    def replica() -> Any:
        collective = all_reduce(1.0)
        body = lambda k, x: (k + 1, x + v + 0.0 * collective)  # noqa: E731
        tf.while_loop(lambda k, _: k < 2, body, (0, 0.0))
        return v.assign_add(collective)

    @function
    def step() -> Any:
        return list(strategy.experimental_local_results(strategy.run(replica)))

    traced = step.get_concrete_function()
    read = function(lambda: list(strategy.run(lambda: once(v)).values)).get_concrete_function()
    diverge(strategy, v)
    v.assign(10.0)
    saved(strategy, tmp_path, v=v, step=traced, read=read)
    assert values(strategy, step()) == [10.0 + strategy.num_replicas_in_sync] * len(v.values)
    with strategy.scope() if scope else contextlib.nullcontext():
        loaded = tf.saved_model.load(str(tmp_path))
    for steps in (1, 2):
        expected = [10.0 + steps * strategy.num_replicas_in_sync] * strategy.num_replicas_in_sync
        assert values(strategy, loaded.step()) == expected
        assert values(strategy, loaded.read()) == expected


def test_a_function_that_separates_copies_is_not_saved(strategy: Any, tmp_path: Any) -> None:
    v = make(strategy, 10.0)

    @function
    def step() -> Any:
        return list(strategy.experimental_local_results(strategy.run(lambda: v.assign(rank()))))

    with pytest.raises(ValueError, match="give copies different values"):
        saved(strategy, tmp_path, v=v, step=step.get_concrete_function())


def test_a_loaded_function_within_a_replica_function(strategy: Any, tmp_path: Any) -> None:
    module = tf.Module()
    module.v = tf.Variable(10.0)
    spec = tf.TensorSpec([], tf.float32)
    module.set = tf.function(lambda x: module.v.assign(x), autograph=False, input_signature=[spec])
    module.get = tf.function(lambda: module.v * 1.0, autograph=False, input_signature=[])
    tf.saved_model.save(module, str(tmp_path))
    with strategy.scope():
        loaded = tf.saved_model.load(str(tmp_path))
    read = held_concrete(strategy, loaded.v)

    def total() -> Any:
        return all_reduce(loaded.get())

    add = function(lambda: strategy.run(total)).get_concrete_function()
    assert values(strategy, read()) == [10.0] * strategy.num_replicas_in_sync
    do(strategy, lambda: loaded.set(rank()))
    assert values(strategy, read()) == ranks(strategy)
    assert values(strategy, add()) == [sum(ranks(strategy))] * strategy.num_replicas_in_sync


# Functions traced outside of the replicas and called within them.


def held(strategy: Any, **kind: Any) -> tuple[Any, Any, Any]:
    variable = make(strategy, 0.0, **kind)
    function = tf.function(lambda: variable + 0.0, input_signature=[])
    return variable, function, function.get_concrete_function()


@pytest.mark.parametrize("inside", ["plainly", "in a loop", "in a function"])
def test_a_sum_of_copies_is_refused(strategy: Any, inside: str) -> None:
    variable, function, concrete = held(strategy, **SUMMED_ON_READ)
    diverge(strategy, variable)
    assert float(concrete()) == sum(ranks(strategy))

    def call() -> Any:
        if inside == "plainly":
            return concrete()
        if inside == "in a function":
            return tf.function(lambda: concrete() + 0.0)()
        result = tf.constant(0.0)
        for _ in tf.range(1):
            result = result + concrete()
        return result

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"copies of a variable|access resource"
    ):
        run(strategy, call)
    assert run(strategy, function) == ranks(strategy)


def test_a_variable_that_is_equal_on_all_replicas() -> None:
    strategy = strategy_of(3)
    variable, _, concrete = held(strategy)
    variable.assign(7.0)
    assert run(strategy, lambda: concrete() * 2.0) == [14.0] * 3


def test_one_replica_has_one_copy() -> None:
    strategy = strategy_of(1)
    variable, _, concrete = held(strategy, **SUMMED_ON_READ)
    variable.assign(7.0)
    assert local(strategy, strategy.run(tf.function(lambda: concrete() * 2.0))) == [14.0]


# Threads and memory.


def test_divergence_while_a_function_runs_on_another_thread(strategy: Any) -> None:
    v = make(strategy, 10.0)
    read = in_a_loop(strategy, v)
    running, diverged, errors = threading.Event(), threading.Event(), []

    def keep_reading() -> None:
        try:
            read()
            running.set()
            while not diverged.is_set():
                read()
        except BaseException as error:
            errors.append(error)
            running.set()

    thread = threading.Thread(target=keep_reading)
    thread.start()
    running.wait()
    apart = False
    for _ in range(20):
        try:
            diverge(strategy, v)
        except tf.errors.FailedPreconditionError:
            continue  # the other thread's function ran at this moment
        apart = True
        break
    diverged.set()
    thread.join()
    assert not errors
    if not apart:
        diverge(strategy, v)
    assert values(strategy, read()) == pytest.approx(ranks(strategy))


def test_functions_are_freed() -> None:
    strategy = strategy_of(2)
    v = make(strategy, 10.0)

    def traced() -> Any:
        step = function(lambda: strategy.run(lambda: once(v)))
        step()
        return weakref.ref(step.get_concrete_function().graph)

    graphs = [traced() for _ in range(8)]
    diverge(strategy, v)
    graphs += [traced() for _ in range(8)]
    gc.collect()
    assert sum(graph() is not None for graph in graphs) <= 2
    assert len(strategy.extended._options.divergence._functions) <= 3
