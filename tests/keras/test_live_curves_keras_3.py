"""LiveCurves with Keras 3 alone, which reports batches on other threads."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from support.interrupts import When

from tpunb._util.interrupts import Stopped
from tpunb.display.widgets import frontend
from tpunb.keras import LiveCurves
from tpunb.keras.log_recorder import LogRecorder
from tpunb.training.history import History

keras = pytest.importorskip("keras")
pytestmark = [
    pytest.mark.usefixtures("fresh_keras_names"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

X, Y = np.ones([24, 4], np.float32), np.ones([24, 1], np.float32)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tf: Any) -> None:
    monkeypatch.setenv(frontend.VARIABLE, "never")
    monkeypatch.setattr(frontend, "publish", lambda *_, **__: None)


def compiled(**options: Any) -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    return model


class Model:
    def __init__(self, size: int) -> None:
        self.steps_per_execution = size


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_batches_that_arrive_out_of_order(order: tuple[int, ...]) -> None:
    history = History()
    recorder = LogRecorder(history, None, {"steps": 4, "epochs": 1}, "auto", rate=False)
    recorder.begin_epoch(0, None)
    for batch in range(4):
        recorder.begin_batch(batch)
    for count, batch in enumerate(order, start=1):
        recorder.arrived.append((batch, {"loss": float(batch)}))
        recorder.collect()
        arrived = order[:count]
        rows = next(k for k in range(5) if k not in arrived)
        assert history.values("loss").tolist() == [0.0, 1.0, 2.0, 3.0][:rows] if rows else True
    assert history.steps("loss").tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("ends", [(3, 7, 11), (0, 4, 8), (3, 7, 9)])
def test_executions_of_all_releases(ends: tuple[int, ...]) -> None:
    """Releases of Keras report an execution by its first batch, its last, or one past the data."""
    history = History()
    recorder = LogRecorder(history, Model(4), {"steps": 10, "epochs": 1}, "auto", rate=False)
    recorder.begin_epoch(0, None)
    for begin, end in zip((0, 4, 8), ends, strict=True):
        recorder.begin_batch(begin)
        recorder.arrived.append((end, {"loss": 1.0}))
    assert recorder.end_epoch({"loss": 1.0}) == 10
    assert history.steps("loss").tolist() == [4, 8, 10]


def test_values_that_are_not_numbers() -> None:
    history = History()
    recorder = LogRecorder(history, None, {}, "auto", rate=False)
    recorder.begin_epoch(0, None)
    recorder.begin_batch(0)
    logs = {"loss": np.float32(2), "matrix": np.ones([2, 2]), "word": "a", "none": None, "n": 3}
    recorder.arrived.append((0, logs))
    recorder.end_epoch({})
    assert history.last == {"loss": 2.0, "n": 3.0}


def test_stopping_while_other_threads_report() -> None:
    """All finished steps are recorded, and nothing is recorded after the end."""
    live, model = LiveCurves(), compiled()
    counted = model.optimizer.iterations
    with When(lambda: int(counted.numpy()) > 100), pytest.raises(Stopped):
        model.fit(X, Y, batch_size=4, epochs=100_000, verbose=0, callbacks=[live])
    history = live.history
    assert history is not None
    assert history.state == "stopped"
    assert history.steps("loss").tolist() == list(range(1, int(counted.numpy()) + 1))


def test_a_nested_metric() -> None:
    class Two(keras.metrics.Mean):
        def result(self) -> Any:
            return {"first": super().result(), "second": 2 * super().result()}

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            super().update_state(y_true)

    live = LiveCurves()
    compiled(metrics=[Two()]).fit(X, Y, verbose=0, callbacks=[live])
    assert live.history is not None
    assert {"loss", "first", "second"} <= set(live.history.metrics)


def test_a_scaled_loss() -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    live = LiveCurves("learning_rate")
    compiled(optimizer=optimizer).fit(X, Y, verbose=0, callbacks=[live])
    assert live.history is not None
    assert live.history.last["learning_rate"] == 0.5
