"""State of every kind on replicas: generators, tables, moving averages, kinds of variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import copies, each, local, run, strategy_of

ON_READ, ON_WRITE = tf.VariableSynchronization.ON_READ, tf.VariableSynchronization.ON_WRITE
AUTO = tf.VariableSynchronization.AUTO
Aggregation = tf.VariableAggregation


def generator(strategy: Any, seed: int) -> tf.random.Generator:
    with strategy.scope():
        return tf.random.Generator.from_seed(seed)


def drawing(strategy: Any, source: tf.random.Generator) -> Any:
    def replica() -> Any:
        return source.normal([3]), source.uniform([2]), source.make_seeds(2)

    step = tf.function(lambda: strategy.run(replica))
    return lambda: local(strategy, step())


def same(results: Any, others: Any) -> None:
    for one, two in zip(results, others, strict=True):
        for part, wanted in zip(one, two, strict=True):
            np.testing.assert_array_equal(part, wanted)


def test_a_generator_is_saved_reset_and_differs_between_replicas(four: Any, tmp_path: Any) -> None:
    source = generator(four, 3)
    draw = drawing(four, source)
    first = draw()
    for part in range(3):
        assert len({result[part].tobytes() for result in first}) == 4
    saved = tf.train.Checkpoint(generator=source)
    path = saved.save(str(tmp_path / "c"))
    second = draw()
    assert not np.array_equal(first[0][0], second[0][0])
    saved.restore(path)
    same(draw(), second)
    source.reset_from_seed(3)
    same(draw(), first)


def test_a_generator_moves_between_numbers_of_replicas(four: Any, tmp_path: Any) -> None:
    source = generator(four, 9)
    path = tf.train.Checkpoint(generator=source).save(str(tmp_path / "c"))
    eight = strategy_of(8)
    more = generator(eight, 1)
    tf.train.Checkpoint(generator=more).restore(path).assert_consumed()
    same(drawing(eight, more)()[:4], drawing(four, source)())
    plain = tf.random.Generator.from_seed(1)
    tf.train.Checkpoint(generator=plain).restore(path).assert_consumed()
    np.testing.assert_array_equal(plain.state, tf.random.Generator.from_seed(9).state)


def test_a_generator_splits_across_replicas(four: Any) -> None:
    with four.scope():
        parts = tf.random.Generator.from_seed(3).split(2)
    results = [drawing(four, part)() for part in parts]
    flat = [result[0].tobytes() for part in results for result in part]
    assert len(set(flat)) == 8


def words() -> Any:
    return tf.lookup.KeyValueTensorInitializer(
        tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64)
    )


@pytest.mark.parametrize("inside", [False, True])
def test_tables_in_the_input_pipeline(four: Any, inside: bool) -> None:
    with four.scope() if inside else tf.device(None):
        table = tf.lookup.StaticHashTable(words(), -1)
        vocabulary = tf.lookup.StaticVocabularyTable(words(), 2)
    dataset = tf.data.Dataset.from_tensor_slices(["a", "b", "c", "a"])
    dataset = dataset.map(lambda word: (table.lookup(word), vocabulary.lookup(word)))
    (batch,) = four.experimental_distribute_dataset(dataset.batch(4))
    found = [(int(row[0][0]), int(row[1][0])) for row in local(four, batch)]
    assert [pair[0] for pair in found] == [1, 2, -1, 1]
    assert [pair[1] for pair in found if pair[0] > 0] == [1, 2, 1]
    assert 0 <= found[2][1] < 4


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
    found = [int(row[0]) for row in local(pod, batch)]
    assert found == [100 * host + core for host in range(4) for core in range(8)]


def test_a_moving_average(four: Any) -> None:
    with four.scope():
        v, average = tf.Variable(1.0), tf.train.ExponentialMovingAverage(0.5)

    def replica(x: Any) -> Any:
        v.assign_add(tf.distribute.get_replica_context().all_reduce("MEAN", x))
        average.apply([v])
        return v.read_value()

    for _ in range(3):
        run(four, replica, each(four, [0.0, 1.0, 1.0, 2.0]))
    assert v.numpy() == 4.0
    shadow = average.average(v)
    assert copies(shadow) == [shadow.numpy()] * 4
    # From 1 by halves to 2, 3 and 4.
    assert shadow.numpy() == 3.125


@pytest.mark.parametrize(
    ("synchronization", "aggregation", "after"),
    [
        (AUTO, Aggregation.SUM, 11.0),
        (AUTO, Aggregation.MEAN, 3.5),
        (AUTO, Aggregation.ONLY_FIRST_REPLICA, 2.0),
        (ON_WRITE, Aggregation.SUM, 11.0),
        (ON_WRITE, Aggregation.MEAN, 3.5),
        (ON_WRITE, Aggregation.ONLY_FIRST_REPLICA, 2.0),
        (ON_READ, Aggregation.SUM, 14.0),
        (ON_READ, Aggregation.MEAN, 3.5),
        (ON_READ, Aggregation.ONLY_FIRST_REPLICA, 2.0),
    ],
)
def test_every_kind_of_variable(
    four: Any, synchronization: Any, aggregation: Any, after: float
) -> None:
    with four.scope():
        v = tf.Variable(1.0, synchronization=synchronization, aggregation=aggregation)
    run(four, lambda x: v.assign_add(x), each(four, [1.0, 2.0, 3.0, 4.0]))
    assert v.numpy() == after
    v.assign(8.0)
    assert v.numpy() == 8.0
    if (synchronization, aggregation) == (ON_READ, Aggregation.SUM):
        with pytest.raises(ValueError, match="does not support `assign_add`"):
            v.assign_add(8.0)
        return
    v.assign_add(8.0)
    assert v.numpy() == 16.0


def test_variables_that_tensorflow_refuses(four: Any) -> None:
    with four.scope(), pytest.raises(ValueError, match="NONE"):
        tf.Variable(1.0, synchronization=tf.VariableSynchronization.NONE)
    with four.scope():
        v = tf.Variable(1.0, synchronization=ON_READ, aggregation=Aggregation.NONE)
    with pytest.raises(ValueError, match="NONE"):
        v.numpy()


@pytest.mark.parametrize(
    "options",
    [
        tf.distribute.RunOptions(experimental_bucketizing_dynamic_shape=True),
        tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False),
        tf.distribute.RunOptions(
            experimental_xla_options=tf.tpu.XLAOptions(use_spmd_for_xla_partitioning=False)
        ),
    ],
)
def test_run_options(four: Any, options: Any) -> None:
    values = each(four, [np.ones([k + 1], np.float32) for k in range(4)])

    @tf.function
    def step(x: Any) -> Any:
        return four.run(lambda x: tf.reduce_sum(x), args=(x,), options=options)

    assert local(four, step(values)) == [1.0, 2.0, 3.0, 4.0]


def test_batches_from_python_leave_its_arrays_alone(four: Any) -> None:
    """A replica that uses its part of a batch last must not reuse the memory."""
    memory = np.empty([64 * 4 + 64], np.uint8)
    start = -memory.ctypes.data % 64
    # TensorFlow takes aligned arrays as they are.
    array = memory[start : start + 64 * 4].view(np.float32)
    array[:] = np.arange(64)

    def batches() -> Any:
        yield from array.reshape([2, 32])

    dataset = tf.data.Dataset.from_generator(
        batches, output_signature=tf.TensorSpec([32], tf.float32)
    )

    @tf.function
    def step(x: Any) -> Any:
        return four.run(lambda x: x * 2.0 - 1.0, args=(x,))

    for _ in range(4):
        for batch in four.experimental_distribute_dataset(dataset):
            step(batch)
    np.testing.assert_array_equal(array, np.arange(64))
