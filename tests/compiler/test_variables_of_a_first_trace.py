"""Variables that a first trace makes count once a core, however the program reaches them."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from support.strategies import strategy_of

from tpunb.cells.runner import CellRunner
from tpunb.compiler.compile import compile  # noqa: A004

pytestmark = pytest.mark.usefixtures("libtpu")

WIDTH = 256
KERNEL = 4 * WIDTH**2
BATCH = tf.TensorSpec([16, WIDTH])


@pytest.fixture(scope="module")
def eight() -> Any:
    return strategy_of("v5e-8")


class Training:
    """A model with an optimizer that has made no variables yet.

    Attributes:
        model: One layer.
        optimizer: Adam, with two slots for each variable.
        made: The slots of an optimizer of the user's own.
    """

    def __init__(self, strategy: Any, kind: Any = keras) -> None:
        with strategy.scope():
            layers = kind.layers
            self.model = kind.Sequential(
                [layers.InputLayer((WIDTH,)), layers.Dense(WIDTH, use_bias=False)]
            )
            self.model.compile(kind.optimizers.Adam(), "mse")
        self.optimizer = self.model.optimizer
        self.made: list[Any] = []

    def step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.model(x))
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def own_step(self, x: Any) -> Any:
        """Two slots, made by hand where they are first needed."""
        variable = self.model.trainable_variables[0]
        if not self.made:
            self.made += [tf.Variable(tf.zeros([WIDTH, WIDTH])) for _ in range(2)]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.model(x))
        gradient = tape.gradient(loss, variable)
        for slot in self.made:
            slot.assign_add(gradient)
        return loss


APPLIED = """
with tf.GradientTape() as tape:
    loss = tf.reduce_mean({model}(x))
variables = {model}.trainable_variables
{optimizer}.apply_gradients(zip(tape.gradient(loss, variables), variables))
"""


def closure(training: Training) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        return training.step(x)

    return step


WAYS: dict[str, tuple[str, Callable[[Training], Any]]] = {
    "attribute": (APPLIED.format(model="it", optimizer="it.optimizer"), lambda one: one.model),
    "dict": (
        APPLIED.format(model="it['model']", optimizer="it['optimizer']"),
        lambda one: {"model": one.model, "optimizer": one.optimizer},
    ),
    "object": ("loss = it.step(x)", lambda one: one),
    "closure": ("loss = it(x)", closure),
    "tf.function": ("loss = it(x)", lambda one: tf.function(one.step)),
    "module": ("loss = it.step(x)", lambda one: types.SimpleNamespace(step=one.step)),
    "train_step": ("logs = it.train_step((x, x))", lambda one: one.model),
    "made by hand": ("loss = it.own_step(x)", lambda one: one),
}


@pytest.mark.parametrize("way", WAYS)
def test_of_a_cell(eight: Any, way: str) -> None:
    cell, reach = WAYS[way]
    names = {"tf": tf, "x": tf.ones([16, WIDTH]), "it": reach(Training(eight))}
    program = CellRunner(eight).compile(cell, names)
    # The kernel and its slots, and numbers such as the count of steps.
    assert 3 * KERNEL <= program.memory.variables < 3.1 * KERNEL  # type: ignore[union-attr]
    assert not any("strategy.run" in note for note in program.notes)


def test_the_answer_is_the_same_when_they_exist(eight: Any) -> None:
    names = {"x": tf.ones([16, WIDTH]), "it": Training(eight)}
    runner, cell = CellRunner(eight), "loss = it.step(x)"
    first = runner.compile(cell, names).memory
    assert runner.run(cell, names)
    again = runner.compile(cell, names).memory
    assert first is not None
    assert again is not None
    assert (first.peak, first.variables) == (again.peak, again.variables)


def test_of_two_optimizers_and_of_tf_keras(eight: Any) -> None:
    tf_keras = pytest.importorskip("tf_keras")
    names = {
        "x": tf.ones([16, WIDTH]),
        "one": Training(eight),
        "other": Training(eight, tf_keras),
    }
    memory = CellRunner(eight).compile("a, b = one.step(x), other.step(x)", names).memory
    assert 6 * KERNEL <= memory.variables < 6.1 * KERNEL  # type: ignore[union-attr]


def test_of_functions(eight: Any) -> None:
    def called(training: Training) -> Any:
        @tf.function
        def call(x: Any) -> Any:
            return eight.run(training.step, args=(x,))

        return call

    def nested(training: Training) -> Any:
        inner = called(training)

        @tf.function
        def train(x: Any) -> Any:
            for _ in tf.range(3):
                inner(x)
            return inner(x)

        return train

    for make in (closure, lambda one: tf.function(one.step), called, nested):
        memory = compile(make(Training(eight)), BATCH, strategy=eight).memory
        assert 3 * KERNEL <= memory.variables < 3.1 * KERNEL  # type: ignore[union-attr]


def test_of_a_caller_once_for_each_run(eight: Any) -> None:
    training = Training(eight)

    def twice(x: Any) -> Any:
        return eight.run(training.step, args=(x,)), eight.run(training.step, args=(x,))

    program = compile(twice, BATCH, strategy=eight)
    assert any("2 times" in note for note in program.notes)
    assert 3 * KERNEL <= program.memory.variables < 3.1 * KERNEL  # type: ignore[union-attr]
