"""Batches on their way to the cores: one iterator for all, in order, to the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import local, strategy_of
from tensorflow.core.framework import dataset_options_pb2


def numbers(strategy: Any, rows: int = 22) -> Any:
    dataset = tf.data.Dataset.range(rows).map(lambda x: {"x": x, "text": tf.as_string(x)})
    return strategy.experimental_distribute_dataset(dataset.batch(8))


def test_one_iterator_serves_all_cores(four: Any) -> None:
    fed = four.distribute_datasets_from_function(lambda _: tf.data.Dataset.range(8).batch(2))
    (worker,) = iter(fed)._iterators
    assert isinstance(worker._iterator, tf.data.Iterator)


@pytest.mark.parametrize("soft", [True, False])
def test_batches_come_in_order_and_end(four: Any, soft: bool, place_softly: Any) -> None:
    place_softly(soft)
    eager = [local(four, batch["x"]) for batch in numbers(four)]

    @tf.function
    def step(iterator: Any) -> Any:
        return four.run(lambda x: x + 0, args=(next(iterator)["x"],))

    iterator = iter(numbers(four))
    traced = [local(four, step(iterator)) for _ in range(3)]
    with pytest.raises(tf.errors.OutOfRangeError):
        step(iterator)

    @tf.function
    def total(batches: Any) -> Any:
        result = tf.constant(0, tf.int64)
        for batch in batches:
            own = four.run(lambda x: tf.reduce_sum(x), args=(batch["x"],))
            result += four.reduce("SUM", own, axis=None)
        return result

    assert total(numbers(four)).numpy() == sum(range(22))
    for batches in (eager, traced):
        flat = np.concatenate([row for batch in batches for row in batch])
        np.testing.assert_array_equal(flat, np.arange(22))
        assert [len(row) for row in batches[2]] == [2, 2, 2, 0]


def test_batches_are_on_their_cores(four: Any) -> None:
    batch = next(iter(numbers(four)))
    for core, x, text in zip(
        four.extended._tpu_devices[:, 0], batch["x"].values, batch["text"].values, strict=True
    ):
        assert x.device == core
        assert [int(word) for word in text.numpy()] == x.numpy().tolist()


def test_optional_batches(four: Any) -> None:
    iterator = iter(numbers(four, 8))
    first, second = iterator.get_next_as_optional(), iterator.get_next_as_optional()
    assert first.has_value().numpy()
    assert [row.tolist() for row in local(four, first.get_value()["x"])] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]
    assert not second.has_value().numpy()


def test_devices_of_others_keep_tensorflows_iterators() -> None:
    strategy_of(4)
    # The tests' last logical CPUs, which no virtual TPU has taken.
    mirrored = tf.distribute.MirroredStrategy(["CPU:38", "CPU:39"])
    dataset = mirrored.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4))
    iterator = iter(dataset)
    assert len(iterator._iterators[0]._iterator._device_iterators) == 2
    step = tf.function(lambda iterator: mirrored.experimental_local_results(next(iterator)))
    assert [part.numpy().tolist() for part in step(iterator)] == [[0, 1], [2, 3]]


# TensorFlow's own, of its own asking for options in a graph.
@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")
@pytest.mark.parametrize("told", [None, True])
def test_tensorflow_1_iterators_do_not_tune_themselves(four: Any, told: bool | None) -> None:
    """Each would keep the closing of its session waiting, for up to a minute."""

    def batches(_: Any = None) -> tf.data.Dataset:
        options = tf.data.Options()
        if told is not None:
            options.autotune.enabled = told
        return tf.data.Dataset.range(8).batch(8).with_options(options)

    with tf.Graph().as_default() as graph, four.scope():
        made = four.extended._make_dataset_iterator(batches())
        called = four.extended._make_input_fn_iterator(batches)
        if told is None:
            with tf.compat.v1.Session() as session:
                for iterator in (made, called):
                    session.run(iterator.initializer)
                    first = four.experimental_local_results(iterator.get_next())[0]
                    assert session.run(first).tolist()[:2] == [0, 1]
    untuned = [node for node in graph.get_operations() if _is_untuned(node)]
    # Each core has an iterator of its own, over what the host's hands out.
    assert len(untuned) == 2 * 4 + (2 if told is None else 0)


def _is_untuned(node: tf.Operation) -> bool:
    if node.type != "OptionsDataset":
        return False
    options = dataset_options_pb2.Options.FromString(node.get_attr("serialized_options"))
    tuning = options.autotune_options
    return tuning.WhichOneof("optional_enabled") == "enabled" and not tuning.enabled


class TestRounds:
    """Elements of one shape, as many for each core: taken as one tensor for all."""

    @staticmethod
    def dataset(rows: int, batch: int = 8) -> Any:
        data = tf.data.Dataset.range(rows).map(lambda x: (x, {"text": tf.as_string(x)}))
        return data.batch(batch, drop_remainder=True)

    def batches(self, strategy: Any, dataset: Any) -> Any:
        return iter(strategy.experimental_distribute_dataset(dataset))

    def in_rounds(self, iterator: Any) -> bool:
        return bool(iterator._iterators[0]._in_rounds)

    def test_eager(self, four: Any) -> None:
        iterator = self.batches(four, self.dataset(35))
        assert self.in_rounds(iterator)
        found = [local(four, batch) for batch in iterator]
        rows = [row for batch in found for x, _ in batch for row in x.tolist()]
        texts = [int(text) for batch in found for _, y in batch for text in y["text"]]
        assert rows == texts == list(range(32))

    def test_each_core_has_its_own(self, four: Any) -> None:
        x, _ = next(self.batches(four, self.dataset(8)))
        assert [one.device for one in x.values] == four.extended._tpu_devices[:, 0].tolist()

    def test_in_a_function(self, four: Any) -> None:
        @tf.function
        def step(iterator: Any) -> Any:
            x, y = next(iterator)
            return four.run(lambda x: x, args=(x,)), y["text"]

        iterator = self.batches(four, self.dataset(16))
        first, second = local(four, step(iterator)), local(four, step(iterator))
        assert [x.tolist() for x, _ in first + second] == [[2 * k, 2 * k + 1] for k in range(8)]
        assert first[1][1].tolist() == [b"2", b"3"]
        with pytest.raises(tf.errors.OutOfRangeError):
            step(iterator)
        assert step.experimental_get_tracing_count() == 1
        step(self.batches(four, self.dataset(8)))
        assert step.experimental_get_tracing_count() == 1

    def test_optionals(self, four: Any) -> None:
        iterator = self.batches(four, self.dataset(8))
        optional = iterator.get_next_as_optional()
        assert optional.has_value()
        x, _ = optional.get_value()
        assert [one.tolist() for one in local(four, x)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert not iterator.get_next_as_optional().has_value()

    def test_a_round_that_is_not_full_is_not_lost(self, four: Any) -> None:
        function = four.distribute_datasets_from_function
        iterator = iter(function(lambda _: tf.data.Dataset.range(12).batch(2, drop_remainder=True)))
        assert self.in_rounds(iterator)
        seen = []
        while (optional := iterator.get_next_as_optional()).has_value():
            seen += [row for x in local(four, optional.get_value()) for row in x.tolist()]
        assert seen == list(range(12))

    @pytest.mark.parametrize("traced", [False, True])
    def test_the_end_comes_before_a_round_that_is_not_full(self, four: Any, traced: bool) -> None:
        def fed(_: Any) -> Any:
            return tf.data.Dataset.range(12).batch(2, drop_remainder=True)

        take = tf.function(lambda iterator: next(iterator)) if traced else next
        iterator = iter(four.distribute_datasets_from_function(fed))
        assert [x.tolist() for x in local(four, take(iterator))] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        with pytest.raises((StopIteration, tf.errors.OutOfRangeError)):
            take(iterator)

    def test_without_end_and_of_sizes_that_differ(self, four: Any) -> None:
        assert self.in_rounds(self.batches(four, self.dataset(8).repeat()))
        fed = four.distribute_datasets_from_function(lambda _: tf.data.Dataset.range(8).batch(2))
        assert not self.in_rounds(iter(fed))

    def test_training_does_not_change_what_it_is_fed(self, four: Any) -> None:
        rows = np.ones([8, 4], np.float32)
        dataset = tf.data.Dataset.from_tensors(rows).repeat()

        @tf.function
        def step(x: Any) -> Any:
            return four.run(lambda x: tf.nn.relu(x * 2.0 - 3.0) + x, args=(x,))

        iterator = self.batches(four, dataset)
        for _ in range(3):
            np.testing.assert_array_equal(local(four, step(next(iterator))), np.ones([4, 2, 4]))
        assert (rows == 1.0).all()


def test_many_cores_and_many_batches_in_a_function() -> None:
    """TensorFlow takes more than 32 calls of one iterator for a loop that AutoGraph has missed."""
    strategy = strategy_of(32)
    batches = strategy.experimental_distribute_dataset(tf.data.Dataset.range(32 * 4).batch(32))

    @tf.function(autograph=False)
    def three(iterator: Any) -> list[Any]:
        return [strategy.experimental_local_results(next(iterator)) for _ in range(3)]

    found = np.sort(np.ravel([[part.numpy() for part in step] for step in three(iter(batches))]))
    np.testing.assert_array_equal(found, np.arange(32 * 3))
