"""Batches are taken whole, then cut as TensorFlow's pipelines cut them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import local
from support.tiers import thorough_except

from tpunb.tensorflow.virtual.input import distributed_datasets
from tpunb.tensorflow.virtual.input.distributed_datasets import WholeBatchIterator
from tpunb.tensorflow.virtual.replicate.batch_parts import BatchParts

Policy = tf.data.experimental.AutoShardPolicy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    for number in range(2):
        with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
            for k in range(11):
                writer.write(str(100 * number + k).encode())
    return folder


def numbers(rows: int = 22) -> tf.data.Dataset:
    data = tf.data.Dataset.range(rows)
    return data.map(lambda x: {"x": (x, tf.stack([x, -x])), "text": tf.as_string(x)})


def of_policy(policy: Any) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return numbers().batch(8).with_options(options)


def generated() -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(
        lambda: range(22), output_signature=tf.TensorSpec([], tf.int64)
    )


def of_rows(*rows: int) -> tf.data.Dataset:
    """Batches of 8, 8 and 6 in all kinds of structures; each component keeps so many rows."""

    def kept(one: Any) -> Any:
        texts, (x, pairs) = one["text"], one["x"]
        return {"texts": texts[: rows[0]], "own": (x[: rows[1]], [pairs[: rows[2]]]), "all": pairs}

    return numbers().batch(8).map(kept)


DATASETS: dict[str, Callable[[Path], tf.data.Dataset]] = {
    "batches": lambda _: numbers().batch(8),
    "of one size": lambda _: numbers().batch(8, drop_remainder=True),
    "of one size, without an end": lambda _: numbers(9).batch(8, drop_remainder=True).repeat(),
    "of one size and several numbers of rows": lambda _: (
        numbers().batch(8, drop_remainder=True).map(lambda one: (one["x"][0], one["text"][:4]))
    ),
    "of one size that is not divisible": lambda _: numbers().batch(7, drop_remainder=True),
    "of one size for several hosts": lambda _: numbers(100).batch(48, drop_remainder=True),
    "of several hosts": lambda _: numbers(100).batch(48),
    "not divisible by the replicas": lambda _: numbers().batch(7),
    "fewer than replicas": lambda _: numbers(7).batch(3),
    "repeated": lambda _: numbers(7).batch(4).repeat(2),
    "without an end": lambda _: numbers(7).batch(4).repeat(),
    "each in another size": lambda _: tf.data.Dataset.range(3).flat_map(
        lambda k: tf.data.Dataset.from_tensors(tf.range(5 + k))
    ),
    "by data": lambda _: of_policy(Policy.DATA),
    "off": lambda _: of_policy(Policy.OFF),
    "by files without files": lambda _: of_policy(Policy.FILE),
    "generated": lambda _: generated().batch(8),
    "cached": lambda _: numbers().cache().batch(8).prefetch(2),
    "half of a component": lambda _: of_rows(4, 8, 8),
    "fewer rows than replicas": lambda _: of_rows(8, 3, 7),
    "a row, and none": lambda _: of_rows(1, 0, 4),
    "more rows than the batch": lambda _: (
        numbers()
        .batch(8)
        .map(lambda one: (one["text"], tf.concat([*one["x"][1:], *one["x"][1:]], 0)))
    ),
    "a varying number of rows": lambda _: (
        numbers().batch(8).map(lambda one: (one["x"][0], one["x"][1][: one["x"][0][0] % 5]))
    ),
    "records": lambda folder: tf.data.TFRecordDataset(
        [str(folder / f"{k}.tfrecord") for k in range(2)]
    ).batch(8),
    "a function's records": lambda folder: (
        tf.data.Dataset.from_tensor_slices([str(folder / f"{k}.tfrecord") for k in range(2)])
        .flat_map(tf.data.TFRecordDataset)
        .batch(8)
    ),
}


def taken(strategy: Any, dataset: Any, take: Callable[[Any], Any]) -> Iterator[Any]:
    """Each replica's parts in the first steps, and whether the data then ends."""
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    for _ in range(7):
        try:
            yield [tf.nest.flatten(part) for part in local(strategy, take(iterator))]
        except (StopIteration, tf.errors.OutOfRangeError):
            yield "end"


def optional(iterator: Any) -> Any:
    element = iterator.get_next_as_optional()
    if not element.has_value():
        raise StopIteration
    return element.get_value()


QUICK = {
    "batches", "of one size", "of one size and several numbers of rows", "of several hosts", "not divisible by the replicas", "repeated", "without an end",
    "by files without files", "half of a component", "a varying number of rows", "records",
    "a function's records",
}  # fmt: skip


@pytest.mark.parametrize("name", thorough_except(QUICK, DATASETS))
def test_parts_are_cut_as_in_tensorflow(
    four: Any, hosts: Any, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, strategy = DATASETS[name](folder), hosts if "hosts" in name else four
    assert isinstance(iter(strategy.experimental_distribute_dataset(dataset)), WholeBatchIterator)
    traced = tf.function(lambda iterator: next(iterator))
    results = [list(taken(strategy, dataset, take)) for take in (next, traced, optional)]
    monkeypatch.setattr(distributed_datasets, "iterator_of_whole_batches", lambda _: None)
    expected = list(taken(strategy, dataset, next))
    for batches in results:
        tf.nest.map_structure(np.testing.assert_array_equal, batches, expected)


def without_rows() -> tf.data.Dataset:
    return numbers().map(lambda one: {**one, "none": None}).batch(8)


def of_known_and_unknown_rows() -> tf.data.Dataset:
    batches = numbers().batch(8, drop_remainder=True)
    return batches.map(lambda one: (one["x"][0], one["x"][1][: one["x"][0][0] % 5]))


@pytest.mark.parametrize("make", [of_known_and_unknown_rows, without_rows])
def test_datasets_that_are_not_taken_whole(four: Any, make: Callable[[], tf.data.Dataset]) -> None:
    iterator = iter(four.experimental_distribute_dataset(make()))
    assert not isinstance(iterator, WholeBatchIterator)


def test_options_of_the_input_are_kept(four: Any) -> None:
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    distributed = four.experimental_distribute_dataset(numbers().batch(8), options)
    assert not isinstance(iter(distributed), WholeBatchIterator)


@pytest.mark.parametrize("rows", [(8, 4), (4, 8), (8, 6), (8, 3), (8, 0), (6, 8)])
def test_steps_on_components_of_different_rows(four: Any, rows: tuple[int, int]) -> None:
    """Equal values of all replicas are computed once; no part is mistaken for another."""
    weights = tf.constant(np.arange(6).reshape(3, 2), tf.float32)
    data = np.arange(66, dtype=np.float32).reshape(22, 3)
    batches = tf.data.Dataset.from_tensor_slices(data).batch(8)
    batches = batches.map(lambda x: (x[: rows[0]], -x[: rows[1]]))

    def replica(a: Any, b: Any) -> Any:
        return tf.matmul(a, weights), tf.reduce_sum(b, 0), tf.shape(a)[0] - tf.shape(b)[0]

    @tf.function
    def step(iterator: Any) -> Any:
        return four.run(replica, args=next(iterator))

    iterator = iter(four.experimental_distribute_dataset(batches))
    for batch in batches:
        parts = [
            np.split(whole, range(n, 4 * n, n)) if (n := -(-len(whole) // 4)) else [whole] * 4
            for whole in map(np.asarray, batch)
        ]
        expected = [
            [result.numpy() for result in replica(*inputs)] for inputs in zip(*parts, strict=True)
        ]
        tf.nest.map_structure(
            np.testing.assert_array_equal,
            [list(sums) for sums in local(four, step(iterator))],
            expected,
        )


def test_rows_without_columns(four: Any) -> None:
    batches = tf.data.Dataset.from_tensor_slices((np.ones((16, 3)), np.ones((16, 0)))).batch(8)
    iterator = iter(four.experimental_distribute_dataset(batches))
    step = tf.function(
        lambda batch: four.run(lambda x, y: tf.concat([x * 2.0, y * 2.0], 1), args=batch)
    )
    result = tf.function(lambda iterator: step(next(iterator)))(iterator)
    np.testing.assert_array_equal(local(four, result), np.full((4, 2, 3), 2.0))


@pytest.mark.parametrize("endless", [False, True])
def test_a_known_size_stays_known(four: Any, endless: bool) -> None:
    """A loop gives parts of a known size; an optional does if the data cannot end."""
    shapes: list[Any] = []

    @tf.function
    def step(iterator: Any) -> Any:
        batch = next(iterator)
        for _ in tf.range(1):
            batch = next(iterator)
        last = iterator.get_next_as_optional().get_value()
        shapes.extend((batch.values[3].shape, last.values[3].shape))
        return four.run(tf.add, args=(batch, last))

    batches = tf.data.Dataset.range(24).batch(8, drop_remainder=True)
    batches = batches.repeat() if endless else batches
    result = local(four, step(iter(four.experimental_distribute_dataset(batches))))
    assert [part.tolist() for part in result] == [[24, 26], [28, 30], [32, 34], [36, 38]]
    assert [shape[0] for shape in shapes] == [2, 2 if endless else None]


class TestPassedParts:
    """Parts are passed to a function: as a batch, or with the type of the elements."""

    @staticmethod
    def iterator(four: Any) -> Any:
        batches = tf.data.Dataset.range(22).batch(8)
        return iter(four.experimental_distribute_dataset(batches))

    @pytest.mark.parametrize("signature", [False, True])
    def test_to_a_function_in_a_function(self, four: Any, signature: bool) -> None:
        iterator, types = self.iterator(four), []
        options = {"input_signature": [iterator.element_spec]} if signature else {}

        @tf.function(**options)
        def inner(batch: Any) -> Any:
            types.append(type(batch))
            return four.run(lambda x: x + 1, args=(batch,))

        outer = tf.function(lambda iterator: inner(next(iterator)))
        parts = [local(four, outer(iterator)) for _ in range(3)]
        flat = [x for batch in parts for part in batch for x in part.tolist()]
        assert flat == list(range(1, 23))
        assert [issubclass(spec, BatchParts) for spec in types] == [not signature]

    def test_parts_and_other_values(self, four: Any) -> None:
        """A function takes both a batch's parts and other values."""
        iterator = self.iterator(four)

        @tf.function(reduce_retracing=True)
        def inner(batch: Any) -> Any:
            return four.reduce("SUM", four.run(tf.reduce_sum, args=(batch,)), axis=None)

        @tf.function
        def outer(iterator: Any, other: Any) -> Any:
            return inner(next(iterator)), inner(other), inner(next(iterator))

        other = four.experimental_distribute_values_from_function(
            lambda context: tf.range(3, dtype=tf.int64)
        )
        assert [int(value) for value in outer(iterator, other)] == [28, 12, 92]

    def test_kept_over_the_steps_of_a_loop(self, four: Any) -> None:
        @tf.function
        def last(iterator: Any) -> Any:
            batch = next(iterator)
            for _ in tf.range(1):
                batch = next(iterator)
            return four.run(lambda x: x + 0, args=(batch,))

        assert [x.tolist() for x in local(four, last(self.iterator(four)))] == [
            [8, 9],
            [10, 11],
            [12, 13],
            [14, 15],
        ]
