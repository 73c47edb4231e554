"""LiveCurves with tf_keras alone, which passes values that are still on the devices."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpunb.display.widgets import frontend
from tpunb.keras import LiveCurves
from tpunb.keras.log_recorder import LogRecorder
from tpunb.training.history import History

# Keras 2 runs in the same process as Keras 3, which stays `tf.keras`.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "0")
keras = pytest.importorskip("tf_keras")

X, Y = np.ones([24, 4], np.float32), np.ones([24, 1], np.float32)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(frontend.VARIABLE, "never")
    monkeypatch.setattr(frontend, "publish", lambda *_, **__: None)


def recorded(*rows: dict[str, Any]) -> dict[str, Any]:
    history = History()
    recorder = LogRecorder(history, None, {"steps": len(rows)}, "batch", rate=False)
    recorder.begin_epoch(0, None)
    for batch, logs in enumerate(rows):
        recorder.begin_batch(batch)
        recorder.arrived.append((batch, logs))
    recorder.end_epoch({})
    return {name: history.values(name).tolist() for name in history.metrics}


def test_tensors_of_all_kinds() -> None:
    history = recorded(
        {"loss": tf.constant(1.5), "half": tf.constant(0.5, tf.bfloat16), "n": tf.constant(2)},
        {"loss": tf.constant(2.5), "half": tf.constant(1.5, tf.bfloat16), "n": tf.constant(3)},
    )
    assert history == {"loss": [1.5, 2.5], "half": [0.5, 1.5], "n": [2.0, 3.0]}


def test_tensors_of_changing_kinds() -> None:
    history = recorded(
        {"loss": tf.constant(1.0), "mixed": tf.constant(1.0), "matrix": tf.ones([2, 2])},
        {"loss": tf.constant(2.0), "mixed": tf.constant(2), "matrix": tf.ones([2, 2])},
        {"loss": tf.constant(3.0), "late": tf.constant([4.0]), "matrix": tf.ones([3])},
    )
    assert history == {"loss": [1.0, 2.0, 3.0], "mixed": [1.0, 2.0], "late": [4.0]}


def test_a_nested_metric() -> None:
    rows = [{"loss": tf.constant(1.0), "each": {"a": tf.constant(2.0), "b": tf.constant(3.0)}}] * 2
    assert recorded(*rows) == {"loss": [1.0, 1.0], "a": [2.0, 2.0], "b": [3.0, 3.0]}


def test_values_are_not_fetched_with_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training never waits for a batch's values before it starts the next batch."""
    collected: list[int] = []
    collect = LogRecorder.collect

    def counting(self: LogRecorder, *, all_rows: bool = False) -> None:
        collected.append(len(self.arrived))
        collect(self, all_rows=all_rows)

    monkeypatch.setattr(LogRecorder, "collect", counting)
    monkeypatch.setattr("tpunb.keras.log_recorder._INTERVAL", 1000.0)
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(4,))])
    model.compile("sgd", "mse")
    live = LiveCurves()
    model.fit(X, Y, batch_size=2, verbose=0, callbacks=[live])
    assert live.history is not None
    assert len(live.history) == 12
    # Nothing is fetched at the first batch, and everything at the epoch's end.
    assert collected == [0, 12, 0]


def test_a_legacy_optimizer() -> None:
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(4,))])
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.25, 0.125])
    model.compile(keras.optimizers.legacy.SGD(schedule), "mse")
    live = LiveCurves()
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[live])
    assert live.history is not None
    assert live.history.values("learning_rate").tolist() == [0.25] * 4 + [0.125] * 2
