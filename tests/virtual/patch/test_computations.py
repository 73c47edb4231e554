"""TensorFlow 1's `tpu.rewrite`, `replicate`, `shard` and `batch_parallel` on a virtual TPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.bfloat16 import bf, whole_numbers

from tpunb.tensorflow.virtual.patch.patched_names import ComputationError
from tpunb.tensorflow.virtual.private_names import tpu_ops
from tpunb.virtual import installed

v1 = tf.compat.v1
X = whole_numbers(4, 16, seed=1)


@pytest.fixture(autouse=True)
def two() -> Iterator[None]:
    with installed(2):
        yield


def evaluated(build: Callable[[], Any]) -> Any:
    """The result of a graph in a session, as in TensorFlow 1."""
    with tf.Graph().as_default():
        result = build()
        with v1.Session() as session:
            session.run(v1.tpu.initialize_system())
            session.run(v1.global_variables_initializer())
            values = session.run(result)
            session.run(v1.tpu.shutdown_system())
    return values


def assert_equal(actual: Any, expected: Any) -> None:
    tf.nest.map_structure(np.testing.assert_array_equal, actual, expected)


def test_one_replica() -> None:
    """The result may be a list, a nest, or operations alone."""
    assert_equal(evaluated(lambda: v1.tpu.rewrite(lambda x: x * 2, [tf.constant(X)])), [X * 2])
    both = evaluated(lambda: v1.tpu.rewrite(lambda x: (x + 1, tf.no_op()), [tf.constant(X)]))
    assert_equal(both, [X + 1])
    nest = evaluated(lambda: v1.tpu.rewrite(lambda x: {"a": x, "b": [x - 1]}, [X]))
    assert_equal(nest, {"a": X, "b": [X - 1]})
    assert evaluated(lambda: v1.tpu.rewrite(tf.no_op)) is None


def test_the_graph_shows_what_one_replica_computes(capfd: Any) -> None:
    """TensorFlow's `test_tpu_rewrite_uses_xla_einsum` asks for this."""

    def products(x: Any) -> Any:
        y = tf.while_loop(lambda k, _: k < 2, lambda k, y: (k + 1, y * 2.0), (0, x))[1]
        return (
            tf.einsum("ab,cb->ac", y, tf.constant(X)),
            x,
            v1.tpu.outside_compilation(tf.print, "shown"),
        )

    def build() -> Any:
        result = v1.tpu.rewrite(products, [tf.constant(X)])
        assert "Einsum" in {operation.type for operation in v1.get_default_graph().get_operations()}
        return result

    assert_equal(evaluated(build), [X * 4.0 @ X.T, X])
    assert "shown" in capfd.readouterr().err


def test_replicas_reduce_their_own_inputs() -> None:
    def build() -> Any:
        rows = [[tf.constant(X)], [tf.constant(X * 2)]]
        return v1.tpu.replicate(lambda x: (x + 1, v1.tpu.cross_replica_sum(x)), rows)

    assert_equal(evaluated(build), [[X + 1, X * 3], [X * 2 + 1, X * 3]])


def test_shards() -> None:
    for function in (v1.tpu.shard, v1.tpu.batch_parallel):
        assert_equal(evaluated(lambda f=function: f(lambda x: x * 2, [X], num_shards=2)), [X * 2])
    sums = evaluated(
        lambda: v1.tpu.shard(lambda x: tf.reduce_sum(x, axis=0), [tf.constant(X)], num_shards=2)
    )
    assert_equal(sums, [np.concatenate([X[:2].sum(axis=0), X[2:].sum(axis=0)])])


def test_a_training_step_with_a_tensorflow_1_variable() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("", use_resource=True):
            weights = v1.get_variable("w", [16, 2], initializer=tf.ones_initializer())

        def step(x: Any) -> Any:
            loss = tf.reduce_sum(tf.matmul(x, weights))
            return loss, v1.train.GradientDescentOptimizer(0.5).minimize(loss)

        train = v1.tpu.rewrite(step, [tf.constant(X)])
        session.run(v1.global_variables_initializer())
        losses = [session.run(train)[0] for _ in range(2)]
        gradient = X.sum(axis=0)[:, None]
        assert_equal(session.run(weights), np.broadcast_to(1 - gradient, [16, 2]))
    assert losses == [
        2 * X.sum(),
        np.float32((X @ np.broadcast_to(1 - gradient / 2, (16, 2))).sum()),
    ]


def test_rewrite_in_a_function_and_with_tpu_arithmetic() -> None:
    @tf.function
    def square(x: Any) -> Any:
        return v1.tpu.rewrite(lambda x: tf.matmul(x, x, transpose_b=True), [x])

    assert_equal(square(X), [X @ X.T])
    with installed(2, arithmetic="tpu"):
        assert_equal(tf.function(square.python_function)(X), [bf(X) @ bf(X).T])


def test_what_a_tpu_refuses() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="StringLength"):
        evaluated(lambda: v1.tpu.rewrite(lambda x: tf.strings.length(tf.strings.as_string(x)), [X]))


def test_too_many_replicas_and_infeeds_are_refused() -> None:
    with pytest.raises(ComputationError, match="3 replicas, and cores for 2"):
        evaluated(lambda: v1.tpu.replicate(tf.identity, [[X]] * 3))
    with pytest.raises(ComputationError) as raised:
        evaluated(lambda: v1.tpu.rewrite(tf.identity, [X], infeed_queue=object()))
    assert "dataset" in raised.value.fix


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"split_count": 0}, "split_count 0 must at least be one"),
        ({"split_count": 4}, "split_count 4 must equal the size of the second dimension"),
        ({"group_assignment": [0, 1]}, "group_assignment must have rank 2"),
        ({"split_dimension": 5}, "split_dimension 5 is out of range of input rank 2"),
        ({"concat_dimension": -1}, "concat_dimension -1 is out of range of input rank 2"),
    ],
)
def test_all_to_all_refuses_invalid_attributes(wrong: dict[str, Any], message: str) -> None:
    """A direct call refuses them too; valid attributes still lack a core to run on."""
    good = {
        "group_assignment": [[0, 1]],
        "concat_dimension": 0,
        "split_dimension": 0,
        "split_count": 2,
    }
    for call in (
        lambda attributes: tf.raw_ops.AllToAll(input=X, **attributes),
        lambda attributes: tpu_ops.all_to_all(X, **attributes),
    ):
        with pytest.raises(ValueError, match=message):
            call({**good, **wrong})
        with pytest.raises(tf.errors.NotFoundError):
            call(good)
