"""Variables that the first trace creates count once per core, however the program reaches them."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from support.strategies import strategy_of

from tpunb.compiler.compile import compile  # noqa: A004
from tpunb.tensorflow.cells.runner import CellRunner

pytestmark = pytest.mark.usefixtures("libtpu")

WIDTH = 256
KERNEL = 4 * WIDTH**2
BATCH = tf.TensorSpec([16, WIDTH])


@pytest.fixture(scope="module")
def eight() -> Any:
    return strategy_of("v5e-8")


class Training:
    """A model with an optimizer that has no variables yet.

    Attributes:
        model: One layer.
        optimizer: Adam, with two slots for each variable.
        slots: The slots of the user's own optimizer.
    """

    def __init__(self, strategy: Any, kind: Any = keras) -> None:
        with strategy.scope():
            layers = kind.layers
            self.model = kind.Sequential(
                [layers.InputLayer((WIDTH,)), layers.Dense(WIDTH, use_bias=False)]
            )
            self.model.compile(kind.optimizers.Adam(), "mse")
        self.optimizer = self.model.optimizer
        self.slots: list[Any] = []

    def step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.model(x))
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def custom_step(self, x: Any) -> Any:
        """Create two slots by hand when they are first needed."""
        variable = self.model.trainable_variables[0]
        if not self.slots:
            self.slots += [tf.Variable(tf.zeros([WIDTH, WIDTH])) for _ in range(2)]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.model(x))
        gradient = tape.gradient(loss, variable)
        for slot in self.slots:
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
    "attribute": (
        APPLIED.format(model="it", optimizer="it.optimizer"),
        lambda training: training.model,
    ),
    "dict": (
        APPLIED.format(model="it['model']", optimizer="it['optimizer']"),
        lambda training: {"model": training.model, "optimizer": training.optimizer},
    ),
    "object": ("loss = it.step(x)", lambda training: training),
    "closure": ("loss = it(x)", closure),
    "tf.function": ("loss = it(x)", lambda training: tf.function(training.step)),
    "module": ("loss = it.step(x)", lambda training: types.SimpleNamespace(step=training.step)),
    "train_step": ("logs = it.train_step((x, x))", lambda training: training.model),
    "made by hand": ("loss = it.custom_step(x)", lambda training: training),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_cell(eight: Any, way: str) -> None:
    cell, reach = WAYS[way]
    names = {"tf": tf, "x": tf.ones([16, WIDTH]), "it": reach(Training(eight))}
    program = CellRunner(eight).compile(cell, names)
    # The kernel and its slots, and scalars such as the step count.
    assert 3 * KERNEL <= program.memory.variables < 3.1 * KERNEL  # type: ignore[union-attr]
    assert not any("strategy.run" in note for note in program.notes)


def test_memory_is_the_same_once_the_variables_exist(eight: Any) -> None:
    names = {"x": tf.ones([16, WIDTH]), "it": Training(eight)}
    runner, cell = CellRunner(eight), "loss = it.step(x)"
    first = runner.compile(cell, names).memory
    assert runner.run(cell, names)
    second = runner.compile(cell, names).memory
    assert first is not None
    assert second is not None
    assert (first.peak, first.variables) == (second.peak, second.variables)


def test_two_optimizers_and_tf_keras(eight: Any) -> None:
    tf_keras = pytest.importorskip("tf_keras")
    names = {
        "x": tf.ones([16, WIDTH]),
        "one": Training(eight),
        "other": Training(eight, tf_keras),
    }
    memory = CellRunner(eight).compile("a, b = one.step(x), other.step(x)", names).memory
    assert 6 * KERNEL <= memory.variables < 6.1 * KERNEL  # type: ignore[union-attr]


def test_functions(eight: Any) -> None:
    def callers(training: Training) -> Any:
        @tf.function
        def call(x: Any) -> Any:
            return eight.run(training.step, args=(x,))

        return call

    def nested(training: Training) -> Any:
        inner = callers(training)

        @tf.function
        def train(x: Any) -> Any:
            for _ in tf.range(3):
                inner(x)
            return inner(x)

        return train

    for make in (closure, lambda training: tf.function(training.step), callers, nested):
        memory = compile(make(Training(eight)), BATCH, strategy=eight).memory
        assert 3 * KERNEL <= memory.variables < 3.1 * KERNEL  # type: ignore[union-attr]


def test_a_caller_of_several_runs(eight: Any) -> None:
    training = Training(eight)

    def twice(x: Any) -> Any:
        return eight.run(training.step, args=(x,)), eight.run(training.step, args=(x,))

    program = compile(twice, BATCH, strategy=eight)
    assert any("2 times" in note for note in program.notes)
    assert 3 * KERNEL <= program.memory.variables < 3.1 * KERNEL  # type: ignore[union-attr]
