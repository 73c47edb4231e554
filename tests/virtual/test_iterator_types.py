"""The types of distributed iterators, which are made once for each iterator."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from support.strategies import strategy_of

from tpunb.virtual.iterators import HostIterator


@pytest.fixture(scope="module")
def strategy() -> Any:
    return strategy_of(2)


def iterator(strategy: Any, size: int = 4) -> Any:
    batches = tf.data.Dataset.range(8).batch(size, drop_remainder=True)
    return iter(strategy.experimental_distribute_dataset(batches))


def test_an_iterator_keeps_its_type(strategy: Any) -> None:
    one = iterator(strategy)
    assert one._type_spec is one._type_spec
    assert one._type_spec._component_specs is one._type_spec._component_specs


def test_each_iterator_has_its_own(strategy: Any) -> None:
    one, other = iterator(strategy), iterator(strategy)
    assert one._type_spec is not other._type_spec
    assert one._type_spec == other._type_spec
    assert one._type_spec != iterator(strategy, 2)._type_spec


def test_what_a_type_keeps_does_not_change_what_it_equals(strategy: Any) -> None:
    used, fresh = iterator(strategy)._type_spec, iterator(strategy)._type_spec
    assert used._component_specs
    assert used == fresh
    assert hash(used) == hash(fresh)


def test_functions_are_traced_once_for_equal_types(strategy: Any) -> None:
    traces = []

    @tf.function
    def step(batches: Any) -> Any:
        traces.append(1)
        return strategy.run(lambda value: value + 1, args=(next(batches),))

    for _ in range(2):
        batches = iterator(strategy)
        first = [step(batches) for _ in range(2)]
    assert len(traces) == 1
    assert [part.numpy().tolist() for part in first[-1].values] == [[5, 6], [7, 8]]


def batches_of(strategy: Any, size: int, **options: Any) -> Any:
    return strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(size, **options))


@pytest.mark.parametrize("general", [False, True])
def test_a_function_takes_batches_of_any_kind_in_any_order(strategy: Any, general: bool) -> None:
    @tf.function(reduce_retracing=general)
    def step(batches: Any) -> Any:
        return strategy.run(lambda value: value + 0, args=(next(batches),))

    def numbers(size: int, **options: Any) -> list[int]:
        batches, found = iter(batches_of(strategy, size, **options)), []
        for _ in range(8 // size):
            found += [n for part in step(batches).values for n in part.numpy().tolist()]
        return found

    everything = list(range(8))
    for _ in range(2):
        assert numbers(4, drop_remainder=True) == everything
        assert numbers(2, drop_remainder=True) == everything
        assert numbers(4) == everything
        assert numbers(8, drop_remainder=True) == everything
        assert numbers(2) == everything


def test_each_known_size_is_traced_once(strategy: Any) -> None:
    traces = []

    @tf.function(reduce_retracing=True)
    def step(batches: Any) -> Any:
        traces.append(1)
        return strategy.run(lambda value: value + 1, args=(next(batches),))

    for size in (2, 4, 2, 4):
        step(iter(batches_of(strategy, size, drop_remainder=True)))
    assert len(traces) == 2


def test_unknown_sizes_are_traced_once_with_what_is_more_general(strategy: Any) -> None:
    traces = []

    @tf.function(reduce_retracing=True)
    def step(batches: Any) -> Any:
        traces.append(1)
        return strategy.run(lambda value: value + 1, args=(next(batches),))

    for size in (2, 4, 2, 4):
        step(iter(batches_of(strategy, size)))
    assert len(traces) == 1


def test_fit_takes_batches_of_any_kind_in_any_order(strategy: Any) -> None:
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    x = tf.random.stateless_uniform([16, 1], (1, 2))
    data = tf.data.Dataset.from_tensor_slices((x, 2 * x))
    losses = []
    for size, drop in ((4, True), (8, True), (4, False), (6, False), (8, True)):
        history = model.fit(data.batch(size, drop_remainder=drop), shuffle=False, verbose=0).history
        losses.append(history["loss"][0])
    assert losses == sorted(losses, reverse=True)


def test_other_strategies_keep_their_iterators() -> None:
    """What was traced for another strategy's iterator, on the device of virtual hosts, stays right."""
    strategy_of(2)
    other = tf.distribute.OneDeviceStrategy("CPU:0")
    batches = iter(other.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(2)))
    assert not isinstance(batches._iterators[0], HostIterator)
    assert tf.function(lambda it: next(it))(batches).numpy().tolist() == [0, 1]


@pytest.mark.parametrize("from_function", [False, True])
def test_datasets_are_read_in_functions(strategy: Any, from_function: bool) -> None:
    def batches(context: Any = None) -> tf.data.Dataset:
        return tf.data.Dataset.range(6).batch(2 if context is None else 1, drop_remainder=True)

    distributed = (
        strategy.distribute_datasets_from_function(batches)
        if from_function
        else strategy.experimental_distribute_dataset(batches())
    )

    @tf.function
    def total(dataset: Any) -> Any:
        found = tf.constant(0, tf.int64)
        for batch in dataset:
            found += strategy.reduce("sum", strategy.run(lambda x: x * 10, (batch,)), axis=0)
        return found

    assert total(distributed).numpy() == 150
