"""Loops of which the graph says that a TPU compiles them; of the others the compiler says it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from support.keras_models import keras

from tpunb.virtual.graph.traced_function import traced_function_of
from tpunb.virtual.strict import examination
from tpunb.virtual.strict.known_ops import compiles_for_certain
from tpunb.virtual.strict.traced_anew import traced_anew

L = keras.layers


def verdicts(function: Callable[..., Any], *shapes: list[Any]) -> tuple[bool, list[str]]:
    """Whether the graph says that a function compiles, and what the compiler finds."""
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    traced = traced_function_of(tf.function(function).get_concrete_function(*specs))
    found = examination.examine(traced).problems
    return compiles_for_certain(traced), [one.code for one in found]


def trained(*layers: Any) -> Callable[..., Any]:
    """The gradients of a network."""
    model = keras.Sequential([keras.Input((6, 3)), *layers])

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    return step


def turned(
    turn: Callable[..., Any], most: int | None = 3, gradient: bool = False
) -> Callable[..., Any]:
    """A loop of three turns."""

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            given = (tf.constant(0), x)
            value = tf.while_loop(
                lambda i, _: i < 3, lambda i, v: (i + 1, turn(i, v)), given, maximum_iterations=most
            )[1]
        return tape.gradient(value, x) if gradient else value

    return step


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [L.LSTM(4)],
        lambda: [L.GRU(4)],
        lambda: [L.SimpleRNN(4, return_sequences=True)],
    ],
    ids=["LSTM", "GRU", "sequences"],
)
def test_a_recurrent_network_compiles(layers: Callable[[], list[Any]]) -> None:
    assert verdicts(trained(*layers()), [2, 6, 3]) == (True, [])


@pytest.mark.parametrize("layer", [L.LSTM, L.GRU, L.SimpleRNN])
def test_what_comes_before_a_recurrent_layer_is_trained_too(layer: Any) -> None:
    step = trained(L.Dense(3), L.Bidirectional(layer(4, return_sequences=True)), layer(4))

    def as_in_a_replica(x: Any) -> Any:
        with traced_anew():
            return step(x)

    assert verdicts(as_in_a_replica, [2, 6, 3]) == (True, [])


@pytest.mark.parametrize("layer", [L.LSTM, L.GRU, L.SimpleRNN])
def test_a_recurrent_layer_compiles_for_batches_of_any_size(layer: Any) -> None:
    layers = [L.Bidirectional(layer(4, return_sequences=True)), layer(4, dropout=0.1)]
    model = keras.Sequential([keras.Input((6, 3)), *layers])
    assert verdicts(lambda x: model(x, training=False), [None, 6, 3]) == (True, [])


def test_a_loop_that_reads_what_nothing_has_written_is_not_known() -> None:
    def step(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, 3, element_shape=[None, 3])

        def body(i: Any, array: Any, total: Any) -> Any:
            return i + 1, array.write(i, x + tf.ensure_shape(array.read(i), [8, 3])), total

        return tf.while_loop(lambda i, *_: i < 3, body, (0, array, 0.0))[2]

    specs = [tf.TensorSpec([None, 3])]
    traced = traced_function_of(tf.function(step).get_concrete_function(*specs))
    assert not compiles_for_certain(traced)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_loop_of_known_turns_compiles(gradient: bool) -> None:
    assert verdicts(turned(lambda i, v: tf.tanh(v) * 2.0, 3, gradient), [2, 3]) == (True, [])


def sliced(i: Any, value: Any) -> Any:
    return tf.ensure_shape(tf.concat([value[: i + 1], value[i + 1 :]], 0), [2, 3])


def written(i: Any, value: Any) -> Any:
    array = tf.TensorArray(tf.float32, 2, element_shape=None, infer_shape=False)
    array = array.write(0, value).write(1, value[0])
    whole, row = array.read(0), array.read(1)
    return tf.ensure_shape(whole, [2, 3]) * tf.ensure_shape(row, [3])


def ranged(i: Any, value: Any) -> Any:
    return value + tf.reduce_sum(tf.cast(tf.range(i), tf.float32))


def decoded(i: Any, value: Any) -> Any:
    return value + tf.strings.to_number(tf.strings.as_string(value))


def growing(x: Any) -> Any:
    return tf.while_loop(
        lambda v: tf.shape(v)[0] < 20,
        lambda v: tf.concat([v, v], 0),
        [x],
        shape_invariants=[tf.TensorShape([None, 3])],
    )


@pytest.mark.parametrize(
    "function",
    [
        *map(turned, [sliced, written, ranged, decoded]),
        turned(lambda i, v: tf.tanh(v), None, gradient=True),
        growing,
    ],
    ids=["sliced", "written", "ranged", "decoded", "endless", "growing"],
)
def test_of_any_other_loop_the_compiler_is_asked(function: Callable[..., Any]) -> None:
    sure, found = verdicts(function, [2, 3])
    assert not sure
    assert found
