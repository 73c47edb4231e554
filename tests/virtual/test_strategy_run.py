"""Arguments, results and refusals of `strategy.run`, and the effects of its options."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import all_reduce, each, local, replica_id, run, strategy_of

from tpunb.tensorflow.virtual.private_names import distribute_values

Point = collections.namedtuple("Point", "x y")
OPTIONS = {
    "default": tf.distribute.RunOptions(),
    "static": tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False),
    "bucketised": tf.distribute.RunOptions(experimental_bucketizing_dynamic_shape=True),
    "xla": tf.distribute.RunOptions(
        experimental_xla_options=tf.tpu.XLAOptions(use_spmd_for_xla_partitioning=False)
    ),
}
PADDER_OFF = tf.tpu.XLAOptions(enable_xla_dynamic_padder=False)


@pytest.fixture(scope="module")
def two() -> Any:
    return strategy_of(2, strict=False)


def uneven(strategy: Any) -> Any:
    """Three rows on the first replica, five on the second."""
    rows = [np.arange(6.0, dtype=np.float32).reshape(3, 2), np.ones([5, 2], np.float32)]
    return each(strategy, rows)


def test_autograph_converts_only_the_users_functions(two: Any) -> None:
    """Tracebacks name converted functions; each conversion costs an eighth of a first step."""

    @tf.function
    def step(x: Any) -> Any:
        def replica(x: Any) -> Any:
            if x > 0.0:  # AutoGraph must convert this.
                raise ValueError("in the user's function")
            return x

        return two.run(replica, args=(x,))

    with pytest.raises(ValueError, match="in the user's function") as caught:
        step(tf.constant(1.0))
    assert "in replica" in str(caught.value)
    assert "strategy.py" not in str(caught.value)


# Options.


@pytest.mark.parametrize("name", OPTIONS)
def test_options_change_no_value(two: Any, name: str) -> None:
    @tf.function
    def step(x: Any, y: Any) -> Any:
        def replica(x: Any, y: Any) -> Any:
            return tf.reduce_sum(x) + y, tf.shape(x)[0]

        return two.run(replica, args=(x,), kwargs={"y": y}, options=OPTIONS[name])

    result = local(two, step(uneven(two), tf.constant(1.0)))
    assert result == [(16.0, 3), (11.0, 5)]


@pytest.mark.parametrize(("bucketised", "rows"), [(False, 5), (True, 8)])
def test_without_the_padder_replicas_see_the_padding(two: Any, bucketised: bool, rows: int) -> None:
    options = tf.distribute.RunOptions(
        experimental_bucketizing_dynamic_shape=bucketised, experimental_xla_options=PADDER_OFF
    )

    @tf.function
    def step(x: Any, ragged: Any) -> Any:
        def replica(x: Any, nothing: Any, ragged: Any) -> Any:
            assert nothing is None
            return x, tf.shape(ragged.flat_values)

        return two.run(replica, args=(x, None, ragged), options=options)

    ragged = tf.ragged.constant([[1], [2, 3]])
    (first, shape), (second, _) = local(two, step(uneven(two), ragged))
    assert first.shape == second.shape == (rows, 2)
    np.testing.assert_array_equal(first[3:], 0.0)
    np.testing.assert_array_equal(second[:5], 1.0)
    assert shape.tolist() == [3]


def test_an_argument_of_unknown_rank_is_refused() -> None:
    two = strategy_of(2)

    def step(options: Any) -> Any:
        @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
        def step(x: Any) -> Any:
            return two.run(lambda x: x + 1.0, args=(x,), options=options)

        return step(tf.constant(1.0))

    for options in (None, OPTIONS["default"]):
        with pytest.raises(ValueError, match=r"input tensor .* to TPUStrategy.run\(\) has unknown"):
            step(options)
    assert local(two, step(OPTIONS["static"])) == [2.0, 2.0]


def test_the_options_of_a_functions_first_run_stay(two: Any) -> None:
    size = tf.function(lambda x: tf.shape(x)[0])
    off = tf.distribute.RunOptions(experimental_xla_options=PADDER_OFF)
    assert local(two, two.run(size, args=(uneven(two),), options=off)) == [5, 5]
    assert local(two, two.run(size, args=(uneven(two),))) == [5, 5]
    other = tf.function(lambda x: tf.shape(x)[0])
    assert local(two, two.run(other, args=(uneven(two),))) == [3, 5]


# Arguments.


class Pair(tf.experimental.ExtensionType):  # type: ignore[misc]
    """An extension type with two tensors."""

    first: tf.Tensor
    second: tf.Tensor


def pair_of(replica: int) -> Pair:
    return Pair(tf.constant([1.0, 2.0]) * (replica + 1), tf.constant(replica))


def sparse_of(replica: int) -> tf.SparseTensor:
    return tf.sparse.from_dense([[0.0, replica + 1.0]])


def ragged_of(replica: int) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths([1.0 + replica] * 3, [2, 1])


@pytest.mark.parametrize("make", [pair_of, sparse_of, ragged_of])
def test_composite_tensors(two: Any, make: Any) -> None:
    values = two.experimental_distribute_values_from_function(
        lambda context: make(context.replica_id_in_sync_group)
    )
    seen = []

    @tf.function
    def step(x: Any) -> Any:
        def replica(x: Any, nest: Any) -> Any:
            seen.append(type(x))
            assert nest["also"][0] is not x
            return {"same": x, "other": (nest["also"][0], None)}

        return two.run(replica, args=(x,), kwargs={"nest": {"also": [x]}})

    result = step(values)
    assert seen == [type(make(0))]
    for part in (result["same"], result["other"][0]):
        for replica, value in enumerate(two.experimental_local_results(part)):
            for got, given in zip(
                tf.nest.flatten(value, expand_composites=True),
                tf.nest.flatten(make(replica), expand_composites=True),
                strict=True,
            ):
                np.testing.assert_array_equal(got.numpy(), given.numpy())
    assert result["other"][1] is None


def test_no_arguments(two: Any) -> None:
    function = tf.function(lambda: tf.constant(1.0))
    assert local(two, two.run(function, kwargs=None)) == [1.0, 1.0]
    with pytest.raises(TypeError, match="NoneType"):
        two.run(function, args=None)


MISMATCHED = {
    "types": (
        lambda: [tf.constant(1.0), tf.constant(1)],
        r"Replica 0 had input types \[.*float32\], replica 1 had input types \[.*int32\]",
    ),
    "a missing value": (
        lambda: [tf.constant(1.0), None],
        "Replicas must have matching input types",
    ),
    "a missing number": (lambda: [tf.constant(1), None], "None on some replicas"),
    "structure": (
        lambda: [(tf.constant(1),), (tf.constant(1), tf.constant(2))],
        "same nested structure",
    ),
}


@pytest.mark.parametrize("name", MISMATCHED)
def test_arguments_that_do_not_match(two: Any, name: str) -> None:
    make, message = MISMATCHED[name]
    with pytest.raises((TypeError, ValueError), match=message):
        run(two, lambda x: tf.constant(0), distribute_values.PerReplica(make()))


def test_numpy_python_and_none(four: Any) -> None:
    def step(array: Any, number: Any, nothing: Any, flag: Any) -> Any:
        assert nothing is None
        return tf.reduce_sum(array) + number, flag

    arguments = (np.ones([3], np.float32), 2.0, None)
    call = tf.function(lambda: four.run(step, args=arguments, kwargs={"flag": True}))
    assert local(four, call()) == [(5.0, True)] * 4


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


def test_different_shapes_on_replicas(four: Any) -> None:
    values = each(four, [np.ones([k + 1], np.float32) for k in range(4)])

    def step(x: Any) -> Any:
        assert x.shape.as_list() == [None]
        total = all_reduce(tf.reduce_sum(x))
        return total, tf.size(x)

    assert run(four, step, values) == [(10.0, k + 1) for k in range(4)]


def test_variables_as_arguments(four: Any) -> None:
    with four.scope():
        v = tf.Variable(3.0)

    double = tf.function(lambda: four.run(lambda a: a * 2.0, args=(v,)))
    assert local(four, double()) == [6.0] * 4
    v.assign(4.0)
    assert local(four, double()) == [8.0] * 4


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

    results = lenient.experimental_local_results(tf.function(lambda: lenient.run(step))())
    rows = [part.to_list() for part in results]
    assert rows == [[[], [0]], [[0], [1]], [[0, 1], [2]], [[0, 1, 2], [3]]]


def test_a_table_created_in_the_scope(lenient: Any) -> None:
    with lenient.scope():
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant([1, 2], tf.int64), tf.constant([10, 20], tf.int64)
            ),
            default_value=-1,
        )
    ids = each(lenient, [np.int64(k) for k in (1, 2, 3, 1)])
    assert run(lenient, lambda x: table.lookup(x), ids) == [10, 20, -1, 10]


def test_captured_tensors(four: Any) -> None:
    outside = tf.constant(5.0)

    @tf.function
    def call(x: Any) -> Any:
        inside = x * 2.0
        return four.run(lambda: inside + outside)

    assert local(four, call(tf.constant(1.0))) == [7.0] * 4


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


# Results.


REFUSED = {
    "not a tensor": (lambda: object(), "must all either be Operations or convertible to Tensors"),
    "no tensor in a dictionary": (
        lambda: {"a": [object()]},
        'convertible to Tensors. Got error: "',
    ),
    "operation before tensor": (
        lambda: [tf.no_op(), tf.constant(1)],
        "zero-or more Tensor values followed by zero or more Operations",
    ),
    "operation in a dictionary": (
        lambda: {"a": tf.constant(1), "b": tf.no_op()},
        "does not support Operation as return value in non-flat",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_results(two: Any, name: str) -> None:
    replica, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        run(two, replica)


def test_variables_numbers_and_operations_as_results(two: Any) -> None:
    with two.scope():
        v = tf.Variable(3.0)

    def replica() -> Any:
        return [v, 2, np.float32(4.0), tf.no_op(), tf.no_op()]

    assert run(two, replica) == [[3.0, 2, 4.0]] * 2
    assert run(two, lambda: {"v": v, "n": (1, 2)})[1] == {"v": 3.0, "n": (1, 2)}


def nothing() -> dict[str, Any]:
    return {}


def test_results_of_every_structure(two: Any) -> None:
    @tf.function
    def step() -> Any:
        results = (
            two.run(lambda: None),
            two.run(lambda: (tf.constant(1), [tf.constant(2)], {"a": tf.constant(3)})),
            two.run(nothing),
            two.run(lambda: (tf.constant(1), None)),
        )
        assert results[0] is None
        assert results[2] == {}
        assert results[3][1] is None
        return results[1]

    assert local(two, step()) == [(1, [2], {"a": 3})] * 2


def test_operations_as_results(four: Any) -> None:
    with four.scope():
        v = tf.Variable(0.0)

    @tf.function
    def step() -> Any:
        def replica() -> Any:
            return v.assign_add(1.0, read_value=False)

        assert four.run(replica) is None
        return four.run(lambda: [tf.constant(3), v.assign_add(1.0, read_value=False)])

    assert local(four, step()[0]) == [3] * 4
    assert v.numpy() == 2.0
