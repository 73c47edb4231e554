"""Batches of unknown size: replicas join their work on parts of the usual size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from support.joined import both_ways
from support.keras_models import assert_trained_alike, case, keras, sequential
from support.strategies import all_reduce, gradient_of, local, strategy_of
from support.tiers import THOROUGH, thorough, thorough_except

from tpunb._util import internal_errors
from tpunb.tensorflow.virtual import replica_call
from tpunb.tensorflow.virtual.replicate import joining
from tpunb.tensorflow.virtual.replicate.batch_parts import BatchParts
from tpunb.tensorflow.virtual.replicate.registration import PreparedCall

REPLICAS, FEATURES, USUAL = 4, 5, 7
WEIGHTS = np.random.default_rng(3).normal(size=[FEATURES, 6]).astype(np.float32)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[PreparedCall | None]:
    """The functions written for parts of the usual size; even cheap operations are joined."""
    monkeypatch.setattr(joining, "_CONVERSION", 0.0)
    monkeypatch.setattr(joining, "_BYTES", 1e9)
    return observed(monkeypatch)


def observed(monkeypatch: pytest.MonkeyPatch) -> list[PreparedCall | None]:
    """The functions written for parts of the usual size."""
    functions: list[PreparedCall | None] = []
    write = replica_call._Call._written_for_usual_size

    def writing(*args: Any) -> PreparedCall | None:
        functions.append(write(*args))
        return functions[-1]

    monkeypatch.setattr(replica_call._Call, "_written_for_usual_size", writing)
    return functions


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=[count, FEATURES]).astype(np.float32)


def caller(
    strategy: Any, function: Callable[[Any], Any], usual: int | None = USUAL
) -> Callable[[Sequence[int]], list[Any]]:
    """Make a call with parts of given sizes; the replica function is traced only once."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, FEATURES]),
            tf.TensorSpec([strategy.num_replicas_in_sync], tf.int32),
        ]
    )
    def call(whole: tf.Tensor, sizes: tf.Tensor) -> Any:
        parts = BatchParts(whole, sizes, range(strategy.num_replicas_in_sync), usual)
        return strategy.run(function, args=(parts,))

    return lambda sizes: local(strategy, call(rows(sum(sizes)), sizes))


EQUAL = [[size] * REPLICAS for size in (USUAL, 2, 128, USUAL)]
OTHERS = [[1] * REPLICAS, [0] * REPLICAS, [7, 7, 7, 1], [2, 2, 0, 0], [1, 13, 7, 7]]


def size_of(x: Any) -> Any:
    return tf.shape(x)[0]


def some_of(x: Any) -> Any:
    """A number that is 0 for most sizes, but not for the sizes in these tests."""
    return tf.maximum(size_of(x) - 97, 0) * tf.maximum(130 - size_of(x), 0)


def gradient(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A replica function with the gradient of a function of non-square matrices."""

    def replica(x: Any) -> Any:
        x = tf.reshape(x @ WEIGHTS, [-1, 2, 3])
        return gradient_of(lambda x: tf.square(function(x)), x)

    return replica


RULES = {
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
    "square": lambda x: tf.reshape(tf.matmul(x, x, transpose_b=True), [-1]) + 1.0,
    "cut off": lambda x: x[:100] * 2.0,
    "half": lambda x: x[: size_of(x) // 2] * 2.0,
    "rest": lambda x: tf.cast(size_of(x) % 3, tf.float32) * x,
    "at least": lambda x: x * tf.cast(tf.maximum(size_of(x), 90), tf.float32),
    "some more": lambda x: tf.nn.relu(tf.concat([x, tf.zeros([some_of(x), FEATURES])], 0)),
    "two parts": lambda x: tf.nn.relu(tf.concat([x[:100], *[x[2766:]] * 3], 0) @ WEIGHTS),
    "chosen": lambda x: tf.nn.relu(tf.boolean_mask(x * 2.0, x[:, 0] > 0.0) @ WEIGHTS),
}
"""Functions that can be partly joined if the size is known."""

OWN_RULES = {
    "shapes": lambda x: [tf.shape(x), size_of(x), tf.size(x), tf.size(x, tf.int64)],
    "random": lambda x: x * 0.0 + tf.cast(tf.shape(tf.random.uniform(tf.shape(x))), tf.float32)[0],
}


def compare(function: Callable[[Any], Any], sizes: Sequence[Sequence[int]]) -> None:
    """Compare a function's results on parts of unknown size, joined and not joined."""

    def results(strategy: Any) -> Any:
        call = caller(strategy, function)
        return [call(parts) for parts in sizes]

    both_ways(results, strict=False)


QUICK = {
    "products", "means", "rows", "turned", "added", "trace", "square", "half", "at least", "chosen",
}  # fmt: skip


@pytest.mark.parametrize("name", thorough_except(QUICK, RULES))
def test_parts_of_the_usual_size_are_joined(name: str, joined: list[PreparedCall | None]) -> None:
    # A slice without its first row has rows for all sizes except 1.
    others = [sizes for sizes in OTHERS if name != "means" and min(sizes)]
    compare(RULES[name], [*EQUAL, *others])
    assert [bool(function and function.expansion.joined) for function in joined] == [True, False]


@pytest.mark.parametrize("name", OWN_RULES)
def test_other_functions_give_the_same_numbers(name: str) -> None:
    compare(OWN_RULES[name], [*EQUAL, *(sizes for sizes in OTHERS if min(sizes))])


def test_nothing_is_joined_if_the_size_is_unknown(joined: list[PreparedCall | None]) -> None:
    call = caller(strategy_of(REPLICAS), RULES["products"], None)
    expected = np.maximum(rows(28) @ WEIGHTS + WEIGHTS[0], 0.0)
    np.testing.assert_allclose(np.concatenate(call([7] * REPLICAS)), expected, rtol=1e-4)
    assert joined == [None]


def test_an_internal_error_only_costs_time_but_fails_under_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> None:
        raise AssertionError("A rule is broken.")

    monkeypatch.setattr(replica_call._Call, "_call_either", fails)

    def function(x: Any) -> Any:
        return tf.nn.relu(x @ WEIGHTS) @ WEIGHTS.T

    with pytest.raises(AssertionError, match="A rule is broken"):
        caller(strategy_of(REPLICAS), function)([3] * REPLICAS)
    monkeypatch.delenv(internal_errors.VARIABLE)
    call = caller(strategy_of(REPLICAS), function)
    expected = np.maximum(rows(12) @ WEIGHTS, 0.0) @ WEIGHTS.T
    np.testing.assert_allclose(np.concatenate(call([3] * REPLICAS)), expected, rtol=1e-4)


def test_parts_without_rows() -> None:
    compare(RULES["products"], OTHERS)


def test_values_too_large_for_memory_are_not_joined(
    joined: list[PreparedCall | None],
) -> None:
    assert strategy_of(REPLICAS)._extended._options.joined  # a part of the machine's memory
    for usual in (9, 300):
        strategy = strategy_of(REPLICAS)
        object.__setattr__(strategy._extended._options, "joined", 4 * 4 * FEATURES * REPLICAS * 10)
        call = caller(strategy, lambda x: tf.nn.relu(x * 2.0), usual)
        whole = rows(REPLICAS * usual).reshape([REPLICAS, usual, FEATURES])
        np.testing.assert_allclose(call([usual] * REPLICAS), np.maximum(whole * 2.0, 0.0))
    assert [bool(function and function.expansion.joined) for function in joined] == [True, False]


@pytest.mark.parametrize("usual", [7, 3])
def test_functions_for_a_single_size(usual: int) -> None:
    def function(x: Any) -> Any:
        return x + np.ones([7, FEATURES], np.float32)

    call = caller(strategy_of(REPLICAS), function, usual)
    np.testing.assert_allclose(
        call([7] * REPLICAS), rows(28).reshape([REPLICAS, 7, FEATURES]) + 1.0
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        call([3] * REPLICAS)


def test_training_matches_one_device(joined: list[PreparedCall | None]) -> None:
    def network(api: Any) -> Any:
        layers = api.layers.Dense(8, "relu"), api.layers.Dropout(0.0), api.layers.Dense(1)
        return sequential(api, *layers, shape=(FEATURES,))

    # Six batches of 16 and one of 4.
    data = tf.data.Dataset.from_tensor_slices((rows(100), rows(100)[:, :1])).batch(16)
    training_case = case(network, data, None, optimizer="adam", metrics=["mae"])
    one_device = tf.distribute.OneDeviceStrategy("CPU:0")
    assert_trained_alike(one_device, strategy_of(REPLICAS), training_case)
    assert any(joined)


def test_variables_that_diverge_later(joined: list[PreparedCall | None]) -> None:
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


def test_branches_and_loops(joined: list[PreparedCall | None]) -> None:
    def function(x: Any) -> Any:
        positive = tf.cond(tf.reduce_sum(x) > 0.0, lambda: x * 2.0, lambda: -x)
        last = tf.while_loop(lambda k, _: k < 3, lambda k, y: (k + 1, y + x), (0, positive))[1]
        return tf.nn.relu(last @ WEIGHTS)

    compare(function, [*EQUAL[:3], [3, 3, 3, 1]])
    assert joined


def test_python_runs_once() -> None:
    traces = []

    def function(x: Any) -> Any:
        traces.append(1)
        return tf.nn.relu(x @ WEIGHTS)

    caller(strategy_of(REPLICAS), function)([USUAL] * REPLICAS)
    assert traces == [1]


def small_model(strategy: Any) -> Any:
    with strategy.scope():
        layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([FEATURES]), *layers])
        loss = keras.losses.MeanSquaredError(reduction="sum")
        model.compile(keras.optimizers.SGD(0.01), loss, metrics=["mae"])
    return model


@pytest.fixture(scope="module")
def models() -> list[Any]:
    """Models trained on batches of 16: one with joined replicas, one without."""
    models = [small_model(strategy_of(REPLICAS, joined=choice)) for choice in (True, False)]
    for model in models:
        model.fit(rows(24), rows(24)[:, :1], batch_size=16, verbose=0, shuffle=False)
    return models


@pytest.mark.filterwarnings("ignore:.*for 4 replicas")  # some replicas have no examples
class TestKerasFit:
    """Training from arrays: the dataset tells the size of all batches but the last."""

    @THOROUGH
    @given(
        batches=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 24)), min_size=1, max_size=2)
    )
    @settings(max_examples=5, deadline=None)
    def test_batches_of_other_sizes(self, models: list[Any], batches: list[Any]) -> None:
        results = []
        for model in models:
            shapes = [v.shape for v in model.weights]
            values = (np.linspace(-0.5, 0.5, math.prod(shape)) for shape in shapes)
            model.set_weights([v.reshape(s) for v, s in zip(values, shapes, strict=True)])
            numbers = []
            for count, size in [(40, 16), *batches]:
                data = rows(count), rows(count)[:, :1]
                history = model.fit(*data, batch_size=size, verbose=0, shuffle=False).history
                numbers += [history["loss"], history["mae"], model.predict(data[0], size, 0)]
            results.append([*numbers, *model.get_weights()])
        for joined, separate in zip(*results, strict=True):
            assert np.isfinite(separate).all()
            np.testing.assert_allclose(joined, separate, rtol=2e-4, atol=2e-5)

    @pytest.mark.parametrize("batch", [8, *thorough([16])])
    def test_whole_batches_are_joined(self, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Keras's own dataset of arrays tells the size of its batches."""
        monkeypatch.setattr(joining, "_CONVERSION", 0.0)
        functions = observed(monkeypatch)
        data = rows(3 * batch + 5), rows(3 * batch + 5)[:, :1]
        small_model(strategy_of(REPLICAS)).fit(*data, batch_size=batch, verbose=0)
        assert len(functions) == 1
        assert all(functions)
