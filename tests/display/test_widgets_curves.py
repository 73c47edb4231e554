"""The widget of the training curves, in the kernel."""

from __future__ import annotations

import json
import math
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from counterparts.children import output_of
from support.displayed import columns
from support.patience import PATIENCE, calls

from tpunb.display.widgets.curves import CurvesWidget
from tpunb.training.history import History

pytestmark = pytest.mark.oldest


class Page:
    """The data that a page received, decoded as its script does."""

    def __init__(self) -> None:
        self.columns: dict[tuple[int, str], dict[str, Any]] = {}
        self.runs: list[dict[str, Any]] = []
        self.messages = 0
        self.arrived = threading.Condition()

    def take(self, header: dict[str, Any], data: bytes) -> None:
        json.dumps(header, allow_nan=False)
        with self.arrived:
            parts = columns(header["layout"], data)
            for number, facts in enumerate(header["series"]):
                series = self.columns.setdefault((facts["run"], facts["metric"]), {})
                for name in ("steps", "values", "lows", "highs"):
                    if (part := parts.get(f"{number}.{name}")) is not None:
                        rows = series.setdefault(name, [])
                        assert facts["start"] <= len(rows), "a message is missing"
                        rows[facts["start"] : facts["start"] + len(part)] = part.tolist()
            self.runs = header["runs"]
            self.messages += 1
            self.arrived.notify_all()

    def take_all(self, snapshot: bytes) -> None:
        (size,) = struct.unpack_from("<q", snapshot)
        self.take(json.loads(snapshot[8 : 8 + size]), snapshot[8 + size :])

    def until(self, condition: Callable[[], bool]) -> None:
        with self.arrived:
            assert self.arrived.wait_for(condition, PATIENCE)


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[CurvesWidget, Page]]]:
    """Return a function that makes widgets whose messages reach a page; close them at the end."""
    widgets: list[CurvesWidget] = []

    def make(*args: Any, **state: Any) -> tuple[CurvesWidget, Page]:
        page, widget = Page(), CurvesWidget(*args, **state)
        widgets.append(widget)

        def send_state(key: Any = None) -> None:
            if key == "snapshot":
                page.take_all(widget.get_state("snapshot")["snapshot"])

        monkeypatch.setattr(widget, "send", lambda content, buffers: page.take(content, buffers[0]))
        monkeypatch.setattr(widget, "send_state", send_state)
        return widget, page

    yield make
    for widget in widgets:
        widget.close()


def test_appended_points_are_sent(show: Any) -> None:
    widget, page = show()
    for step in range(1, 1001):
        widget.append(step, loss=1 / step)
    page.until(lambda: len(page.columns.get((0, "loss"), {}).get("steps", [])) == 1000)
    assert page.columns[0, "loss"]["values"] == [1 / step for step in range(1, 1001)]
    assert page.messages < 50
    widget.finish()
    assert page.runs[0]["state"] == "finished"
    assert page.runs[0]["step"] == 1000


def test_an_overwritten_value_is_sent_again(show: Any) -> None:
    widget, page = show()
    widget.append(1, loss=1.0)
    page.until(lambda: bool(page.columns))
    widget.append(1, loss=2.0)
    widget.finish()
    assert page.columns[0, "loss"] == {"steps": [1], "values": [2.0]}


def test_a_spread_that_starts_late(show: Any) -> None:
    widget, page = show()
    widget.append(1, loss=1.0)
    widget._flush()
    widget.append(2, loss=[1.0, 3.0])
    widget._flush()
    widget.append(3, loss=4.0)
    widget._flush()
    assert page.columns[0, "loss"] == {
        "steps": [1, 2, 3], "values": [1, 2, 4], "lows": [1, 1, 4], "highs": [1, 3, 4],
    }  # fmt: skip


def test_the_state_has_all_points(show: Any) -> None:
    history = History("a", total_steps=9)
    widget, page = show(history)
    history.append(1, loss=[1.0, 3.0], accuracy=float("nan"))
    history.append(2**40, loss=2.0)
    page.take_all(widget.get_state()["snapshot"])
    assert page.columns[0, "loss"]["steps"] == [1, 2**40]
    assert page.columns[0, "loss"]["highs"] == [3.0, 2.0]
    assert np.isnan(page.columns[0, "accuracy"]["values"]).all()
    assert page.runs == [
        {
            "name": "a",
            "total": 9,
            "state": "running",
            "step": 2**40,
            "pace": [],
        }
    ]
    assert CurvesWidget().get_state()["snapshot"]


def test_a_page_that_opens_during_a_run_loses_no_points(show: Any) -> None:
    history = History()
    widget, page = show(history)
    late = Page()
    for step in range(5000):
        history.append(step, loss=float(step))
        if step == 2500:
            widget._flush()
            history.append(step, loss=float(step))
            late.take_all(widget.get_state("snapshot")["snapshot"])
            page.columns = late.columns
    widget.finish()
    assert late.columns[0, "loss"]["values"] == list(map(float, range(5000)))


def test_a_page_that_missed_a_message_gets_all_points(show: Any) -> None:
    widget, page = show(History())
    widget.append(1, loss=1.0)
    widget._flush()
    page.columns.clear()
    widget._handle_custom_msg({"kind": "sync"}, [])
    assert page.columns[0, "loss"]["values"] == [1.0]
    for nonsense in ({"kind": "other"}, "sync", None):
        widget._handle_custom_msg(nonsense, [])


def test_only_chosen_metrics_are_sent(show: Any) -> None:
    widget, page = show(metrics="loss")
    widget.append(1, loss=1, val_loss=2, accuracy=3)
    widget.finish()
    assert sorted(page.columns) == [(0, "loss"), (0, "val_loss")]


def test_several_histories(show: Any) -> None:
    runs = [History("a"), History("a"), History()]
    widget, page = show(runs)
    for number, run in enumerate(runs):
        run.append(1, loss=number)
    widget.finish()
    assert [run["name"] for run in page.runs] == ["a", "a (2)", "run 3"]
    assert page.columns[2, "loss"]["values"] == [2.0]
    widget.append(2, loss=5.0)
    assert runs[0].last == {"loss": 5.0}


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tpunb-curves"]


def test_the_thread_runs_only_while_points_arrive(show: Any) -> None:
    history = History()
    widget, page = show(history)
    assert not widget._follower.running
    history.append(1, loss=1.0)
    assert widget._follower.running
    assert all(thread.daemon for thread in threads())
    history.finish()
    page.until(lambda: bool(page.runs) and page.runs[0]["state"] == "finished")
    for thread in threads():
        thread.join()
    assert not widget._follower.running
    history.append(2, loss=1.0)
    page.until(lambda: page.columns[0, "loss"]["steps"] == [1, 2])
    widget.close()
    assert not widget._follower.running
    history.append(3, loss=1.0)
    assert not widget._follower.running


def test_the_thread_ends_when_no_points_arrive(show: Any) -> None:
    history = History()
    widget, page = show(history)
    widget._follower._patience = 0.0
    widget._follower._interval = 0.001
    for step in range(20):
        history.append(step, loss=float(step))
        page.until(
            lambda step=step: page.columns.get((0, "loss"), {}).get("steps", [])[-1:] == [step]
        )


def test_the_thread_does_not_keep_the_interpreter_alive() -> None:
    code = """
from tpunb.display.widgets.curves import CurvesWidget
widget = CurvesWidget()
for step in range(100):
    widget.append(step, loss=1.0)
"""
    assert output_of(code) == ""


def test_static_form() -> None:
    history = History("a")
    widget = CurvesWidget(history)
    assert widget.static_bundle() == {"text/plain": "Training curves"}
    for step in range(1, 11):
        history.append(step, loss=1 / step)
    bundle = widget.static_bundle()
    assert bundle["text/plain"] == repr(widget) == "Training curves · loss · 10 steps"
    assert bundle["image/png"].startswith(b"\x89PNG")
    widget.scale = "log"
    assert widget.static_bundle()["image/png"] != bundle["image/png"]
    widget.close()


def test_the_file_gets_pictures_during_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "a.ipynb")
    monkeypatch.setattr("tpunb.display.widgets.curves._PICTURE_SECONDS", 0.0)
    monkeypatch.setattr("tpunb.display.widgets.curves._PICTURE_SHARE", math.inf)
    history = History(total_steps=10)
    widget = CurvesWidget(history)
    widget._follower.stop()
    history.append(1, loss=1.0)
    widget._flush()
    assert widget._static == {}  # only the appending thread draws
    history.append(2, loss=0.5)
    assert widget._static["text/plain"] == "Training curves · loss · 2 of 10 steps"
    first = widget._static["image/png"]
    history.append(3, loss=0.4)
    assert widget._static["image/png"] == first  # not at each step
    widget._flush()
    history.finish()
    assert widget._static["text/plain"] == "Training curves · loss · 3 steps"
    widget.close()


def test_a_picture_that_fails_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "a.ipynb")
    widget = CurvesWidget()
    widget._follower.stop()
    monkeypatch.setattr(widget, "static_bundle", lambda: 1 / 0)
    widget.append(1, loss=1.0)
    widget.finish()
    assert widget._static == {}
    widget.close()


def test_the_text_of_a_display_does_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "tpunb.display.widgets.frontend.publish", lambda data, metadata, **_: published.append(data)
    )
    widget = CurvesWidget()
    widget.show()
    widget.append(1, loss=1.0)
    widget.finish()
    widget.freeze()
    assert [data["text/plain"] for data in published] == ["Training curves", "Training curves"]
    assert "image/png" in published[-1]
    widget.show()
    # No kernel runs here, so no notebook keeps the value.
    assert published[-1]["text/plain"] == "Training curves · loss · 1 step\nloss 1"
    monkeypatch.setattr("tpunb.display.widgets.frontend.is_kernel", lambda: True)
    widget.show()
    assert published[-1]["text/plain"] == "Training curves · loss · 1 step"
    widget.close()


@pytest.mark.parametrize(
    ("arguments", "state", "error", "words"),
    [
        ((3,), {}, TypeError, "not int|not iterable"),
        (([History(), "loss"],), {}, TypeError, "a History or several, not str"),
        (([],), {}, ValueError, "at least"),
        ((), {"smoothing": 100}, Exception, "smoothing"),
        ((), {"scale": "cubic"}, Exception, "scale"),
    ],
)
def test_bad_arguments(arguments: Any, state: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        CurvesWidget(*arguments, **state)


def test_an_update_takes_few_calls(show: Any) -> None:
    """An update takes 0.02 ms, however long the history is."""
    widget, page = show()

    def update(first: int) -> None:
        for step in range(first, first + 1000):
            widget.append(step, loss=0.5, accuracy=0.25)

    costs = [calls(lambda first=first: update(first)) for first in range(0, 5000, 1000)]
    assert max(costs) < 60_000
    widget.finish()
    assert len(page.columns[0, "loss"]["steps"]) == 5000


def test_the_source_is_complete() -> None:
    source = CurvesWidget._esm
    text = source if isinstance(source, str) else str(source)
    assert "uPlot" in text
    assert "import {" not in text
    assert "http://" not in text.replace("http://www.w3.org", "")


LOOP = """
import sys, tpunb
history = tpunb.History("mnist", total_steps=100)
tpunb.show(history)
for step in range(1, 101):
    history.append(step, loss=1 / step, accuracy=1 - 1 / step)
history.finish()
tpunb.show(history)
print(history.last["loss"], "tensorflow" in sys.modules, "jax" in sys.modules)
"""


def test_a_loop_of_a_script_needs_no_framework() -> None:
    lines = output_of(LOOP).splitlines()
    assert lines[-3] == "Training curves · loss, accuracy · 100 steps"
    assert lines[-2] == "mnist: loss 0.01 · accuracy 0.99"
    assert lines[-1] == "0.01 False False"
