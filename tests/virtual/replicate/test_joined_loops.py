"""Loops and branches that take the same path on every replica are joined into one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import joined
from support.joined import REPLICAS, analyses, per_replica
from support.keras_models import (
    CLASSES,
    SERIES,
    assert_trained_alike,
    case,
    crossentropy,
    keras,
    sequential,
)
from support.strategies import (
    MEAN,
    all_reduce,
    each,
    gradient_of,
    make,
    replica_id,
    run,
    strategy_of,
)
from support.tiers import THOROUGH

from tpunb.tensorflow.virtual.private_names import tpu_ops
from tpunb.tensorflow.virtual.replicate import expansion, joining
from tpunb.tensorflow.virtual.replicate.variance import Analysis

both = functools.partial(joined.both, strict=False)
WEIGHTS = np.random.default_rng(7).normal(size=[5, 5]).astype(np.float32)


@pytest.fixture(name="analyzed")
def fixture_analyzed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Analysis]]:
    """The analyses of the traced functions."""

    def failed(*_: Any) -> None:
        raise AssertionError("The joined function could not be written.")

    monkeypatch.setattr(expansion, "logger", failed)
    with analyses(costs=True) as analyzed:
        yield analyzed


def flows(analyzed: list[Analysis]) -> list[str]:
    """The joined control flow operations."""
    plans = [
        (node, analysis.plans.get(node.name)) for analysis in analyzed for node in analysis.order
    ]
    return [node.op.removeprefix("Stateless") for node, plan in plans if plan and plan.bodies]


def mapped(x: Any, weights: Any) -> Any:
    return tf.map_fn(lambda row: tf.tanh(tf.linalg.matvec(weights, row)) * row, x)


def mapped_scalars(x: Any, weights: Any) -> Any:
    return tf.map_fn(lambda value: tf.sin(value) * weights[0, 0], x[:, 0])


def scanned(x: Any, weights: Any) -> Any:
    return tf.scan(lambda state, row: tf.tanh(row @ weights + state), tf.stack([x, 2 * x, x]))


def nested(x: Any, weights: Any) -> Any:
    def outer(i: Any, value: Any) -> Any:
        def inner(j: Any, value: Any) -> Any:
            return j + 1, tf.tanh(value @ weights)

        return i + 1, tf.while_loop(lambda j, _: j < 2, inner, (0, value))[1] + x

    return tf.while_loop(lambda i, _: i < 3, outer, (0, x))[1]


def branched(x: Any, weights: Any) -> Any:
    def iteration(i: Any, value: Any) -> Any:
        odd = tf.equal(i % 2, 1)
        return i + 1, tf.cond(odd, lambda: tf.tanh(value @ weights), lambda: 0.5 * value + x)

    return tf.while_loop(lambda i, _: i < 4, iteration, (0, x))[1]


FUNCTIONS = [mapped, mapped_scalars, scanned, nested, branched]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_joined_loop_matches_a_loop_on_each_replica(
    function: Callable[..., Any], analyzed: list[Analysis]
) -> None:
    both(lambda x: function(x, tf.constant(WEIGHTS)), per_replica(3, 5))
    assert "While" in flows(analyzed)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_through_a_loop(function: Callable[..., Any], analyzed: list[Analysis]) -> None:
    def step(x: Any) -> Any:
        weights = tf.constant(WEIGHTS)
        with tf.GradientTape() as tape:
            tape.watch([x, weights])
            loss = tf.reduce_sum(function(x, weights) ** 2)
        dx, summed = tape.gradient(loss, [x, weights])
        return dx, all_reduce(summed), loss

    both(step, per_replica(3, 5))
    assert flows(analyzed).count("While") >= 2


def centred(x: Any, weights: Any) -> Any:
    for _ in tf.range(3):
        x = tf.tanh(x @ weights)
        x -= all_reduce(tf.reduce_mean(x), MEAN)
    return x


def summed_each_turn(x: Any, weights: Any) -> Any:
    total = tf.zeros([5])
    for i in tf.range(4):
        total += all_reduce(tf.reduce_sum(tf.cast(i, tf.float32) * x @ weights, 0))
    return total


def until_all_agree(x: Any, weights: Any) -> Any:
    while all_reduce(tf.reduce_max(tf.abs(x))) > 0.5:
        x = 0.1 * tf.sin(x @ weights)
    return x


def gathered_in_a_loop(x: Any, weights: Any) -> Any:
    for _ in tf.range(2):
        every = tf.distribute.get_replica_context().all_gather(x, axis=0)
        x = x @ weights + tf.reduce_mean(every, 0)
    return x


def in_groups(x: Any, weights: Any) -> Any:
    for _ in tf.range(2):
        x = tf.tanh(tpu_ops.cross_replica_sum(x, [[0, 1], [2, 3]]) @ weights)
    return x


def handed_around(x: Any, weights: Any) -> Any:
    for _ in tf.range(3):
        ring = [[k, (k + 1) % REPLICAS] for k in range(REPLICAS)]
        x = tf.tanh(tpu_ops.collective_permute(x, ring) @ weights)
    return x


def nested_collectives(x: Any, weights: Any) -> Any:
    for _ in tf.range(2):
        for _ in tf.range(2):
            x = tf.tanh(x @ weights) + all_reduce(tf.reduce_sum(x))
        x *= 0.5
    return x


def branch_with_collective(x: Any, weights: Any) -> Any:
    for i in tf.range(4):
        x @= weights
        if i % 2 == 0:
            x = tf.tanh(x) - all_reduce(x, MEAN)
    return x


WITH_COLLECTIVES = [
    centred,
    summed_each_turn,
    until_all_agree,
    gathered_in_a_loop,
    in_groups,
    handed_around,
    nested_collectives,
    branch_with_collective,
]


@pytest.mark.parametrize("function", WITH_COLLECTIVES)
def test_a_joined_loop_with_collectives(
    function: Callable[..., Any], analyzed: list[Analysis]
) -> None:
    both(lambda x: function(x, tf.constant(WEIGHTS)), per_replica(3, 5))
    assert "While" in flows(analyzed)


@pytest.mark.parametrize("function", WITH_COLLECTIVES)
def test_gradients_through_collectives_in_a_loop(
    function: Callable[..., Any], analyzed: list[Analysis]
) -> None:
    def step(x: Any) -> Any:
        weights = tf.constant(WEIGHTS)
        with tf.GradientTape() as tape:
            tape.watch([x, weights])
            loss = tf.reduce_sum(function(x, weights) ** 2)
        dx, summed = tape.gradient(loss, [x, weights], unconnected_gradients="zero")
        return dx, all_reduce(summed), loss

    both(step, per_replica(3, 5))
    assert function is not centred or "While" in flows(analyzed)


def test_a_loop_that_updates_a_variable_is_not_joined(analyzed: list[Analysis]) -> None:
    def step(strategy: Any) -> Any:
        v = make(strategy, 1.0)

        def function(x: Any) -> Any:
            for _ in tf.range(3):
                x = tf.tanh(x @ WEIGHTS) * v
                v.assign_add(all_reduce(tf.reduce_sum(x)))
            return x

        return run(strategy, function, each(strategy, per_replica(3, 5))), v.numpy()

    joined.both_ways(step, strict=False)
    assert "While" not in flows(analyzed)


def test_gradients_within_a_loop(analyzed: list[Analysis]) -> None:
    def iteration(i: Any, x: Any) -> Any:
        slope = gradient_of(lambda x: tf.reduce_sum(tf.tanh(x @ WEIGHTS) ** 2), x)
        return i + 1, x - 0.1 * slope

    both(lambda x: tf.while_loop(lambda i, _: i < 3, iteration, (0, x))[1], per_replica(3, 5))
    assert flows(analyzed) == ["While"]


def test_lists_that_grow_and_shrink(analyzed: list[Analysis]) -> None:
    ops = tf.raw_ops

    def step(x: Any) -> Any:
        values = ops.EmptyTensorList(
            element_shape=[3, 5], max_num_elements=9, element_dtype=x.dtype
        )

        def push(i: Any, values: Any) -> Any:
            item = x * tf.cast(i, tf.float32)
            return i + 1, ops.TensorListPushBack(input_handle=values, tensor=item)

        values = tf.while_loop(lambda i, _: i < 4, push, (0, values))[1]
        doubled = ops.AddN(inputs=[values, values])
        rest, last = ops.TensorListPopBack(
            input_handle=doubled, element_shape=[3, 5], element_dtype=x.dtype
        )
        shape = ops.TensorListElementShape(input_handle=rest, shape_type=tf.int32)
        length = ops.TensorListLength(input_handle=rest)
        like = ops.TensorListReserve(
            element_shape=shape, num_elements=length, element_dtype=x.dtype
        )
        like = ops.TensorListSetItem(input_handle=like, index=1, item=last)
        stacked = ops.TensorListStack(
            input_handle=ops.AddN(inputs=[rest, like]),
            element_shape=[3, 5],
            element_dtype=x.dtype,
            num_elements=3,
        )
        return tf.ensure_shape(stacked, [3, 3, 5]) + 0.0, length, last

    both(step, per_replica(3, 5))
    assert "While" in flows(analyzed)


def test_a_decoding_loop(analyzed: list[Analysis]) -> None:
    def step(start: Any) -> Any:
        table = tf.constant(WEIGHTS)

        def iteration(i: Any, words: Any, keys: Any) -> Any:
            query = tf.gather(table, words[:, i])
            scores = tf.einsum("btd,bd->bt", keys, query)
            visible = tf.range(4) <= i
            weights = tf.nn.softmax(tf.where(visible, scores, -1e9))
            mixed = tf.einsum("bt,btd->bd", weights, keys) + query
            word = tf.argmax(mixed @ table, axis=1, output_type=tf.int32)
            place = tf.one_hot(i + 1, 4, dtype=tf.int32)
            words = words * (1 - place) + word[:, None] * place
            return i + 1, words, keys + tf.one_hot(i, 4)[:, None] * mixed[:, None]

        words = tf.concat([start, tf.zeros([2, 3], tf.int32)], axis=1)
        return tf.while_loop(lambda i, *_: i < 3, iteration, (0, words, tf.ones([2, 4, 5])))[1]

    both(step, [np.array([[k], [k + 1]], np.int32) for k in range(REPLICAS)])
    assert "While" in flows(analyzed)


def test_a_loop_whose_end_depends_on_values_is_not_joined(analyzed: list[Analysis]) -> None:
    def step(x: Any) -> Any:
        return tf.while_loop(
            lambda i, value: tf.reduce_sum(value) < 50.0,
            lambda i, value: (i + 1, value * 2.0),
            (0, tf.abs(x)),
        )

    both(step, per_replica(3, 5))
    assert not flows(analyzed)


def test_a_branch_on_the_replica_is_not_joined(analyzed: list[Analysis]) -> None:
    both(lambda x: tf.cond(replica_id() > 1, lambda: x * 2.0, lambda: x + 1.0), per_replica(3, 5))
    assert not flows(analyzed)


def test_replicas_draw_their_own_random_numbers_in_a_loop(analyzed: list[Analysis]) -> None:
    def iteration(i: Any, value: Any) -> Any:
        drawn = tf.random.stateless_uniform([3, 5], [i, replica_id()])
        return i + 1, tf.tanh(value @ WEIGHTS + drawn) * tf.sin(value) + tf.cos(value)

    both(lambda x: tf.while_loop(lambda i, _: i < 3, iteration, (0, x))[1], per_replica(3, 5))
    assert flows(analyzed) == ["While"]


def test_a_loop_too_large_for_memory_is_not_joined(
    analyzed: list[Analysis], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_TURNS", 1e15)

    def step(x: Any) -> Any:
        return scanned(tf.tanh(x @ WEIGHTS) @ WEIGHTS, tf.constant(WEIGHTS))

    both(step, per_replica(3, 5), choice=None)  # only as much as fits in memory
    assert not flows(analyzed)
    assert any(
        "MatMul" in {node.op for node in analysis.order if node.name in analysis.plans}
        for analysis in analyzed
    )


def test_a_loop_without_iterations(analyzed: list[Analysis]) -> None:
    def step(x: Any) -> Any:
        return tf.while_loop(
            lambda i, _: i < 0, lambda i, value: (i + 1, tf.tanh(value @ WEIGHTS)), (0, x)
        )[1]

    both(step, per_replica(3, 5))
    assert flows(analyzed) == ["While"]


def test_gradients_of_gradients(analyzed: list[Analysis]) -> None:
    def step(x: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            first = gradient_of(lambda x: tf.reduce_sum(scanned(x, tf.constant(WEIGHTS)) ** 2), x)
        return first, outer.gradient(first, x)

    both(step, per_replica(5, 5))
    assert analyzed


def test_a_variable_is_written_after_a_loop_has_read_it(analyzed: list[Analysis]) -> None:
    def trained(strategy: Any) -> Any:
        weights = make(strategy, WEIGHTS)

        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                value = tf.while_loop(
                    lambda i, _: i < 3,
                    lambda i, value: (i + 1, tf.tanh(value @ weights)),
                    (0, x),
                    maximum_iterations=3,
                )[1]
                loss = tf.reduce_sum(value**2)
            weights.assign_sub(0.1 * all_reduce(tape.gradient(loss, weights)))
            return loss, weights.read_value()

        return run(strategy, step, each(strategy, per_replica(3, 5)))

    joined.both_ways(trained, strict=False)
    assert flows(analyzed).count("While") >= 2


def test_elements_whose_shapes_differ_from_the_lists(analyzed: list[Analysis]) -> None:
    def step(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, 2, element_shape=None, infer_shape=False)
        array = array.write(0, x).write(1, x[0, 0])
        return array.read(0), array.read(1)

    both(step, per_replica(3, 5))


L = keras.layers
NETWORKS = {
    "lstm": lambda: [L.LSTM(4)],
    "gru": lambda: [L.GRU(4)],
    "deep": lambda: [L.LSTM(4, return_sequences=True), L.GRU(3, reset_after=False)],
    "masked": lambda: [L.Masking(), L.LSTM(4, return_sequences=True), L.GRU(3)],
    "both ways": lambda: [L.Bidirectional(L.LSTM(4)), L.Dropout(0.0)],
    "simple": lambda: [L.SimpleRNN(4, return_sequences=True), L.GlobalAveragePooling1D()],
}


@pytest.mark.parametrize(
    "name",
    [
        "lstm",
        "masked",
        *(
            pytest.param(name, marks=THOROUGH)
            for name in NETWORKS
            if name not in {"lstm", "masked"}
        ),
    ],
)
def test_a_recurrent_network_matches_one_device(name: str, analyzed: list[Analysis]) -> None:
    def network(api: Any) -> Any:
        return sequential(api, *NETWORKS[name](), api.layers.Dense(3), shape=SERIES.shape[1:])

    x = SERIES.copy()
    x[::3, 4:] = 0.0
    data = tf.data.Dataset.from_tensor_slices((x, CLASSES)).batch(8, drop_remainder=True)
    training_case = case(network, data, None, loss=crossentropy)
    assert_trained_alike(None, strategy_of(REPLICAS), training_case)
    assert flows(analyzed).count("While") >= 2
