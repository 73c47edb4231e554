"""Datasets for several hosts in one process: read once for all hosts, or divided among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import local, strategy_of
from support.tiers import thorough

from tpunb.tensorflow.virtual import strategy as strategies
from tpunb.tensorflow.virtual.input.datasets import can_be_read_once, replicas_of_parts

NUMBERS, BATCH, STEPS = 64, 32, 4
Policy = tf.data.experimental.AutoShardPolicy


def with_policy(data: tf.data.Dataset, policy: Policy) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return data.with_options(options)


def numbers(count: int) -> tf.data.Dataset:
    values = np.arange(count)
    return tf.data.Dataset.from_tensor_slices((values, np.stack([values, -values], axis=1)))


Taken = Callable[[Any], Any]


def parts(hosts: Any, dataset: tf.data.Dataset, take: Taken) -> Iterator[Any]:
    """Each replica's parts in the first steps, and whether the data then ends."""
    iterator = iter(hosts.experimental_distribute_dataset(dataset))
    for _ in range(STEPS):
        try:
            batch = take(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            yield "end"
            return
        yield [[p.numpy().tolist() for p in hosts.experimental_local_results(v)] for v in batch]


@pytest.mark.parametrize(
    ("count", "size", "drop", "repeated"),
    [
        (64, 32, True, False),
        (50, 32, False, False),
        (7, 32, False, True),
        *thorough([(64, 40, True, True), (66, 33, False, False)]),
    ],
)
def test_each_replica_gets_the_part_that_its_host_would_read(
    hosts: Any, count: int, size: int, drop: bool, repeated: bool, monkeypatch: Any
) -> None:
    dataset = numbers(count).repeat(None if repeated else 1).batch(size, drop_remainder=drop)
    step = tf.function(lambda it: hosts.run(lambda a, b: (a + 0, b + 0), args=next(it)))
    assert can_be_read_once(dataset)
    once = [list(parts(hosts, dataset, take)) for take in (next, step)]
    monkeypatch.setattr(strategies, "can_be_read_once", lambda _: False)
    assert once == [list(parts(hosts, dataset, take)) for take in (next, step)]


def test_one_iterator_for_all_hosts(hosts: Any) -> None:
    batches = hosts.experimental_distribute_dataset(numbers(64).batch(32))
    assert len(iter(batches)._iterators) == 1


def test_hosts_take_parts_in_turn() -> None:
    assert replicas_of_parts(hosts=2, each=3) == [0, 3, 1, 4, 2, 5]
    assert replicas_of_parts(hosts=1, each=3) == [0, 1, 2]


def in_memory() -> dict[str, tf.data.Dataset]:
    row = tf.TensorSpec([2], tf.int32)

    def of_range(last: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.range(last)

    return {
        "slices": numbers(4).batch(2),
        "shuffled": numbers(4).shuffle(4).cache().batch(2).prefetch(1),
        "zipped": tf.data.Dataset.zip(numbers(4), numbers(4)).batch(2),
        "flat": tf.data.Dataset.range(4).flat_map(of_range).batch(2),
        "mapped": tf.data.Dataset.range(4).map(lambda n: tf.random.uniform([2]) + 1.0).batch(2),
        "generated": tf.data.Dataset.from_generator(lambda: iter([]), output_signature=row),
        "random": tf.data.Dataset.random().batch(2),
    }


def test_data_in_memory_is_read_once() -> None:
    answers = {kind: can_be_read_once(dataset) for kind, dataset in in_memory().items()}
    assert all(answers.values()), answers


def not_read_once(folder: Path) -> dict[str, tf.data.Dataset]:
    path = str(folder / "file")
    tf.io.write_file(path, "a\nb\n")
    numbers(4).save(str(folder / "saved"))
    paths = tf.data.Dataset.from_tensors(path)
    return {
        "lines": tf.data.TextLineDataset(path).batch(2),
        "records": tf.data.TFRecordDataset(path).batch(2),
        "interleaved": paths.interleave(tf.data.TextLineDataset).batch(2),
        "nested": paths.interleave(lambda p: tf.data.TFRecordDataset([p, p])).batch(2),
        "beside": tf.data.Dataset.zip(numbers(2), tf.data.TextLineDataset(path)).batch(2),
        "saved": tf.data.Dataset.load(str(folder / "saved")).batch(2),
        "by files": with_policy(numbers(4).batch(2), Policy.FILE),
        "not divided": with_policy(numbers(4).batch(2), Policy.OFF),
        "scalars": tf.data.Dataset.range(4),
        "ragged": tf.data.Dataset.range(4).map(tf.range).ragged_batch(2),
    }


def test_data_that_hosts_divide_themselves_is_read_by_each(tmp_path: Path) -> None:
    answers = {kind: can_be_read_once(dataset) for kind, dataset in not_read_once(tmp_path).items()}
    assert not any(answers.values()), answers


def test_files_are_divided_among_hosts(hosts: Any, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("first", "second")]
    for path in paths:
        path.write_text("".join(f"{path.name} {number}\n" for number in range(16)))
    lines = tf.data.TextLineDataset([str(path) for path in paths]).batch(16)
    batches = hosts.experimental_distribute_dataset(lines)
    step = hosts.experimental_local_results(next(iter(batches)))
    read = [{line.split()[0] for line in part.numpy().tolist()} for part in step]
    assert read == [{b"first"}] * 8 + [{b"second"}] * 8


# Shuffles and caches work as with hosts in separate processes.


@pytest.fixture
def seed() -> Iterator[None]:
    tf.random.set_seed(7)
    yield
    tf.random.set_seed(None)


def epoch(hosts: Any, batches: Any) -> list[int]:
    """All numbers that the replicas got in an epoch, in order."""
    parts = (hosts.experimental_local_results(batch) for batch in batches)
    return [int(number) for batch in parts for part in batch for number in part.numpy()]


def shuffled() -> tf.data.Dataset:
    return tf.data.Dataset.range(NUMBERS).shuffle(NUMBERS, seed=1)


def test_a_shuffle_with_a_seed_gives_each_number_once(hosts: Any) -> None:
    batches = hosts.experimental_distribute_dataset(shuffled().batch(BATCH))
    first, second = epoch(hosts, batches), epoch(hosts, batches)
    assert sorted(first) == sorted(second) == list(range(NUMBERS))
    assert first != second  # each epoch has another order


def test_a_batch_has_the_elements_of_one_device(hosts: Any) -> None:
    expected = set(next(iter(shuffled().batch(BATCH))).numpy())
    batches = hosts.experimental_distribute_dataset(shuffled().batch(BATCH))
    assert set(epoch(hosts, [next(iter(batches))])) == expected


def test_a_shuffle_within_a_shuffle(hosts: Any) -> None:
    def some(first: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.range(first, first + 8).shuffle(8, seed=3)

    numbers = tf.data.Dataset.range(0, NUMBERS, 8).shuffle(8, seed=2).flat_map(some)
    batches = hosts.experimental_distribute_dataset(numbers.batch(BATCH))
    assert sorted(epoch(hosts, batches)) == list(range(NUMBERS))


def test_random_maps_share_the_global_seed(hosts: Any, seed: None) -> None:
    def permuted(_: tf.Tensor) -> tf.Tensor:
        return tf.random.shuffle(tf.range(NUMBERS))

    numbers = tf.data.Dataset.range(1).map(permuted).unbatch()
    batches = hosts.experimental_distribute_dataset(numbers.batch(BATCH))
    assert sorted(epoch(hosts, batches)) == list(range(NUMBERS))


def test_a_dataset_keeps_its_tables(hosts: Any) -> None:
    values = tf.lookup.KeyValueTensorInitializer(
        tf.range(NUMBERS, dtype=tf.int64), tf.range(NUMBERS, dtype=tf.int64) * 2
    )
    table = tf.lookup.StaticHashTable(values, -1)
    numbers = shuffled().map(table.lookup).batch(BATCH)
    batches = hosts.experimental_distribute_dataset(numbers)
    assert sorted(epoch(hosts, batches)) == list(range(0, 2 * NUMBERS, 2))


def test_a_dataset_itself_shuffles_as_before(hosts: Any) -> None:
    numbers = shuffled()
    hosts.experimental_distribute_dataset(numbers.batch(BATCH))
    assert list(numbers.as_numpy_iterator()) == list(shuffled().as_numpy_iterator())


@pytest.mark.parametrize("order", ["cached", *thorough(["cached and shuffled", "batches cached"])])
def test_each_host_caches_its_own_files(hosts: Any, tmp_path: Path, order: str) -> None:
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
    batches = hosts.experimental_distribute_dataset(data)
    for _ in range(3):
        assert sorted(epoch(hosts, batches)) == list(range(NUMBERS))
    assert sum(len(batch) for batch in data) == NUMBERS


def test_each_host_calls_python(hosts: Any, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(f"{number}\n" for number in range(NUMBERS)))

    def parsed(line: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.py_function(lambda x: int(x.numpy()), [line], tf.int64), [])

    data = tf.data.TextLineDataset([str(path)]).map(parsed).batch(BATCH)
    undivided = hosts.experimental_distribute_dataset(with_policy(data, Policy.OFF))
    results = epoch(hosts, undivided)
    assert sorted(results) == sorted([*range(NUMBERS)] * 2)  # not divided: each host has all


def test_a_table_for_each_host() -> None:
    pod = strategy_of("v3-32")

    def pipeline(context: tf.distribute.InputContext) -> Any:
        keys = tf.range(8, dtype=tf.int64)
        initializer = tf.lookup.KeyValueTensorInitializer(
            keys, keys + 100 * context.input_pipeline_id
        )
        table = tf.lookup.StaticHashTable(initializer, -1)
        return tf.data.Dataset.range(8).map(table.lookup).batch(1)

    batch = next(iter(pod.distribute_datasets_from_function(pipeline)))
    values = [int(row[0]) for row in local(pod, batch)]
    assert values == [100 * host + core for host in range(4) for core in range(8)]
