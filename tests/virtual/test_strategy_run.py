"""What `strategy.run` takes, gives and refuses, and what its options change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import each, local, run, strategy_of

from tpunb.virtual._tensorflow import distribute_values

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


def test_the_replica_sees_dynamic_sizes(two: Any) -> None:
    seen = []

    def replica(x: Any) -> Any:
        seen.append(x.shape.as_list())
        return x

    run(two, replica, uneven(two))
    assert seen == [[None, 2]]


@pytest.mark.parametrize(("bucketised", "rows"), [(False, 5), (True, 8)])
def test_without_the_padder_the_padding_is_seen(two: Any, bucketised: bool, rows: int) -> None:
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
    (first, one), (second, _) = local(two, step(uneven(two), ragged))
    assert first.shape == second.shape == (rows, 2)
    np.testing.assert_array_equal(first[3:], 0.0)
    np.testing.assert_array_equal(second[:5], 1.0)
    assert one.tolist() == [3]


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
    """Two tensors in one."""

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


def test_no_arguments_at_all(two: Any) -> None:
    function = tf.function(lambda: tf.constant(1.0))
    assert local(two, two.run(function, kwargs=None)) == [1.0, 1.0]
    with pytest.raises(TypeError, match="NoneType"):
        two.run(function, args=None)


MISMATCHED = {
    "types": (
        lambda: [tf.constant(1.0), tf.constant(1)],
        r"Replica 0 had input types \[.*float32\], replica 1 had input types \[.*int32\]",
    ),
    "none": (lambda: [tf.constant(1.0), None], "Replicas must have matching input types"),
    "none for a number": (lambda: [tf.constant(1), None], "None on some replicas"),
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


# Results.


def not_a_tensor() -> Any:
    return object()


def operation_before_tensor() -> Any:
    return [tf.no_op(), tf.constant(1)]


def operation_in_a_dictionary() -> Any:
    return {"a": tf.constant(1), "b": tf.no_op()}


def no_tensor_in_a_dictionary() -> Any:
    return {"a": [object()]}


@pytest.mark.parametrize(
    ("replica", "message"),
    [
        (not_a_tensor, "return values must all either be Operations or convertible to Tensors"),
        (no_tensor_in_a_dictionary, 'convertible to Tensors. Got error: "'),
        (operation_before_tensor, "zero-or more Tensor values followed by zero or more Operations"),
        (operation_in_a_dictionary, "does not support Operation as return value in non-flat"),
    ],
)
def test_results_that_are_refused(two: Any, replica: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(two, replica)


def test_results_that_are_variables_numbers_and_operations(two: Any) -> None:
    with two.scope():
        v = tf.Variable(3.0)

    def replica() -> Any:
        return [v, 2, np.float32(4.0), tf.no_op(), tf.no_op()]

    assert run(two, replica) == [[3.0, 2, 4.0]] * 2
    assert run(two, lambda: {"v": v, "n": (1, 2)})[1] == {"v": 3.0, "n": (1, 2)}


# Outside of the TPU.


def test_outside_compilation_runs_its_function(two: Any) -> None:
    def host(x: Any) -> Any:
        return tf.numpy_function(lambda x: np.float32(x * 2), [x], tf.float32)

    def replica(x: Any) -> Any:
        y = tf.compat.v1.tpu.outside_compilation(host, x + 1.0)
        return tf.ensure_shape(y, []) + 1.0

    assert run(two, replica, each(two, [1.0, 2.0])) == [5.0, 7.0]
