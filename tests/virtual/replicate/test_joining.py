"""Replicas as one batch: one operation for all replicas gives the numbers of one for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from joining.running import check
from support.joined import REPLICAS, analyses, both, both_ways, operations, per_replica
from support.keras_models import CLASSES, SERIES, assert_trained_alike, case, crossentropy
from support.strategies import SUMMED_ON_READ, all_reduce, each, make, replica_id, run, strategy_of
from support.tiers import THOROUGH, thorough

from tpunb.tensorflow.virtual.replicate import joining_rules
from tpunb.tensorflow.virtual.replicate.variance import Analysis

RNG = np.random.default_rng(11)
TABLE = RNG.normal(size=[9, 5]).astype(np.float32)
SHARED = RNG.normal(size=[5, 6]).astype(np.float32)
KERNEL = RNG.normal(size=[2, 2, 3, 4]).astype(np.float32)
DEPTHWISE = RNG.normal(size=[2, 2, 3, 2]).astype(np.float32)


@pytest.fixture(name="joined")
def fixture_joined() -> Iterator[list[Analysis]]:
    """The analyses of the traced functions; even cheap operations are joined."""
    with analyses(costs=False) as analyzed:
        yield analyzed


@pytest.mark.parametrize("count", [1, *thorough([3])])
def test_a_joined_operation_matches_an_operation_on_each_replica(count: int) -> None:
    """Every joining rule, on a sample of the cases of `python -m joining`."""
    findings = check(sorted(joining_rules.operations()), count, rounds=5)
    assert not findings.wrong
    assert not joining_rules.operations() - (+findings.joined).keys()


def gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """A replica function with the summed gradients by weights, and an unsummed gradient."""

    def step(x: Any, y: Any) -> Any:
        weights = [tf.constant(value) for value in (SHARED, TABLE, KERNEL, DEPTHWISE)]
        with tf.GradientTape() as tape:
            tape.watch([*weights, x])
            loss = function(x, y, *weights)
        *summed, dx = tape.gradient(loss, [*weights, x], unconnected_gradients="zero")
        return [all_reduce(tf.convert_to_tensor(gradient)) for gradient in summed], dx, loss

    return step


def network(x: Any, y: Any, shared: Any, table: Any, kernel: Any, depthwise: Any) -> Any:
    """A loss that needs gradients of products, convolutions, pooling and a table."""
    hidden = tf.nn.relu(tf.nn.bias_add(x @ shared, table[0, :1] * tf.ones([6])))
    hidden = tf.gather(table, tf.argmax(y, 1)) @ shared + hidden
    pixels = tf.reshape(tf.tile(hidden, [1, 10]), [5, 4, 3, 3])
    out = tf.nn.conv2d(pixels, kernel, 1, "SAME")
    out = tf.nn.max_pool2d(tf.nn.avg_pool2d(out, 2, 1, "SAME"), 2, 1, "SAME")
    deep = tf.nn.depthwise_conv2d(pixels, depthwise, [1, 1, 1, 1], "VALID")
    attention = tf.nn.softmax(tf.einsum("bhwc,bhvc->bhwv", out, out))
    return tf.reduce_mean(attention @ out) + tf.reduce_sum(tf.tanh(deep)) / 3.0


def test_gradients_that_are_only_summed_are_computed_as_a_sum(
    joined: list[Analysis],
) -> None:
    both(gradients(network), per_replica(3, 5), per_replica(3, 5, seed=1))
    assert operations(joined) >= {
        "MatMul", "Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter", "MaxPoolGrad",
        "AvgPoolGrad", "Conv2DBackpropInput", "UnsortedSegmentSum", "ReluGrad",
    }  # fmt: skip
    summed = [
        [node.op for node in analysis.order if node.name in analysis.plans].count(
            "Conv2DBackpropFilter"
        )
        for analysis in joined
    ]
    assert summed == [1]


def clipped(x: Any, y: Any) -> Any:
    """Clipping before the sum, which is not linear: each replica clips its own gradient."""
    weights = tf.constant(SHARED)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_sum(tf.tanh(x @ weights)) + tf.reduce_sum(y)
    gradient = tape.gradient(loss, weights)
    return all_reduce(tf.clip_by_norm(gradient, 0.5)), all_reduce(gradient * 2.0), gradient


def branches(x: Any, y: Any) -> Any:
    """Separate work of a replica between joint operations."""
    x = x @ SHARED
    x = tf.cond(replica_id() % 2 == 0, lambda: tf.sin(x), lambda: x * 2.0)
    for _ in tf.range(replica_id()):
        x = x + 1.0
    return x @ tf.transpose(SHARED) + y


def means(x: Any, y: Any) -> Any:
    """Sums and other exchanges between replicas, and values that are equal on all."""
    context = tf.distribute.get_replica_context()
    mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.reduce_mean(x, 0))
    return x - mean, all_reduce(TABLE[0] * 2.0), context.all_gather(y, 0)


def recurrent(x: Any, y: Any) -> Any:
    """Unrolled steps of a recurrent network."""
    state = tf.zeros([3, 6])
    for _ in range(3):
        gates = tf.concat([x, state], 1) @ tf.concat([SHARED, SHARED, SHARED[:1]], 0)
        new, keep = tf.split(tf.concat([gates, gates], 1), 2, 1)
        state = tf.sigmoid(keep) * state + tf.tanh(new)
    return state @ tf.transpose(SHARED) * y


@pytest.mark.parametrize("function", [clipped, branches, means, recurrent])
def test_separate_work_of_replicas(function: Callable[..., Any], joined: list[Analysis]) -> None:
    both(function, per_replica(3, 5), per_replica(3, 5, seed=1))
    assert operations(joined)


def test_row_variables_and_mirrored_variables(joined: list[Analysis]) -> None:
    def trained(strategy: Any) -> Any:
        weights = make(strategy, SHARED, aggregation=tf.VariableAggregation.MEAN)
        table, total = make(strategy, TABLE), make(strategy, tf.zeros([]), **SUMMED_ON_READ)

        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                rows = tf.raw_ops.ResourceGather(
                    resource=table.handle, indices=tf.argmax(x, 1), dtype=tf.float32
                )
                loss = tf.reduce_mean(tf.square((x + rows) @ weights))
            weights.assign_sub(0.1 * all_reduce(tape.gradient(loss, weights)))
            total.assign_add(loss)
            return loss, total.read_value(), x @ weights.read_value()

        values = each(strategy, per_replica(3, 5))
        steps = [run(strategy, step, values) for _ in range(2)]
        return [steps, weights.numpy(), total.numpy()]

    both_ways(trained)
    assert "ResourceGather" in operations(joined)


def test_each_replica_draws_its_own_numbers(joined: list[Analysis]) -> None:
    strategy = strategy_of(REPLICAS, joined=True, strict={"seed": False})

    def step(x: Any) -> Any:
        return tf.nn.dropout(tf.exp(x), 0.5, seed=3)

    results = run(strategy, step, each(strategy, [np.zeros([4, 8], np.float32)] * REPLICAS))
    assert len({np.asarray(result).tobytes() for result in results}) == REPLICAS
    assert all(set(np.unique(result)) == {0.0, 2.0} for result in results)
    assert operations(joined)


def test_values_too_large_for_memory_are_computed_in_turns(
    monkeypatch: pytest.MonkeyPatch, joined: list[Analysis]
) -> None:
    monkeypatch.setattr("tpunb.tensorflow.virtual.replicate.options._JOINED_PART", 2**40)
    strategy = strategy_of(REPLICAS)
    run(strategy, lambda x: tf.tanh(x @ SHARED), each(strategy, per_replica(3, 5)))
    assert not operations(joined)
    strategy = strategy_of(REPLICAS, joined=True)
    run(strategy, lambda x: tf.tanh(x @ SHARED), each(strategy, per_replica(3, 5)))
    assert operations(joined) == {"MatMul", "Tanh"}


def test_an_error_names_the_line(joined: list[Analysis]) -> None:
    strategy = strategy_of(REPLICAS, joined=True)

    def step(x: Any) -> Any:
        return tf.gather(x @ SHARED, tf.argmax(x, 1) + 99)

    with pytest.raises(tf.errors.InvalidArgumentError, match="indices") as caught:
        run(strategy, step, each(strategy, per_replica(3, 5)))
    assert "test_joining.py" in str(caught.value)
    assert "GatherV2" in operations(joined)


def test_an_analysis_reads_as_a_table(joined: list[Analysis]) -> None:
    def function(x: Any) -> Any:
        for _ in tf.range(2):
            x = tf.tanh(x)
        return tf.reduce_sum(x)

    both(function, per_replica(3, 2))
    table = [line.split() for line in str(joined[-1]).splitlines()]
    assert ["while/Tanh", "Tanh", "varying", "joined", "rows", "->", "rows"] in table
    assert ["Sum", "Sum", "varying", "joined", "stacked,", "[1,", "2]", "->", "stacked"] in table
    assert ["range/start", "Const", "invariant", "compute"] in table


def test_costs_decide_what_is_joined() -> None:
    """A joint product is worthwhile; a joint number of each replica's own variable is not."""
    strategy = strategy_of(REPLICAS, joined=True)
    total = make(strategy, 0.0, **SUMMED_ON_READ)

    def replica(x: Any) -> Any:
        total.assign_add(tf.reduce_sum(x @ SHARED))
        return total.read_value() * 2.0

    values = per_replica(3, 5)
    results = run(strategy, replica, each(strategy, values))
    np.testing.assert_allclose(results, [2.0 * (x @ SHARED).sum() for x in values], rtol=1e-5)


def complex_products(x: Any, y: Any) -> list[Any]:
    """Products of complex matrices, whose transpose differs from their adjoint."""
    a, b = tf.complex(x, y), tf.complex(y, 2.0 * x)
    shared = tf.constant(TABLE[:3], tf.complex64) * 1j
    with tf.GradientTape() as tape:
        tape.watch(a)
        products = [
            tf.matmul(first, second, **{f"{how}_{which}": True})
            for first, second in ((a, b), (a, shared), (shared, b))
            for how in ("transpose", "adjoint")
            for which in "ab"
        ]
        vector = tf.linalg.matvec(a, b[:, 0], transpose_a=True)
    return [*products, vector, tape.gradient([*products, vector], a)]


def without_sum_broadcasting(x: Any, y: Any) -> list[Any]:
    """Operations whose inputs do not broadcast like those of sums."""
    return [
        tf.nn.softmax_cross_entropy_with_logits(labels=y[0, :1], logits=x[:1, :1] * 2.0),
        tf.raw_ops.ApproximateEqual(x=x[0], y=tf.constant(TABLE[0])),
    ]


@pytest.mark.parametrize("function", [complex_products, without_sum_broadcasting])
def test_rules_apply_only_to_their_types_and_shapes(
    function: Callable[..., Any], joined: list[Analysis]
) -> None:
    both(function, per_replica(3, 5), per_replica(3, 5, seed=1))
    assert joined


def test_sums_that_cannot_move_before_a_product(joined: list[Analysis]) -> None:
    """Scaled float16 numbers have a finite sum, unscaled ones overflow. Inf minus inf is NaN."""

    def replica(x: Any) -> list[Any]:
        small = tf.cast(x, tf.float16) * 0.125
        signs = (x - 35000.0) * tf.constant(np.inf)
        return [all_reduce(small), all_reduce(signs)]

    values = [np.array([number], np.float32) for number in (30000.0, 30000.0, 40000.0, 60000.0)]
    strategy = strategy_of(REPLICAS, joined=True)
    (small, signs), *_ = run(strategy, replica, each(strategy, values))
    np.testing.assert_array_equal(small, np.array([20000.0], np.float16))
    assert np.isnan(signs).all()
    assert operations(joined)


def attentive(api: Any) -> Any:
    """A model with attention and convolutions."""
    inputs, layers = api.Input(SERIES.shape[1:]), api.layers
    hidden = layers.Conv1D(4, 3, padding="same", activation="relu")(inputs)
    hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(2, 2)(hidden, hidden))
    return api.Model(inputs, layers.Dense(3)(layers.LSTM(5, unroll=True)(hidden)))


@THOROUGH
def test_a_model_matches_one_device(joined: list[Analysis]) -> None:
    data = tf.data.Dataset.from_tensor_slices((SERIES, CLASSES)).batch(8, drop_remainder=True)
    # Adam would amplify the rounding errors of a zero gradient.
    training_case = case(
        attentive, data, None, optimizer="sgd", loss=crossentropy, metrics=["accuracy"]
    )
    for choice in (True, False):
        assert_trained_alike(None, strategy_of(REPLICAS, joined=choice), training_case)
    assert operations(joined) >= {"Conv2DBackpropFilter", "Einsum", "Softmax"}
