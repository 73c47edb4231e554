"""Datasets that are read once for all hosts in one process, which get what hosts of a Pod get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import strategy_of

from tpunb.virtual import strategy as strategies
from tpunb.virtual.datasets import can_be_read_once, replicas_of_parts

STEPS = 4


@pytest.fixture(scope="module")
def strategy() -> Any:
    return strategy_of("v5e-16")


def numbers(count: int) -> tf.data.Dataset:
    values = np.arange(count)
    return tf.data.Dataset.from_tensor_slices((values, np.stack([values, -values], axis=1)))


Taken = Callable[[Any], Any]


def parts(strategy: Any, dataset: tf.data.Dataset, take: Taken) -> Iterator[Any]:
    """What each replica gets in the first steps, and where the data ends."""
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    for _ in range(STEPS):
        try:
            taken = take(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            yield "end"
            return
        yield [[p.numpy().tolist() for p in strategy.experimental_local_results(v)] for v in taken]


@pytest.mark.parametrize(
    ("count", "size", "drop", "repeated"),
    [
        (64, 32, True, False),
        (50, 32, False, False),
        (7, 32, False, True),
        (64, 40, True, True),
        (66, 33, False, False),
    ],
)
def test_each_replica_gets_what_its_host_would_read(
    strategy: Any, count: int, size: int, drop: bool, repeated: bool, monkeypatch: Any
) -> None:
    dataset = numbers(count).repeat(None if repeated else 1).batch(size, drop_remainder=drop)
    step = tf.function(lambda it: strategy.run(lambda a, b: (a + 0, b + 0), args=next(it)))
    assert can_be_read_once(dataset)
    once = [list(parts(strategy, dataset, take)) for take in (next, step)]
    monkeypatch.setattr(strategies, "can_be_read_once", lambda _: False)
    assert once == [list(parts(strategy, dataset, take)) for take in (next, step)]


def test_one_iterator_for_all_hosts(strategy: Any) -> None:
    batches = strategy.experimental_distribute_dataset(numbers(64).batch(32))
    assert len(iter(batches)._iterators) == 1


def test_parts_go_around_the_hosts() -> None:
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


def test_what_is_in_memory_is_read_once() -> None:
    found = {kind: can_be_read_once(one) for kind, one in in_memory().items()}
    assert all(found.values()), found


def with_policy(policy: tf.data.experimental.AutoShardPolicy) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return numbers(4).batch(2).with_options(options)


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
        "by files": with_policy(tf.data.experimental.AutoShardPolicy.FILE),
        "not divided": with_policy(tf.data.experimental.AutoShardPolicy.OFF),
        "scalars": tf.data.Dataset.range(4),
        "ragged": tf.data.Dataset.range(4).map(tf.range).ragged_batch(2),
    }


def test_what_hosts_divide_otherwise_stays_with_them(tmp_path: Path) -> None:
    found = {kind: can_be_read_once(one) for kind, one in not_read_once(tmp_path).items()}
    assert not any(found.values()), found


def test_files_are_divided_among_hosts(strategy: Any, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("first", "second")]
    for path in paths:
        path.write_text("".join(f"{path.name} {number}\n" for number in range(16)))
    lines = tf.data.TextLineDataset([str(path) for path in paths]).batch(16)
    batches = strategy.experimental_distribute_dataset(lines)
    step = strategy.experimental_local_results(next(iter(batches)))
    read = [{line.split()[0] for line in part.numpy().tolist()} for part in step]
    assert read == [{b"first"}] * 8 + [{b"second"}] * 8
