"""The widget of replica values, in the kernel."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from support.displayed import PerReplica, columns, know_per_replica

from tpunb.display.describe.replicas import ReplicaValuesDescription, describe_replica_values
from tpunb.display.draw.static_forms import mimebundle
from tpunb.display.widgets import replicas as module
from tpunb.display.widgets.replicas import ReplicasWidget, payload

# Old ipywidgets use a deprecated feature of traitlets.
pytestmark = [
    pytest.mark.oldest,
    pytest.mark.filterwarnings("ignore:Deprecated in traitlets:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    know_per_replica(monkeypatch)


def column(header: dict[str, Any], data: bytes, name: str) -> Any:
    return columns(header["layout"], data)[name]


def asked(widget: ReplicasWidget, **content: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the widget's answer to the request for a view."""
    sent: list[Any] = []
    widget.send = lambda content, buffers=(): sent.append((content, list(buffers)))  # type: ignore[method-assign]
    request = {"request": "view", "id": 7, "section": 0, "mode": "values", **content}
    widget._handle_custom_msg(request, [])
    assert len(sent) == 1
    json.dumps(sent[0][0])
    return sent[0]


def test_the_payload() -> None:
    parts = [np.arange(200.0).reshape(10, 20) + k for k in range(3)]
    widget = ReplicasWidget(PerReplica(*parts))
    header = widget.header
    json.dumps(header)
    assert header["title"] == "PerReplica of 3 replicas"
    assert (header["replicas"], header["live"]) == (3, True)
    section = header["sections"][0]
    assert section["facts"] == "float64 [10, 20]"
    assert (section["equal"], section["numeric"]) == (False, True)
    assert section["block"]["shapes"] == [[10, 20]]
    assert section["block"]["whole"]
    assert np.array_equal(column(header, widget.data, "0.preview"), np.ravel(parts))
    assert column(header, widget.data, "0.mean").tolist() == [99.5, 100.5, 101.5]
    assert column(header, widget.data, "0.differs").tolist() == [0, 1, 1]
    assert "0.nans" not in header["layout"]


def test_equal_values_are_sent_once() -> None:
    widget = ReplicasWidget(PerReplica(*[np.zeros((90, 90))] * 8))
    assert len(widget.data) < 40_000
    assert widget.header["sections"][0]["equal"]


def test_payloads_stay_small() -> None:
    eight = ReplicasWidget(PerReplica(*np.random.default_rng(0).random((8, 500, 500))))
    assert 200_000 < len(eight.data) < 320_000
    value = [PerReplica(*np.random.default_rng(k).random((64, 96, 96))) for k in range(20)]
    header, data = payload(describe_replica_values(value))
    assert len(data) < 2_000_000
    block = header["sections"][0]["block"]
    assert not block["whole"]
    assert block["steps"][0][0] > 1


def test_integers_that_a_browser_cannot_hold_are_sent_as_text() -> None:
    widget = ReplicasWidget(np.array([2**63 - 1, 3]))
    assert widget.header["sections"][0]["block"]["exact"] == ["9223372036854775807", "3"]
    assert ReplicasWidget(np.array([5, 3])).header["sections"][0]["block"]["exact"] == []


def test_images_of_fractions_are_not_complete() -> None:
    def is_complete(array: Any) -> bool:
        return bool(ReplicasWidget(array).header["sections"][0]["block"]["whole"])

    assert is_complete(np.ones((16, 16, 3), np.uint8))
    assert not is_complete(np.ones((16, 16, 3), np.float32))
    assert not is_complete(np.ones((20, 16, 16, 3), np.uint8))


def test_paths_are_split_into_steps() -> None:
    value = {"a]['b": [1.0, {"it's": 2}], 3: None}
    steps = [section["steps"] for section in ReplicasWidget(value).header["sections"]]
    assert steps == [['["a][\'b"]', "[0]"], ['["a][\'b"]', "[1]", '["it\'s"]'], ["[3]"]]


def test_views_of_large_values() -> None:
    parts = [np.add.outer(np.arange(300.0), np.arange(400.0)) + k for k in range(4)]
    widget = ReplicasWidget(PerReplica(*parts))
    header, buffers = asked(widget, mode="difference", replica=1, places=[0, 4])
    assert header["answer"] == 7
    assert column(header, buffers[0], "maximum").tolist() == [-1, 0, 1, 2]
    header, buffers = asked(widget, mode="mean", counts=True)
    assert column(header, buffers[0], "counts").sum() == 120_000
    header, buffers = asked(widget, slice=[5])
    assert header["block"]["kind"] == "curve"


@pytest.mark.parametrize(
    "content",
    [
        {"section": 5},
        {"section": None},
        {"section": -1},
        {"mode": "no such"},
        {"mode": None},
        {"slice": [999]},
        {"slice": "x"},
        {"places": [0, 99]},
        {"mode": "difference", "replica": -1},
    ],
    ids=str,
)
def test_requests_that_fail_are_answered(content: dict[str, Any]) -> None:
    header, buffers = asked(ReplicasWidget(PerReplica(*np.zeros((2, 300, 300)))), **content)
    assert header["error"]
    assert buffers == []


def test_other_messages_are_ignored() -> None:
    widget = ReplicasWidget(1)
    widget.send = lambda *_: pytest.fail("answered")  # type: ignore[method-assign]
    for content in ("x", None, {}, {"request": "dance"}):
        widget._handle_custom_msg(content, [])


def test_the_value_is_kept_while_the_widget_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.LiveWidget, "freeze", lambda self: None)
    widget = ReplicasWidget(PerReplica(*np.zeros((2, 300, 300))))
    assert asked(widget)[0]["block"]
    widget.freeze()
    assert widget._leaves == []
    assert not widget.header["live"]
    assert "run the cell again" in asked(widget)[0]["error"]
    other = ReplicasWidget(PerReplica(*np.zeros((2, 300, 300))))
    other.close()
    assert other._leaves == []


def test_descriptions() -> None:
    description = describe_replica_values(PerReplica(*np.zeros((2, 9, 9))))
    widget = ReplicasWidget(description, link="a", selected=[1])
    assert not widget.header["live"]
    assert (widget.link, widget.selected) == ("a", [1])
    assert widget.static_bundle() == mimebundle(description)
    assert repr(widget) == mimebundle(description)["text/plain"]


def test_updates_keep_valid_settings() -> None:
    value = {"a": PerReplica(*range(80)), "b": PerReplica(*range(80))}
    widget = ReplicasWidget(
        value, section=1, page=1, reference=70, mode="difference", selected=[3, 70]
    )
    widget.update({"c": 1, "a": 2, "b": PerReplica(*range(8))})
    assert (widget.section, widget.page, widget.reference) == (2, 0, 0)
    assert (widget.mode, widget.selected) == ("difference", [3])
    widget.update(ReplicaValuesDescription("x", 0, ()))
    assert (widget.section, widget.selected) == (0, [])
    assert widget.header["sections"] == []


class FailingRepr:
    def __repr__(self) -> str:
        raise RuntimeError

    @property
    def values(self) -> Any:
        raise RuntimeError


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [],
        FailingRepr(),
        {"x": FailingRepr()},
        np.zeros((0, 3)),
        1j,
        "x" * 9999,
        PerReplica(),
        PerReplica(None, 1.0),
        [[]] * 99,
        np.float16(3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_value(value: Any) -> None:
    widget = ReplicasWidget(value)
    json.dumps(widget.header, allow_nan=False)
    widget.update(value)
    assert repr(widget)


def test_variables_have_names(tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        variable = tf.Variable([1.0, 2.0], name="kernel")
    widget = ReplicasWidget(variable)
    assert widget.header["sections"][0]["name"] == "kernel"
    assert widget.header["sections"][0]["equal"]
    assert ReplicasWidget(tf.constant(1.0)).header["sections"][0]["name"] == ""


def test_2048_replicas() -> None:
    widget = ReplicasWidget(PerReplica(*np.arange(2048.0)))
    assert len(column(widget.header, widget.data, "0.mean")) == 2048
    assert len(widget.data) < 100_000
