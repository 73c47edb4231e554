"""Ordinary errors of TensorFlow and Keras, provoked by real code: none has an explanation."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.strategies import run, strategy_of

from tpunb.errors.explain import explain


def dense() -> Any:
    return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])


def undefined_after_a_branch() -> Any:
    @tf.function
    def step(x: Any) -> Any:
        if x > 0:
            y = x
        return y

    return step(tf.constant(1.0))


def a_loop_that_changes_a_shape() -> Any:
    @tf.function
    def step(x: Any) -> Any:
        while tf.reduce_sum(x) < 10.0:
            x = tf.concat([x, x], 0)
        return x

    return step(tf.ones([2]))


def branches_of_two_types() -> Any:
    @tf.function
    def step(x: Any) -> Any:
        return tf.constant(1) if x > 0 else tf.constant(1.0)

    return step(tf.constant(1.0))


def a_tensor_as_a_bool() -> Any:
    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        return x if x > 0 else -x

    return step(tf.constant(1.0))


def numpy_in_a_graph() -> Any:
    return tf.function(lambda x: x.numpy())(tf.constant(1.0))


def a_tensor_out_of_its_graph() -> Any:
    tensors = []

    @tf.function
    def step(x: Any) -> None:
        tensors.append(x + 1)

    step(tf.constant(1.0))
    return tensors[0] + 1


def at_run_time(function: Callable[[Any], Any], value: Any) -> Callable[[], Any]:
    return lambda: tf.function(function)(tf.constant(value))


def compiled(function: Callable[[Any], Any], value: Any) -> Callable[[], Any]:
    return lambda: tf.function(function, jit_compile=True)(tf.constant(value))


def a_dataset_that_fails() -> Any:
    dataset = tf.data.Dataset.range(3).map(lambda x: tf.debugging.check_numerics(1 / x, "bad"))
    return list(dataset)


def a_generator_that_fails() -> Any:
    def numbers() -> Any:
        yield 1
        raise KeyError("loss")

    return list(
        tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], "int32"))
    )


def a_placeholder_without_a_value() -> Any:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(tf.compat.v1.placeholder(tf.float32, []) + 1)


def an_uninitialised_variable() -> Any:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(tf.compat.v1.get_variable("v", []))


def unequal_rows() -> Any:
    return dense().fit(np.ones((4, 3)), np.ones((3, 1)), verbose=0)


def not_compiled() -> Any:
    return dense().fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)


def a_wrong_loss() -> Any:
    model = dense()
    model.compile("adam", "squares")
    return model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)


def a_record_that_is_cut() -> Any:
    return list(tf.data.TFRecordDataset(__file__))


def key_error() -> Any:
    return {"accuracy": 1}["loss"]


def index_error() -> Any:
    return np.zeros([0])[0]


def assertion() -> Any:
    raise AssertionError


ORDINARY: list[Callable[[], Any]] = [
    lambda: tf.matmul(tf.ones([2, 3]), tf.ones([2, 3])),
    at_run_time(lambda x: tf.matmul(x, x), [[1.0, 2.0]]),
    lambda: tf.ones([2]) + tf.ones([3]),
    lambda: tf.constant(1) + tf.constant(1.0),
    lambda: tf.reshape(tf.ones([4]), [3]),
    lambda: tf.gather([1, 2], 5),
    lambda: tf.concat([tf.ones([1, 2]), tf.ones([2, 3])], 0),
    lambda: tf.stack([tf.ones([1]), tf.ones([2])]),
    lambda: tf.reduce_sum(tf.constant(1.0), axis=0),
    at_run_time(lambda x: tf.reduce_sum(x, axis=0), 1.0),
    compiled(lambda x: tf.reduce_sum(x, axis=3), [1.0]),
    lambda: tf.debugging.check_numerics(tf.constant(np.nan), "loss"),
    at_run_time(lambda x: tf.debugging.check_numerics(1 / x, "bad"), 0.0),
    at_run_time(lambda x: tf.debugging.assert_less(x, 0.0, "not less"), 1.0),
    lambda: tf.cast("a", tf.float32),
    lambda: tf.strings.to_number("a"),
    lambda: tf.constant([[1, 2], [3]]),
    lambda: tf.Variable([1.0]).assign([1.0, 2.0]),
    lambda: tf.zeros([-1]),
    lambda: tf.nn.conv2d(tf.ones([1, 2, 2, 3]), tf.ones([1, 1, 4, 1]), 1, "SAME"),
    lambda: tf.one_hot([1], depth=-2),
    lambda: tf.io.read_file("/nothing/of/this/name"),
    lambda: tf.io.decode_png(b"no picture"),
    lambda: tf.train.load_checkpoint("/nothing/of/this/name"),
    lambda: tf.train.Checkpoint().restore("/nothing/of/this/name"),
    lambda: tf.saved_model.load("/nothing/of/this/name"),
    lambda: keras.models.load_model("/nothing/of/this/name.keras"),
    lambda: tf.nothing,  # type: ignore[attr-defined]
    lambda: tf.constant(1.0).numbers(),
    lambda: tf.data.Dataset.from_tensor_slices(([1, 2], [1, 2, 3])),
    lambda: tf.function(lambda x: x, input_signature=[tf.TensorSpec([2])])(tf.ones([3])),
    lambda: dense()(tf.ones([2, 4])),
    lambda: keras.layers.Dense(1, activation="loud"),
    lambda: keras.optimizers.get("quick"),
    undefined_after_a_branch,
    a_loop_that_changes_a_shape,
    branches_of_two_types,
    a_tensor_as_a_bool,
    numpy_in_a_graph,
    a_tensor_out_of_its_graph,
    a_dataset_that_fails,
    a_generator_that_fails,
    a_placeholder_without_a_value,
    an_uninitialised_variable,
    unequal_rows,
    not_compiled,
    a_wrong_loss,
    a_record_that_is_cut,
    key_error,
    index_error,
    assertion,
]


def refuse_to_explain(function: Callable[[], Any]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever TensorFlow makes of it
        function()
    assert explain(caught.value) is None, caught.value
    pasted = "".join(traceback.format_exception(caught.value))
    assert explain(pasted) is None, pasted


@pytest.mark.parametrize("function", ORDINARY)
def test_ordinary_errors_are_not_explained(function: Callable[[], Any]) -> None:
    refuse_to_explain(function)


def unknown_key(x: Any) -> Any:
    return {"a": x}["b"]


def wrong_shapes(x: Any) -> Any:
    return x + tf.ones([7])


def not_finite(x: Any) -> Any:
    return tf.debugging.check_numerics(x / 0.0, "loss")


def false(x: Any) -> Any:
    assert x is None
    return x


def no_elements(x: Any) -> Any:
    return np.zeros([0])[0] + x


def scalar_along_an_axis(x: Any) -> Any:
    return tf.reduce_sum(tf.reduce_sum(x), axis=0)


@pytest.mark.parametrize(
    "replica",
    [unknown_key, wrong_shapes, not_finite, false, no_elements, scalar_along_an_axis],
)
def test_on_replicas(replica: Callable[[Any], Any]) -> None:
    refuse_to_explain(lambda: run(strategy_of(2), replica, tf.ones([2])))
