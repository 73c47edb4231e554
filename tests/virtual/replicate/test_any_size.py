"""Batches of unknown size: what replicas do with equal parts is joined, whatever the size is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.keras_models import keras
from support.strategies import local, strategy_of

from tpunb.virtual.batch_parts import BatchParts
from tpunb.virtual.replicate import any_size, joining
from tpunb.virtual.replicate.expand import Expansion

REPLICAS, FEATURES = 4, 5
SUM = tf.distribute.ReduceOp.SUM
WEIGHTS = np.random.default_rng(3).normal(size=[FEATURES, 6]).astype(np.float32)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[Expansion]:
    """What is written for batches of any size; nothing is too cheap to be joined."""
    found: list[Expansion] = []
    expand = any_size.FunctionOfAnySize.expand

    def observed(*args: Any, **kwargs: Any) -> Expansion:
        found.append(expand(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(joining, "_CONVERSION", 0.0)
    monkeypatch.setattr(joining, "_BYTES", 1e9)
    monkeypatch.setattr(any_size.FunctionOfAnySize, "expand", observed)
    return found


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=[count, FEATURES]).astype(np.float32)


def caller(strategy: Any, function: Callable[[Any], Any]) -> Callable[[Sequence[int]], list[Any]]:
    """Calls a replica function with parts of some sizes; it is traced once for all."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, FEATURES]),
            tf.TensorSpec([strategy.num_replicas_in_sync], tf.int32),
        ]
    )
    def call(whole: tf.Tensor, sizes: tf.Tensor) -> Any:
        parts = BatchParts(whole, sizes, range(strategy.num_replicas_in_sync))
        return strategy.run(function, args=(parts,))

    return lambda sizes: local(strategy, call(rows(sum(sizes)), sizes))


EQUAL = [[size] * REPLICAS for size in (2, 3, 7, 60, 100, 101, 128)]
OTHERS = [[1] * REPLICAS, [0] * REPLICAS, [3, 3, 3, 1], [2, 2, 0, 0]]


def all_reduce(value: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce(SUM, value)


def size_of(x: Any) -> Any:
    return tf.shape(x)[0]


def some_of(x: Any) -> Any:
    """A number that is 0 for most sizes, and for each that is tried."""
    return tf.maximum(size_of(x) - 97, 0) * tf.maximum(130 - size_of(x), 0)


def gradient(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A replica function that gives the gradient of another one of matrices that are not square."""

    def replica(x: Any) -> Any:
        x = tf.reshape(x @ WEIGHTS, [-1, 2, 3])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.square(function(x))
        return tape.gradient(y, x)

    return replica


SHARED_RULES = {
    "products": lambda x: tf.nn.relu(x @ WEIGHTS + WEIGHTS[0]),
    "means": lambda x: [tf.reduce_mean(x, 0), tf.reduce_mean(x), all_reduce(tf.reduce_sum(x, 0))],
    "flat": lambda x: tf.reshape(x, [-1]) * 2.0,
    "rows": lambda x: tf.reshape(tf.tile(x, [1, 4]), [2 * size_of(x), 2 * FEATURES]) + 1.0,
    "broadcast": lambda x: tf.broadcast_to(x[:1], tf.shape(x)) - x,
    "less one": lambda x: x[1:] * x[:-1],
    "turned": lambda x: tf.transpose(x) * 2.0,
    "added": lambda x: tf.concat([x, tf.zeros([3, FEATURES])], 0) + 1.0,
    "filled": lambda x: tf.fill([size_of(x), 2], 3.0) + x[:, :2],
    "scaled": lambda x: x / tf.cast(size_of(x), tf.float32),
    "trace": gradient(tf.linalg.trace),
    "diagonal": gradient(tf.linalg.diag_part),
    "on a diagonal": lambda x: tf.linalg.diag(tf.nn.relu(x @ WEIGHTS), num_rows=9),
}
"""Functions that are linear in the size, so that they are joined."""

OWN_RULES = {
    "shapes": lambda x: [tf.shape(x), size_of(x), tf.size(x), tf.size(x, tf.int64)],
    "square": lambda x: tf.reshape(tf.matmul(x, x, transpose_b=True), [-1]) + 1.0,
    "cut off": lambda x: x[:100] * 2.0,
    "half": lambda x: x[: size_of(x) // 2] * 2.0,
    "rest": lambda x: tf.cast(size_of(x) % 3, tf.float32) * x,
    "at least": lambda x: x * tf.cast(tf.maximum(size_of(x), 90), tf.float32),
    "squeezed": lambda x: tf.squeeze(x[:, :1]) + 1.0,
    "some more": lambda x: tf.nn.relu(tf.concat([x, tf.zeros([some_of(x), FEATURES])], 0)),
    "two parts": lambda x: tf.nn.relu(tf.concat([x[:100], *[x[2766:]] * 3], 0) @ WEIGHTS),
    "random": lambda x: x * 0.0 + tf.cast(tf.shape(tf.random.uniform(tf.shape(x))), tf.float32)[0],
}
"""Functions that are not, or not as a whole, or have nothing to join."""


def compare(function: Callable[[Any], Any], sizes: Sequence[Sequence[int]]) -> None:
    """Compares a function's results on parts of unknown size, joined and not."""
    calls = [caller(strategy_of(REPLICAS, joined=choice), function) for choice in (True, False)]
    for one in sizes:
        found, expected = (tf.nest.flatten(call(one)) for call in calls)
        for result, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(result, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", SHARED_RULES)
def test_what_is_linear_in_the_size_is_joined(name: str, joined: list[Expansion]) -> None:
    # A slice without its first row has rows for every size but one.
    others = [sizes for sizes in OTHERS if name != "means" and min(sizes)]
    compare(SHARED_RULES[name], [*EQUAL, *others])
    assert [one.sizes is not None for one in joined] == [True]


@pytest.mark.parametrize("name", OWN_RULES)
def test_what_is_not_gives_the_same_numbers(name: str, joined: list[Expansion]) -> None:
    compare(OWN_RULES[name], [*EQUAL, *(sizes for sizes in OTHERS if min(sizes))])
    assert len(joined) <= 1


def test_what_cannot_be_called_joined_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("No such shape.")

    monkeypatch.setattr("tpunb.virtual.replica_call.call_either", fails)
    call = caller(strategy_of(REPLICAS), lambda x: tf.nn.relu(x @ WEIGHTS) @ WEIGHTS.T)
    expected = np.maximum(rows(12) @ WEIGHTS, 0.0) @ WEIGHTS.T
    np.testing.assert_allclose(np.concatenate(call([3] * REPLICAS)), expected, rtol=1e-4)


def test_parts_of_no_rows() -> None:
    compare(SHARED_RULES["products"], OTHERS)


def test_very_large_parts(joined: list[Expansion]) -> None:
    strategy = strategy_of(2, joined=True)
    call = caller(strategy, SHARED_RULES["scaled"])
    for size in (4099, 4100, 9001):
        expected = rows(2 * size).reshape([2, size, FEATURES]) / size
        np.testing.assert_allclose(call([size, size]), expected, rtol=1e-6)
    assert [one.sizes for one in joined] == [range(2, 4100)]


def test_values_that_would_take_too_much_memory_are_not_joined(joined: list[Expansion]) -> None:
    options = strategy_of(REPLICAS)._extended._options
    assert options.joined  # a part of the machine's memory
    strategy = strategy_of(REPLICAS)
    object.__setattr__(strategy._extended._options, "joined", 4 * 4 * FEATURES * REPLICAS * 10)
    call = caller(strategy, lambda x: tf.nn.relu(x * 2.0))
    for size in (2, 9, 300):
        whole = rows(REPLICAS * size).reshape([REPLICAS, size, FEATURES])
        np.testing.assert_allclose(call([size] * REPLICAS), np.maximum(whole * 2.0, 0.0))
    assert [one.sizes for one in joined] == [range(2, 21)]


def test_functions_that_are_for_one_size_alone() -> None:
    def function(x: Any) -> Any:
        return x + np.ones([7, FEATURES], np.float32)

    call = caller(strategy_of(REPLICAS), function)
    np.testing.assert_allclose(
        call([7] * REPLICAS), rows(28).reshape([REPLICAS, 7, FEATURES]) + 1.0
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        call([3] * REPLICAS)


def test_training_is_that_of_one_device(joined: list[Expansion]) -> None:
    def trained(strategy: Any) -> list[np.ndarray]:
        with strategy.scope():
            layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.0)]
            model = keras.Sequential([keras.Input([FEATURES]), *layers, keras.layers.Dense(1)])
            model.set_weights([np.full(v.shape, 0.1, np.float32) for v in model.weights])
            model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        # Six batches of 16 and one of 4.
        data = tf.data.Dataset.from_tensor_slices((rows(100), rows(100)[:, :1])).batch(16)
        history = model.fit(data, epochs=2, verbose=0, shuffle=False)
        results = [np.array(history.history[key]) for key in ("loss", "mae")]
        return [*results, *model.get_weights()]

    found = trained(strategy_of(REPLICAS))
    expected = trained(tf.distribute.OneDeviceStrategy("CPU:0"))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)
    assert any(one.sizes is not None for one in joined)


def test_variables_that_are_set_apart_afterwards(joined: list[Expansion]) -> None:
    strategy = strategy_of(REPLICAS)
    with strategy.scope():
        v = tf.Variable(2.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    call = caller(strategy, lambda x: x * v)
    np.testing.assert_allclose(call([3] * REPLICAS), 2.0 * rows(12).reshape([4, 3, FEATURES]))
    v.values[2].assign(5.0)
    by = np.array([2.0, 2.0, 5.0, 2.0])[:, None, None]
    np.testing.assert_allclose(call([3] * REPLICAS), by * rows(12).reshape([4, 3, FEATURES]))
    parts = call([3, 3, 3, 1])
    np.testing.assert_allclose(parts[2], 5.0 * rows(10)[6:9])
    assert joined


def test_branches_and_loops(joined: list[Expansion]) -> None:
    def function(x: Any) -> Any:
        positive = tf.cond(tf.reduce_sum(x) > 0.0, lambda: x * 2.0, lambda: -x)
        last = tf.while_loop(lambda k, _: k < 3, lambda k, y: (k + 1, y + x), (0, positive))[1]
        return tf.nn.relu(last @ WEIGHTS)

    compare(function, [*EQUAL[:3], [3, 3, 3, 1]])
    assert joined


def test_sizes_to_try() -> None:
    middle, after, small, large = any_size.sample_sizes({2, 3, 60, 62, 4099})
    assert (middle, after, small, large) == (63, 64, 4, 4100)
