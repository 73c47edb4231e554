"""A last line like `optimizer.apply_gradients(...)` returns the optimizer's step counter."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf
from support.cells import Notebook

STEP = """
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(model(x))
gradients = tape.gradient(loss, model.trainable_variables)
"""
APPLY = "optimizer.apply_gradients(zip(gradients, model.trainable_variables))"
COUNTED = {
    "keras": [APPLY, "optimizer.apply(gradients, model.trainable_variables)", f"held.{APPLY}"],
    "tf_keras": [APPLY, f"held.{APPLY}"],
}


@pytest.fixture(params=["one", "virtual"])
def book(request: pytest.FixtureRequest) -> Iterator[Notebook]:
    book = Notebook(request.param)
    book.names["x"] = tf.ones([4, 2])
    yield book
    book.runner.close()


def add_model(book: Notebook, library: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keras = importlib.import_module(library)
    with book.strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.build((None, 2))
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    holder = type("Holder", (), {})()
    holder.optimizer = optimizer
    book.names.update(model=model, optimizer=optimizer, held=holder)
    return keras


@pytest.mark.parametrize("library", COUNTED)
def test_the_counter_is_not_the_cells_value(book: Notebook, library: str) -> None:
    add_model(book, library)
    for number, line in enumerate(COUNTED[library], start=1):
        result = book.cell(f"{STEP}{line}", reduce={"loss": "mean"})
        assert result.value is None
        assert result.assigned["loss"].shape == []
        assert int(book.names["optimizer"].iterations.numpy()) == number


@pytest.mark.parametrize("library", COUNTED)
def test_a_requested_counter(book: Notebook, library: str) -> None:
    add_model(book, library)
    for line in (f"{APPLY}\noptimizer.iterations", f"count = {APPLY}\ncount", f"{APPLY}, loss"):
        assert book.cell(f"{STEP}{line}").value is not None
    if library == "tf_keras":
        assert book.cell(f"{STEP}{APPLY}", gather={}, reduce={"_": "sum"}).value is not None


@pytest.mark.parametrize("library", COUNTED)
def test_other_values_of_such_methods(book: Notebook, library: str) -> None:
    keras = add_model(book, library)

    class GradientNorm(keras.optimizers.SGD):  # type: ignore[misc, name-defined]
        def apply_gradients(self, pairs: Any) -> Any:
            pairs = list(pairs)
            super().apply_gradients(pairs)
            return tf.linalg.global_norm([gradient for gradient, _ in pairs])

    class CountingLayer:
        iterations = tf.constant(3, tf.int64)

        def apply(self, value: Any) -> Any:
            return tf.cast(value, tf.int64)

    with book.strategy.scope():
        book.names["optimizer"] = GradientNorm(0.1)
        book.names["optimizer"].build(book.names["model"].trainable_variables)
    book.names["counts"] = CountingLayer()
    assert book.each(book.cell(f"{STEP}{APPLY}").value)[0] > 0.0
    assert book.each(book.cell("counts.apply(tf.constant(7))").value)[0] == 7


def test_many_steps(book: Notebook) -> None:
    add_model(book, "keras")
    run = book.runner.steps(f"{STEP}{APPLY}", book.names, steps=7, steps_per_loop=3, plot=["loss"])
    run.go()
    assert (run.value, run.done) == (None, 7)
