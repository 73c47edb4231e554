"""The types of distributed iterators, which are made once for each iterator."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from support.strategies import strategy_of


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
