"""A cell that gives the copies of a variable different values warns at its line."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf
from support.tiers import thorough

import tpunb
from tpunb.errors import TpuWarning
from tpunb.tensorflow.cells.cell_variables import plain_variable

LOCAL = "local = tf.cast(replica_id, tf.float32)\n"
SYNCHRONIZATION, AGGREGATION = tf.VariableSynchronization, tf.VariableAggregation


@pytest.fixture
def connected() -> Iterator[tuple[Any, dict[str, Any]]]:
    with tpunb.connect(simulate=2) as connection:
        with connection.strategy.scope():
            names = {
                "counter": tf.Variable(1.0, trainable=False),
                "generator": keras.random.SeedGenerator(1),
                "numbers": tf.random.Generator.from_seed(1),
                "metric": keras.metrics.Mean(),
                "weights": tf.Variable(1.0),
                "own": tf.Variable(1.0, synchronization=SYNCHRONIZATION.ON_READ),
                "mean": tf.Variable(1.0, aggregation=AGGREGATION.MEAN),
                "kept": keras.Variable(1.0),
            }
        yield connection, {"tf": tf, "keras": keras, **names}


def warnings_of(connected: Any, text: str, **options: Any) -> list[tuple[str, int]]:
    """Return the warnings of a cell, each with its line."""
    connection, names = connected
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        connection.run_cell(text, names, **options)
    return [(str(each.message), each.lineno) for each in caught if each.category is TpuWarning]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("weights.assign_sub(local)", 3),
        ("if local > 0.0:\n  weights.assign(5.0)", 4),
        ("for _ in tf.range(3):\n  weights.assign_add(local)", 4),
        ("f()", 3),
        ("weights.assign(ctx.all_reduce('sum', local))\nweights.assign(local)", 4),
    ],
)
def test_the_warning_names_the_variable_and_the_line(connected: Any, text: str, line: int) -> None:
    exec("def f(): weights.assign_add(g())\ndef g(): "
         "return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)",
         connected[1])  # fmt: skip
    ((said, number),) = warnings_of(connected, LOCAL + text)
    assert said.startswith("The copies of `weights` now differ")
    assert number == line
    assert warnings_of(connected, LOCAL + text) == []


TRAINING = """
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(tf.square(model(x, training=True)))
gradients = tape.gradient(loss, model.trainable_variables)
optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""


@pytest.mark.parametrize("library", ["keras", *thorough(["tf_keras"])])
def test_the_statistics_of_batch_normalization_rightly_differ(connected: Any, library: str) -> None:
    connection, names = connected
    layers = (chosen := importlib.import_module(library)).layers
    with connection.strategy.scope():
        model = chosen.Sequential(
            [layers.InputLayer((3,)), layers.BatchNormalization(), layers.Dense(1)]
        )
        names["model"], names["optimizer"] = model, chosen.optimizers.Adam()
    batch = LOCAL + "x = tf.random.stateless_normal([4, 3], [replica_id, 0])\n"
    assert warnings_of(connected, batch + TRAINING) == []
    means = plain_variable(model.layers[0].moving_mean)
    copies = [copy.numpy() for copy in means.values]
    assert (copies[0] != copies[1]).any()
    ((said, number),) = warnings_of(
        connected, batch + "model.layers[1].kernel.assign_add(x[:3,:1])"
    )
    assert ("kernel` now differ" in said, number) == (True, 4)


def test_a_counter_that_is_not_trained(connected: Any) -> None:
    ((said, number),) = warnings_of(connected, LOCAL + "counter.assign_add(local)")
    assert ("`counter`" in said, number) == (True, 3)


def test_a_loop_of_steps_warns_at_its_end(connected: Any) -> None:
    ((said, number),) = warnings_of(connected, LOCAL + "weights.assign_add(local)", steps=3)
    assert (said[:24], number) == ("The copies of `weights` ", 3)


def test_a_variable_of_keras(connected: Any) -> None:
    ((said, _),) = warnings_of(connected, LOCAL + "kept.assign(local)")
    assert "`kept`" in said


@pytest.mark.parametrize(
    "text",
    [
        "own.assign_add(local)",
        "mean.assign(local)",
        "weights.assign_sub(ctx.all_reduce('mean', local))",
        "weights.assign_sub(local * 0.0)",
        "y = weights + local",
        "metric.update_state(local)",
        "numbers.normal([2])",
        "if replica_id > 0:\n  keras.random.normal([2], seed=generator)",
    ],
)
def test_copies_that_stay_equal_are_not_mentioned(connected: Any, text: str) -> None:
    assert warnings_of(connected, LOCAL + text) == []


def test_values_that_differ_only_later(connected: Any) -> None:
    connected[1]["scale"] = tf.constant(0.0)
    text = LOCAL + "weights.assign_sub(local * scale)"
    assert warnings_of(connected, text) == []
    connected[1]["scale"] = tf.constant(1.0)
    assert len(warnings_of(connected, text)) == 1
