"""Displays draw and send a limited part of anything, say so, and survive extreme numbers."""

from __future__ import annotations

import io
import json
import warnings
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from support.displayed import PerReplica, know_per_replica
from support.tiers import thorough, thorough_except

from tpunb.display.describe.history_description import MAX_LINES, MAX_RUNS, describe_history
from tpunb.display.describe.replicas import MAX_SECTIONS, MAX_VALUES, describe_replica_values
from tpunb.display.draw.curves_png import curves_png
from tpunb.display.draw.curves_text import curves_heading
from tpunb.display.draw.static_forms import mimebundle
from tpunb.display.widgets import CurvesWidget, ReplicasWidget
from tpunb.notebook.reports import status_report
from tpunb.notebook.session import Session
from tpunb.training.curves_figure import CurvesLook
from tpunb.training.history import History
from tpunb.training.metrics import MAX_PANELS
from tpunb.training.smoothing import smoothed

# Old ipywidgets use a deprecated feature of traitlets.
pytestmark = pytest.mark.filterwarnings("ignore:Deprecated in traitlets:DeprecationWarning")

MAX, TINY = 1.7976931348623157e308, 5e-324


def many(metrics: int, steps: int = 2, name: str = "") -> History:
    history = History(name)
    for step in range(steps):
        history.append(step, {f"m{number}": float(step) for number in range(metrics)})
    return history


@pytest.fixture
def plotted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of points of each drawn line."""
    points: list[int] = []
    plot = Axes.plot

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        points.append(len(args[0]))
        return plot(self, *args, **kwargs)

    monkeypatch.setattr(Axes, "plot", counting)
    return points


def sent(widget: Any) -> dict[str, Any]:
    snapshot = widget._stream.snapshot()
    size = int.from_bytes(snapshot[:8], "little")
    header: dict[str, Any] = json.loads(snapshot[8 : 8 + size])
    return header


def test_many_metrics(plotted: list[int]) -> None:
    history = many(10_000)
    description = describe_history(history)
    forms = mimebundle(description)
    assert len(description.panels) == len(plotted) == MAX_PANELS
    assert curves_heading(description) == ["Training curves · 2 steps · 12 of 10,000 metrics"]
    assert "m0, m1, m2, m3, m4, m5, m6, m7 and 9992 more" in str(forms["text/plain"])
    widget = CurvesWidget(history)
    try:
        header = sent(widget)
        assert [series["metric"] for series in header["series"]] == [f"m{i}" for i in range(12)]
        assert header["omissions"] == ["12 of 10,000 metrics"]
        assert len(widget._stream.delta()[0]["series"]) == MAX_PANELS
    finally:
        widget.close()
    assert len(repr(history)) < 300
    figure = history.plot()
    assert len(figure.axes) == MAX_PANELS
    assert figure.get_suptitle() == "12 of 10,000 metrics"
    with pytest.raises(KeyError) as raised:
        history.columns("none")
    assert len(str(raised.value)) < 300


def test_the_heading_counts_omitted_runs_and_metrics() -> None:
    description = describe_history([many(13, name=f"r{number}") for number in range(30)])
    assert curves_heading(description) == [
        "Training curves · 2 steps · 12 of 30 runs · 4 of 13 metrics"
    ]


def test_many_runs(plotted: list[int]) -> None:
    histories = [many(2, name="the same") for _ in range(1000)]
    forms = mimebundle(describe_history(histories))
    assert "1000 runs" in str(forms["text/plain"])
    assert len(plotted) == 2 * MAX_RUNS <= MAX_LINES
    widget = CurvesWidget(histories)
    try:
        header = sent(widget)
    finally:
        widget.close()
    assert len(header["runs"]) == MAX_RUNS
    assert len(header["series"]) == 2 * MAX_RUNS
    assert header["omissions"] == ["12 of 1000 runs"]


def test_requested_metrics_are_shown() -> None:
    history = many(1000)
    description = describe_history(history, ["m999", "m500"])
    assert [panel.title for panel in description.panels] == ["m500", "m999"]
    assert " of " not in curves_heading(description)[0]
    assert "more" not in str(mimebundle(description)["text/plain"])


def test_a_panel_is_shown_completely() -> None:
    history = History()
    history.append(1, {f"{role}/loss": 1.0 for role in ("train", "val", "test", "eval")})
    (panel,) = describe_history([history] * 30).panels
    assert len(panel.lines) == 4 * MAX_RUNS


def test_many_points(plotted: list[int]) -> None:
    history = History()
    history.extend("loss", np.arange(1_000_000), np.sin(np.arange(1_000_000)))
    curves_png(describe_history(history), CurvesLook(smoothing=60))
    assert max(plotted) < 10_000


def test_the_largest_numbers_are_smoothed() -> None:
    steps = np.arange(100_000)
    assert np.isfinite(smoothed(steps, np.where(steps % 2, MAX, -MAX), 0.5)).all()


INF, NAN = float("inf"), float("nan")
EXTREME: dict[str, list[Any]] = {
    "both ends": [1e308, -1e308],
    "whole range": [MAX, -MAX, 0.0],
    "one": [1e308],
    "one below": [-1e308],
    "one least": [TINY],
    "least and most": [TINY, 1e308],
    "equal": [3.0, 3.0],
    "equal and large": [MAX, MAX],
    "zero": [0.0, 0.0],
    "infinite": [INF, -INF],
    "nan": [NAN, NAN],
    "mixed": [1.0, INF, 2.0, NAN, -INF, MAX],
    "spread": [[1e308, -1e308], [1.0, 2.0]],
    "infinite spread": [[INF, -INF], [NAN, 2.0], [1.0, INF]],
    "none": [],
}


QUICK = {
    "whole range", "least and most", "equal", "infinite", "nan", "mixed", "spread", "infinite spread", "none",
}  # fmt: skip


@pytest.mark.parametrize("name", thorough_except(QUICK, EXTREME))
@pytest.mark.parametrize(("scale", "smoothing"), [("log", 60), *thorough([("linear", 0)])])
def test_extreme_numbers(name: str, scale: str, smoothing: int) -> None:
    history = History()
    with np.errstate(all="ignore"):  # NumPy itself computes the mean over replicas
        for step, value in enumerate(EXTREME[name]):
            history.append(step, loss=value)
    description = describe_history(history)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if description.panels:
            assert curves_png(description, CurvesLook(scale, smoothing)).startswith(b"\x89PNG")
        assert str(mimebundle(description)["text/plain"]).startswith("Training curves")
        history.plot().savefig(io.BytesIO())
        widget = CurvesWidget(history, scale=scale, smoothing=smoothing)
        header = sent(widget)
        widget.close()
    assert len(header["series"]) == bool(EXTREME[name])
    json.dumps(header, allow_nan=False)


BIG: dict[str, Any] = {
    "dict": {f"key {number}": np.float32(number) for number in range(10_000)},
    "nest": [[[float(k) for k in range(3)] + [np.ones(2)] for _ in range(30)] for _ in range(40)],
    "long string": "x" * 10_000_000,
    "many strings": ["y" * 1000] * 10_000,
    "long key": {"k" * 1_000_000: np.ones(3)},
    "large array": np.ones((3000, 3000), np.float32),
    "deep": None,
}


@pytest.mark.parametrize("name", BIG)
def test_large_values(name: str) -> None:
    value = BIG[name]
    if name == "deep":
        value = np.ones(3)
        for _ in range(200):
            value = [value, 1.0]
    description = describe_replica_values(value)
    forms = mimebundle(description)
    assert len(str(forms["text/plain"])) < 10_000
    assert sum(map(len, forms.values())) < 1_000_000
    widget = ReplicasWidget(value)
    assert len(widget.html) < 2_000_000
    assert len(repr(widget)) < 10_000
    widget.close()


def test_omitted_parts_of_a_structure_are_counted() -> None:
    wide = describe_replica_values(BIG["dict"])
    assert (len(wide.sections), wide.omitted) == (MAX_SECTIONS, 10_000 - MAX_SECTIONS)
    assert str(mimebundle(wide)["text/plain"]).endswith("and 9984 more")
    nested = describe_replica_values([[np.ones(2)] * 100] * 100)
    assert nested.omitted == 10_000 - MAX_SECTIONS
    assert describe_replica_values([np.ones(2)] * MAX_SECTIONS).omitted == 0


def test_many_replicas_of_many_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    know_per_replica(monkeypatch)
    parts = [np.eye(30, dtype=np.float32) * number for number in range(512)]
    value = PerReplica(*({f"k{number}": part for number in range(200)} for part in parts))
    description = describe_replica_values(value)
    assert len(description.sections) == MAX_VALUES // 512
    assert description.omitted == 200 - MAX_VALUES // 512
    page = str(mimebundle(description)["text/html"])
    assert 64 <= page.count("<img") <= 96
    assert len(page) < 1_000_000
    widget = ReplicasWidget(value)
    assert len(widget.html) < 2_000_000
    widget.close()
    alone = describe_replica_values(PerReplica(*[{"only": np.ones(2)}] * 20_000))
    assert len(alone.sections) == 1


def test_a_long_error_in_the_status() -> None:
    session = Session({})
    session.last_error = "ValueError: " + "\x1b[2J" * 1_000_000
    assert len(repr(status_report(session))) < 2000
    assert "\x1b" not in repr(status_report(session))
