"""What goes into a replica function: batches, values, nests, composite tensors, tables."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import each, local, replica_id, run, strategy_of

SUM = tf.distribute.ReduceOp.SUM
Point = collections.namedtuple("Point", "x y")


@pytest.fixture(scope="module")
def lenient() -> Any:
    """Lets pass what a TPU refuses: the engine's own tests go further than a TPU does."""
    return strategy_of(4, strict=False)


def test_a_batch_is_split_over_the_replicas(four: Any) -> None:
    dataset = tf.data.Dataset.range(16).batch(8, drop_remainder=True)
    rows = [local(four, batch) for batch in four.experimental_distribute_dataset(dataset)]
    assert np.array(rows).tolist() == [
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [[8, 9], [10, 11], [12, 13], [14, 15]],
    ]


def test_the_last_batch_may_be_short(four: Any) -> None:
    dataset = tf.data.Dataset.range(11).batch(8)

    @tf.function
    def step(batch: Any) -> Any:
        def replica(x: Any) -> Any:
            total = tf.reduce_sum(x)
            return total, tf.size(x)

        return four.run(replica, args=(batch,))

    totals, sizes = [], []
    for batch in four.experimental_distribute_dataset(dataset):
        total, size = step(batch)
        totals.append(int(four.reduce(SUM, total, axis=None)))
        sizes.append([int(s) for s in four.experimental_local_results(size)])
    assert totals == [28, 27]
    assert [sum(size) for size in sizes] == [8, 3]


def test_a_dataset_in_a_function_with_a_loop_around_run(four: Any) -> None:
    dataset = four.experimental_distribute_dataset(tf.data.Dataset.range(32).batch(8))

    @tf.function
    def epoch(iterator: Any) -> Any:
        total = tf.constant(0, tf.int64)
        for _ in tf.range(4):
            own = four.run(lambda x: tf.reduce_sum(x), args=(next(iterator),))
            total += four.reduce(SUM, own, axis=None)
        return total

    assert epoch(iter(dataset)).numpy() == sum(range(32))


def test_every_host_has_an_input_pipeline() -> None:
    pod = strategy_of("v3-32")
    seen: list[Any] = []

    def pipeline(context: tf.distribute.InputContext) -> Any:
        seen.append(
            (
                context.input_pipeline_id,
                context.num_input_pipelines,
                context.num_replicas_in_sync,
                context.get_per_replica_batch_size(64),
            )
        )
        start = tf.cast(context.input_pipeline_id * 100, tf.int64)
        return tf.data.Dataset.range(start, start + 100).batch(2)

    distributed = pod.distribute_datasets_from_function(pipeline)
    assert seen == [(host, 4, 32, 2) for host in range(4)]
    rows = local(pod, next(iter(distributed)))
    assert len(rows) == 32
    firsts = [int(row[0]) for row in rows]
    assert firsts == [100 * host + 2 * core for host in range(4) for core in range(8)]


def test_a_dataset_is_sharded_over_the_hosts() -> None:
    pod = strategy_of("v3-32")
    dataset = tf.data.Dataset.range(128).batch(64)
    seen = [
        int(value)
        for batch in pod.experimental_distribute_dataset(dataset)
        for row in local(pod, batch)
        for value in row
    ]
    assert sorted(seen) == list(range(128))


def test_values_from_a_function(four: Any) -> None:
    values = four.experimental_distribute_values_from_function(
        lambda context: np.float32(context.replica_id_in_sync_group * 2)
    )
    assert run(four, lambda x: x + 1.0, values) == [1.0, 3.0, 5.0, 7.0]


def test_numpy_python_and_none(four: Any) -> None:
    def step(array: Any, number: Any, nothing: Any, flag: Any) -> Any:
        assert nothing is None
        return tf.reduce_sum(array) + number, flag

    @tf.function
    def call() -> Any:
        return four.run(step, args=(np.ones([3], np.float32), 2.0, None), kwargs={"flag": True})

    assert local(four, call()) == [(5.0, True)] * 4


def test_none_on_some_replicas_only_is_refused(four: Any) -> None:
    values = four.experimental_distribute_values_from_function(
        lambda context: None if context.replica_id_in_sync_group == 0 else tf.constant(1.0)
    )
    with pytest.raises((ValueError, TypeError)):
        run(four, lambda x: tf.constant(1.0) if x is None else x, values)


def test_replicas_with_inputs_of_different_types_are_refused(four: Any) -> None:
    values = each(four, [1, 2.0, 3, 4])
    with pytest.raises(ValueError, match="matching input types"):
        run(four, lambda x: x, values)


def test_nested_arguments(four: Any) -> None:
    nest = {
        "point": Point(each(four, [1.0, 2.0, 3.0, 4.0]), tf.constant(10.0)),
        "more": [each(four, [5, 6, 7, 8]), (None, np.int32(3))],
    }

    def step(nest: Any) -> Any:
        assert isinstance(nest["point"], Point)
        assert nest["more"][1][0] is None
        return Point(nest["point"].x + nest["point"].y, nest["more"][0] * nest["more"][1][1])

    results = run(four, step, nest)
    assert results == [Point(11.0 + k, 3 * (5 + k)) for k in range(4)]


def test_keyword_arguments(four: Any) -> None:
    @tf.function
    def call(x: Any) -> Any:
        return four.run(lambda a, *, b: a - b, args=(tf.constant(1.0),), kwargs={"b": x})

    assert local(four, call(each(four, [1.0, 2.0, 3.0, 4.0]))) == [0.0, -1.0, -2.0, -3.0]


def test_variables_as_arguments(four: Any) -> None:
    with four.scope():
        v = tf.Variable(3.0)

    @tf.function
    def call() -> Any:
        return four.run(lambda a: a * 2.0, args=(v,))

    assert local(four, call()) == [6.0] * 4
    v.assign(4.0)
    assert local(four, call()) == [8.0] * 4


def test_ragged_and_sparse_input_stays_on_the_host(lenient: Any) -> None:
    ragged = tf.data.Dataset.from_tensor_slices(
        tf.ragged.constant([[1.0], [2.0, 3.0], [], [4.0, 5.0, 6.0]])
    ).batch(4, drop_remainder=True)
    sparse = tf.data.Dataset.from_tensor_slices(
        tf.sparse.from_dense(np.diag([1.0, 2.0, 3.0, 4.0]).astype(np.float32))
    ).batch(4, drop_remainder=True)
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)

    def step(x: Any) -> Any:
        dense = x.to_tensor() if isinstance(x, tf.RaggedTensor) else tf.sparse.to_dense(x)
        return tf.reduce_sum(dense)

    for dataset, expected in ((ragged, [1.0, 5.0, 0.0, 15.0]), (sparse, [1.0, 2.0, 3.0, 4.0])):
        batch = next(iter(lenient.experimental_distribute_dataset(dataset, options)))
        assert run(lenient, step, batch) == expected


def test_ragged_input_prefetched_to_the_device_is_refused(four: Any) -> None:
    dataset = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1.0], [2.0, 3.0]] * 2))
    with pytest.raises(ValueError, match="experimental_fetch_to_device"):
        four.experimental_distribute_dataset(dataset.batch(4, drop_remainder=True))


def test_composite_results(lenient: Any) -> None:
    def step() -> Any:
        row = tf.range(replica_id() + 1)
        return tf.RaggedTensor.from_row_lengths(row, [replica_id(), 1])

    @tf.function
    def call() -> Any:
        return lenient.run(step)

    rows = [part.to_list() for part in lenient.experimental_local_results(call())]
    assert rows == [[[], [0]], [[0], [1]], [[0, 1], [2]], [[0, 1, 2], [3]]]


def test_a_table_made_in_the_scope(lenient: Any) -> None:
    with lenient.scope():
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant([1, 2], tf.int64), tf.constant([10, 20], tf.int64)
            ),
            default_value=-1,
        )
    ids = each(lenient, [np.int64(k) for k in (1, 2, 3, 1)])
    assert run(lenient, lambda x: table.lookup(x), ids) == [10, 20, -1, 10]


def test_shapes_that_differ_between_replicas(four: Any) -> None:
    values = each(four, [np.ones([k + 1], np.float32) for k in range(4)])

    def step(x: Any) -> Any:
        assert x.shape.as_list() == [None]
        total = tf.distribute.get_replica_context().all_reduce(SUM, tf.reduce_sum(x))
        return total, tf.size(x)

    assert run(four, step, values) == [(10.0, k + 1) for k in range(4)]


def test_captured_tensors(four: Any) -> None:
    outside = tf.constant(5.0)

    @tf.function
    def call(x: Any) -> Any:
        inside = x * 2.0
        return four.run(lambda: inside + outside)

    assert local(four, call(tf.constant(1.0))) == [7.0] * 4
