"""LiveCurves with Keras on JAX, in a process without TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.jax_process import said_with_jax

PROGRAM = """
import os, signal, threading, warnings
import keras, numpy as np
import tpunb
from tpunb._util.interrupts import Stopped


class Means(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rows = []

    def on_train_batch_end(self, batch, logs=None):
        self.rows.append([float(logs["loss"]), float(logs["mae"])])
        if batch == 20:
            os.kill(os.getpid(), signal.SIGINT)


keras.utils.set_random_seed(1)
model = keras.Sequential(
    [keras.Input((8,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
)
model.compile("adam", loss="mse", metrics=["mae"])
x, y = np.random.rand(250, 8).astype("float32"), np.random.rand(250, 1).astype("float32")
live, means = tpunb.LiveCurves(), Means()
kept = model.fit(
    x, y, batch_size=32, epochs=2, validation_split=0.2, shuffle=False, verbose=0,
    callbacks=[means, live],
).history
history = live.history
said = {
    "means": means.rows,
    "values": [history.values(name).tolist() for name in ("loss", "mae")],
    "steps": history.steps("loss").tolist(),
    "validation": [history.values("val_loss").tolist(), kept["val_loss"]],
}
before = int(model.optimizer.iterations.value)
try:
    model.fit(x, y, batch_size=4, epochs=100, verbose=0, callbacks=[live, Means()])
except Stopped as stopped:
    said["stopped"] = str(stopped)
done = int(model.optimizer.iterations.value) - before
said["done"] = [done, live.history.steps("loss").tolist(), live.history.state]
said["weights"] = [bool(np.isfinite(weight).all()) for weight in model.get_weights()]
model.fit(x, y, batch_size=32, epochs=1, verbose=0, callbacks=[live])
said["again"] = live.summary
rates = keras.optimizers.schedules.CosineDecay(1e-2, 8)
model.compile(keras.optimizers.SGD(rates), loss="mse")
model.fit(x, y, batch_size=32, epochs=1, verbose=0, callbacks=[live])
said["rates"] = [
    live.history.values("learning_rate").tolist(), [float(rates(step)) for step in range(8)]
]
said["shown"] = str(tpunb.show(live.history))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Train twice in a process with JAX, stop one training, and return the results."""
    return said_with_jax(PROGRAM, tmp_path_factory.mktemp("keras"), keras=True)


def test_each_batch_has_its_own_value(said: dict[str, Any]) -> None:
    """Keras logs the mean since the epoch's start, and the last of seven batches is smaller."""
    sizes = np.array([32] * 6 + [8])
    for column, values in enumerate(said["values"]):
        means = np.array([row[column] for row in said["means"]]).reshape(2, 7)
        sums = means * np.cumsum(sizes)
        expected = np.diff(sums, axis=1, prepend=0) / sizes
        np.testing.assert_allclose(values, expected.reshape(-1), rtol=1e-4)
    assert said["steps"] == list(range(1, 15))
    np.testing.assert_allclose(*said["validation"], rtol=1e-6)


def test_the_stop_button_keeps_weights_and_curves(said: dict[str, Any]) -> None:
    done, steps, state = said["done"]
    assert state == "stopped"
    assert 21 <= done < 62, "stopped in the first epoch, whose state Keras keeps separately"
    assert steps == list(range(1, done + 1))
    assert f"after {done} steps, in epoch 1" in said["stopped"]
    assert said["weights"]
    assert all(said["weights"])


def test_training_can_continue(said: dict[str, Any]) -> None:
    assert "finished at step 8" in said["again"]
    assert "loss" in said["shown"]


def test_a_schedule_has_points_within_an_epoch(said: dict[str, Any]) -> None:
    np.testing.assert_allclose(*said["rates"], rtol=1e-6)
