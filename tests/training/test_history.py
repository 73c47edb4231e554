"""The history of a training run: stored values, returned values and refused values."""

from __future__ import annotations

import csv
import math
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpunb.display.describe.history_description import describe_history
from tpunb.errors import HistoryError
from tpunb.training.history import History
from tpunb.training.metrics import goal_of, panel_of

HOSTILE = "weird </script> name"


def filled(steps: int = 10) -> History:
    history = History("run 1", total_steps=steps)
    for step in range(1, steps + 1):
        history.append(step, loss=1 / step, accuracy=1 - 1 / step)
    return history


def test_appended_values_are_stored() -> None:
    history = filled()
    history.append(10, {"val_loss": 0.5, HOSTILE: 1})
    assert history.metrics == ["loss", "accuracy", "val_loss", HOSTILE]
    np.testing.assert_array_equal(history.steps("loss"), np.arange(1, 11))
    np.testing.assert_array_equal(history.values("loss"), 1 / np.arange(1, 11))
    assert history.last == {"loss": 0.1, "accuracy": 0.9, "val_loss": 0.5, HOSTILE: 1.0}
    assert history.last_step == 10
    assert len(history) == 10
    assert repr(history) == f"History('run 1', running: loss, accuracy, val_loss, {HOSTILE})"


def test_empty() -> None:
    history = History()
    assert (history.metrics, history.last, len(history), history.last_step) == ([], {}, 0, None)
    assert history.state == "waiting"
    assert bool(history)
    assert history.to_csv() == "step\n"
    assert history.plot().axes == []
    with pytest.raises(KeyError, match="no metric 'loss'; the metrics are: none"):
        history.values("loss")


def test_a_metric_may_have_an_arguments_name() -> None:
    history = History()
    history.append(1, step=3, self=4, metrics=5)
    assert history.last == {"step": 3, "self": 4, "metrics": 5}


def test_states() -> None:
    history = filled()
    assert (history.state, history.finished) == ("running", False)
    history.finish()
    assert (history.state, history.finished) == ("finished", True)
    history.append(11, loss=0.1)
    assert history.state == "running"
    history.finish(stopped=True)
    assert (history.state, history.finished) == ("stopped", True)


@pytest.mark.parametrize(
    "value",
    [2, True + 1, np.float32(2), np.int64(2), np.array(2.0), np.array([2.0]), [2.0], (2,)],
    ids=repr,
)
def test_numbers(value: Any) -> None:
    history = History()
    history.append(1, loss=value)
    assert history.values("loss").tolist() == [2.0]


def test_tensors(tf: Any) -> None:
    history = History()
    history.append(tf.constant(1), loss=tf.constant(2.0), low=tf.constant(3, tf.bfloat16))
    history.append(2, loss=[tf.constant(1.0), tf.constant(3.0)])
    history.append(3, loss=tf.constant([5.0, 7.0]))
    assert history.values("loss").tolist() == [2.0, 2.0, 6.0]
    assert history.values("low").tolist() == [3.0]


def test_values_of_replicas_have_a_spread() -> None:
    class Distributed:
        values = (1.0, 2.0, 6.0)

    history = History()
    history.append(1, loss=4.0)
    history.append(2, loss=Distributed())
    history.append(3, loss=np.array([0.0, 2.0]))
    history.append(4, loss=7.0)
    columns = history.columns("loss")
    assert columns.values.tolist() == [4.0, 3.0, 1.0, 7.0]
    assert columns.lows is not None
    assert columns.highs is not None
    assert columns.lows.tolist() == [4.0, 1.0, 0.0, 7.0]
    assert columns.highs.tolist() == [4.0, 6.0, 2.0, 7.0]


def test_the_last_step_can_be_overwritten() -> None:
    history = filled(3)
    history.append(3, loss=9.0)
    assert history.values("loss").tolist() == [1.0, 0.5, 9.0]
    history.append(3, loss=[1.0, 3.0])
    assert history.values("loss").tolist() == [1.0, 0.5, 2.0]
    assert history.columns("loss").highs.tolist() == [1.0, 0.5, 3.0]  # type: ignore[union-attr]


def test_finite_values_among_nans_are_kept() -> None:
    history = History()
    for step, value in enumerate([0.5, math.nan, 0.25, math.inf, -math.inf]):
        history.append(step, loss=value)
    assert history.first_nonfinite("loss") == 1
    assert history.best("loss") == (2, 0.25)
    assert math.isnan(history.values("loss")[1])
    history.append(5, loss=[1.0, math.nan], other=[math.inf, -math.inf])
    assert math.isnan(history.last["loss"])


def test_best() -> None:
    history = filled()
    history.append(11, loss=0.1, accuracy=0.9, lr=1)
    assert history.best("loss") == (10, 0.1)
    assert history.best("accuracy") == (10, 0.9)
    assert history.best("lr", mode="max") == (11, 1.0)
    with pytest.raises(ValueError, match=r"best\('lr', mode='min'\)"):
        history.best("lr")
    history.append(12, error=math.nan)
    with pytest.raises(ValueError, match="no finite value"):
        history.best("error")


@pytest.mark.parametrize(
    "value",
    ["0.3", None, {}, pytest.param(object(), id="object"), [], ["a"], [[1.0], [2.0]], 1j, b"1"],
    ids=repr,
)
def test_values_that_are_not_numbers_are_refused_by_name(value: Any) -> None:
    history = filled()
    with pytest.raises((TypeError, ValueError), match="'weird'"):
        history.append(11, weird=value)
    assert "weird" not in history.metrics
    history.append(12, weird=1.0)
    assert history.steps("weird").tolist() == [12]


@pytest.mark.parametrize("step", [1.5, "1", None, np.array([1, 2])], ids=repr)
def test_steps_must_be_whole_numbers(step: Any) -> None:
    with pytest.raises(TypeError, match="the step must be a whole number"):
        History().append(step, loss=1.0)


def test_a_decreasing_step_changes_nothing() -> None:
    history = filled()
    with pytest.raises(HistoryError, match="'loss' must not decrease, but step 3 comes after 10"):
        history.append(3, loss=1.0)
    assert history.steps("loss").tolist() == list(range(1, 11))


@pytest.mark.parametrize(
    ("metrics", "error", "words"),
    [
        ({1: 2.0}, TypeError, "a string, not 1"),
        ([0.3], TypeError, "a dict"),
        ({" ": 1}, ValueError, "empty"),
    ],
)
def test_names_are_strings(metrics: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        History().append(1, metrics)


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="name of a run"):
        History(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="total_steps must be a whole number"):
        History(total_steps=1.5)  # type: ignore[arg-type]


def test_csv(tmp_path: Path) -> None:
    history = History()
    history.append(1, {"loss": 0.5, 'a,"b"\n': 1})
    history.append(2, loss=math.nan)
    history.append(2, val_loss=[1.0, 3.0])
    path = tmp_path / "history.csv"
    assert history.to_csv(path) is None
    assert list(tmp_path.iterdir()) == [path]
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["step", "loss", 'a,"b"\n', "val_loss", "val_loss min", "val_loss max"],
        ["1", "0.5", "1.0", "", "", ""],
        ["2", "nan", "", "2.0", "1.0", "3.0"],
    ]
    assert path.read_text() == history.to_csv()


def test_a_failed_csv_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        filled().to_csv(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_dict() -> None:
    history = History("a")
    history.append(1, loss=[1.0, 3.0])
    assert history.as_dict() == {
        "name": "a",
        "total_steps": None,
        "state": "running",
        "metrics": {"loss": {"steps": [1], "values": [2.0], "min": [1.0], "max": [3.0]}},
    }


def test_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    pd = pytest.importorskip("pandas")
    history = filled(3)
    history.append(3, val_loss=1)
    frame = history.to_pandas()
    assert list(frame.columns) == ["loss", "accuracy", "val_loss"]
    assert frame.index.name == "step"
    assert pd.isna(frame["val_loss"].iloc[0])


def test_missing_pandas_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        filled().to_pandas()


def test_plot_returns_an_independent_figure() -> None:
    history = filled()
    history.append(10, {"val_loss": [0.5, 0.7], "_$x$ <b>": 1})
    figure = history.plot()
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "loss",
        "accuracy",
        r"\$x\$ <b>",
    ]
    assert len(figure.axes[0].get_legend().get_texts()) == 2
    assert figure.axes[0].get_position().y0 > figure.axes[1].get_position().y1
    figure.canvas.draw()
    assert not hasattr(figure, "number")  # pyplot numbers its own figures


def test_one_thread_reads_while_another_appends() -> None:
    history, done, lengths = History(), threading.Event(), []

    def read() -> None:
        while not done.is_set():
            for name in history.metrics:
                columns = history.columns(name, 5)
                assert len(columns.steps) == len(columns.values)
                assert (columns.values == columns.steps).all()
            lengths.append(len(history))

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(30_000):
        history.append(step, a=float(step), b=float(step))
        if step == 15_000:
            history.append(step + 1, a=[float(step + 1)] * 2)
            history.append(step + 1, c=float(step + 1))
    done.set()
    reader.join()
    assert lengths[-1] <= 30_000
    assert history.values("b").tolist() == list(range(30_000))


@pytest.mark.parametrize(
    ("name", "goal"),
    [
        ("loss", "min"), ("val_loss", "min"), ("sparse_categorical_accuracy", "max"), ("accuracy_loss", "min"),
        ("train/AUC", "max"), ("categorical_crossentropy", "min"), ("RMSE", "min"), ("f1_score", "max"),
        ("lr", ""), ("learning_rate", ""), (HOSTILE, ""), ("valLoss", "min"), ("mean_squared_error", "min"),
    ],
)  # fmt: skip
def test_goals(name: str, goal: str) -> None:
    assert goal_of(name) == goal


@pytest.mark.parametrize(
    ("name", "panel"),
    [
        ("val_loss", ("loss", True)), ("loss", ("loss", False)), ("train/loss", ("loss", False)),
        ("test_accuracy", ("accuracy", True)), ("value", ("value", False)), ("val_", ("val_", False)),
    ],
)  # fmt: skip
def test_panels(name: str, panel: tuple[str, bool]) -> None:
    assert panel_of(name) == panel


def test_description() -> None:
    first, second = filled(), History("run 1")
    for step in range(5):
        second.append(step, loss=1.0, val_loss=[1.0, 2.0], lr=0.1)
    second.finish()
    description = describe_history([first, second])
    assert [run.name for run in description.runs] == ["run 1", "run 1 (2)"]
    assert [run.num_steps for run in description.runs] == [10, 5]
    assert [panel.title for panel in description.panels] == ["loss", "accuracy", "lr"]
    labels = [line.label for line in description.panels[0].lines]
    assert labels == ["run 1 · train", "run 1 (2) · train", "run 1 (2) · validation"]
    line = description.panels[0].lines[0]
    assert (line.best, line.first_nonfinite) == (9, None)
    first.append(11, loss=0.0)
    assert len(line.columns.values) == 10
    with pytest.raises(ValueError, match="read-only"):
        line.columns.values[0] = 1
    only = describe_history(first, metrics=["accuracy"])
    assert [panel.title for panel in only.panels] == ["accuracy"]
    assert only.panels[0].lines[0].label == "accuracy"
