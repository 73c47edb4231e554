"""Batches that are handed to all cores in one tensor, as they are cut otherwise."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import strategy_of

from tpunb.virtual import datasets, iterators

CORES, SIZE, BATCHES = 4, 8, 3


@pytest.fixture(scope="module")
def strategy() -> Any:
    return strategy_of(CORES)


def numbers() -> np.ndarray:
    return np.arange(BATCHES * SIZE * 2, dtype=np.float32).reshape(BATCHES * SIZE, 2)


def dataset(**options: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(numbers()).batch(SIZE, **options)


@pytest.fixture
def reshaped(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each iterator whether its batches were given another shape, not cut."""
    found: list[bool] = []

    def in_rounds(dataset: Any, count: int) -> Any:
        rounds = datasets.in_rounds(dataset, count)
        found.append(type(rounds) is not type(dataset.batch(count)))
        return rounds

    monkeypatch.setattr(iterators, "in_rounds", in_rounds)
    return found


def parts(strategy: Any, batch: Any) -> list[Any]:
    return [part.numpy().tolist() for part in strategy.experimental_local_results(batch)]


def expected() -> list[Any]:
    return numbers().reshape(BATCHES, CORES, SIZE // CORES, 2).tolist()


def test_in_a_loop_of_python(strategy: Any, reshaped: list[bool]) -> None:
    batches = strategy.experimental_distribute_dataset(dataset(drop_remainder=True))
    assert [parts(strategy, batch) for batch in batches] == expected()
    assert [parts(strategy, batch) for batch in batches] == expected()
    assert reshaped == [True, True]


def test_in_a_function(strategy: Any) -> None:
    @tf.function
    def total(batches: Any) -> Any:
        found, turns = tf.zeros([2]), 0
        for batch in batches:
            found += strategy.reduce("SUM", strategy.run(lambda x: x * 1.0, (batch,)), axis=0)
            turns += 1
        return found, turns

    batches = strategy.experimental_distribute_dataset(dataset(drop_remainder=True))
    found, turns = total(batches)
    np.testing.assert_allclose(found, numbers().sum(0))
    assert int(turns) == BATCHES


def test_a_structure_of_several_types(strategy: Any, reshaped: list[bool]) -> None:
    given = {"x": numbers(), "y": (np.arange(BATCHES * SIZE), numbers() > 7.0)}
    data = tf.data.Dataset.from_tensor_slices(given).batch(SIZE, drop_remainder=True)
    first = next(iter(strategy.experimental_distribute_dataset(data.prefetch(1))))
    assert parts(strategy, first["x"]) == expected()[0]
    assert parts(strategy, first["y"][0]) == np.arange(SIZE).reshape(CORES, -1).tolist()
    assert parts(strategy, first["y"][1]) == (np.array(expected()[0]) > 7.0).tolist()
    assert reshaped == [True]


def test_a_generator_lives_as_long_as_its_batches(strategy: Any, reshaped: list[bool]) -> None:
    def rows() -> Iterator[np.ndarray]:
        yield from numbers()

    def iterator() -> Any:
        spec = tf.TensorSpec([2], tf.float32)
        data = tf.data.Dataset.from_generator(rows, output_signature=spec)
        return iter(strategy.experimental_distribute_dataset(data.batch(SIZE, drop_remainder=True)))

    batches = iterator()
    gc.collect()
    assert [parts(strategy, batch) for batch in batches] == expected()
    assert reshaped == [True]


def test_what_has_to_be_cut(strategy: Any, reshaped: list[bool]) -> None:
    """Batches that are not all of one size come as TensorFlow cuts them."""
    left = tf.data.Dataset.from_tensor_slices(numbers()).batch(SIZE)
    found = [parts(strategy, batch) for batch in strategy.experimental_distribute_dataset(left)]
    assert found == expected()
    own = strategy.distribute_datasets_from_function(
        lambda context: dataset(drop_remainder=True).unbatch().batch(2, drop_remainder=True)
    )
    assert [parts(strategy, batch) for batch in own] == expected()
    assert not any(reshaped)


def test_equal_types_end_differently(strategy: Any) -> None:
    """One that knows that its data has no end, and one whose data has one, in one function."""
    endless = iter(strategy.experimental_distribute_dataset(dataset(drop_remainder=True).repeat()))
    ending = iter(strategy.experimental_distribute_dataset(dataset(drop_remainder=True)))

    def steps(batches: Any) -> Any:
        found = tf.zeros([])
        for _ in tf.range(BATCHES + 1):
            optional = batches.get_next_as_optional()
            if not optional.has_value():
                break
            x = optional.get_value()
            found += strategy.reduce("SUM", strategy.run(tf.reduce_sum, (x,)), axis=None)
        return found

    total, first = numbers().sum(), numbers()[:SIZE].sum()
    assert float(tf.function(steps)(endless)) == total + first
    assert float(tf.function(steps)(ending)) == total
