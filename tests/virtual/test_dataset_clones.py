"""Hosts in one process divide shuffled data among them, as workers that are processes do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from support.strategies import strategy_of

NUMBERS, BATCH = 64, 32
HOSTS_OF_A_POD = "v5e-16"


@pytest.fixture(scope="module")
def strategy() -> Any:
    return strategy_of(HOSTS_OF_A_POD)


@pytest.fixture
def seed() -> Iterator[None]:
    tf.random.set_seed(7)
    yield
    tf.random.set_seed(None)


def epoch(strategy: Any, batches: Any) -> list[int]:
    """All numbers that the replicas got in an epoch, in order."""
    parts = (strategy.experimental_local_results(batch) for batch in batches)
    return [int(number) for batch in parts for part in batch for number in part.numpy()]


def shuffled() -> tf.data.Dataset:
    return tf.data.Dataset.range(NUMBERS).shuffle(NUMBERS, seed=1)


def test_a_shuffle_with_a_seed_gives_each_number_once(strategy: Any) -> None:
    batches = strategy.experimental_distribute_dataset(shuffled().batch(BATCH))
    first, second = epoch(strategy, batches), epoch(strategy, batches)
    assert sorted(first) == sorted(second) == list(range(NUMBERS))
    assert first != second  # each epoch in an order of its own


def test_a_batch_has_what_one_device_would_have(strategy: Any) -> None:
    expected = set(next(iter(shuffled().batch(BATCH))).numpy())
    batches = strategy.experimental_distribute_dataset(shuffled().batch(BATCH))
    assert set(epoch(strategy, [next(iter(batches))])) == expected


def test_a_shuffle_within_a_shuffle(strategy: Any) -> None:
    def some(first: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.range(first, first + 8).shuffle(8, seed=3)

    numbers = tf.data.Dataset.range(0, NUMBERS, 8).shuffle(8, seed=2).flat_map(some)
    batches = strategy.experimental_distribute_dataset(numbers.batch(BATCH))
    assert sorted(epoch(strategy, batches)) == list(range(NUMBERS))


def test_random_numbers_in_a_map_have_the_seed_of_all(strategy: Any, seed: None) -> None:
    def permuted(_: tf.Tensor) -> tf.Tensor:
        return tf.random.shuffle(tf.range(NUMBERS))

    numbers = tf.data.Dataset.range(1).map(permuted).unbatch()
    batches = strategy.experimental_distribute_dataset(numbers.batch(BATCH))
    assert sorted(epoch(strategy, batches)) == list(range(NUMBERS))


def test_tables_that_a_dataset_uses_stay_those_that_they_are(strategy: Any) -> None:
    values = tf.lookup.KeyValueTensorInitializer(
        tf.range(NUMBERS, dtype=tf.int64), tf.range(NUMBERS, dtype=tf.int64) * 2
    )
    table = tf.lookup.StaticHashTable(values, -1)
    numbers = shuffled().map(table.lookup).batch(BATCH)
    batches = strategy.experimental_distribute_dataset(numbers)
    assert sorted(epoch(strategy, batches)) == list(range(0, 2 * NUMBERS, 2))


def test_a_dataset_is_shuffled_on_its_own_as_before(strategy: Any) -> None:
    numbers = shuffled()
    strategy.experimental_distribute_dataset(numbers.batch(BATCH))
    assert list(numbers.as_numpy_iterator()) == list(shuffled().as_numpy_iterator())


@pytest.mark.parametrize("order", ["cached", "cached and shuffled", "batches cached"])
def test_each_host_caches_its_own_files(strategy: Any, tmp_path: Path, order: str) -> None:
    paths = [tmp_path / str(number) for number in range(4)]
    for number, path in enumerate(paths):
        path.write_text("".join(f"{16 * number + line}\n" for line in range(16)))
    lines = tf.data.TextLineDataset([str(path) for path in paths])
    numbers = lines.map(lambda line: tf.strings.to_number(line, tf.int64))
    data = {
        "cached": lambda: numbers.cache().batch(BATCH),
        "cached and shuffled": lambda: numbers.cache().shuffle(NUMBERS, seed=1).batch(BATCH),
        "batches cached": lambda: numbers.batch(BATCH).cache(),
    }[order]()
    batches = strategy.experimental_distribute_dataset(data)
    for _ in range(3):
        assert sorted(epoch(strategy, batches)) == list(range(NUMBERS))
    assert sum(len(batch) for batch in data) == NUMBERS


def test_each_host_calls_python(strategy: Any, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(f"{number}\n" for number in range(NUMBERS)))
    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF

    def parsed(line: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.py_function(lambda x: int(x.numpy()), [line], tf.int64), [])

    data = tf.data.TextLineDataset([str(path)]).map(parsed).batch(BATCH).with_options(sharding)
    found = epoch(strategy, strategy.experimental_distribute_dataset(data))
    assert sorted(found) == sorted([*range(NUMBERS)] * 2)  # not divided: both hosts have all
