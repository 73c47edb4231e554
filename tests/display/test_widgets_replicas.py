"""The widget of replica values, in the kernel."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from support.displayed import PerReplica, know_per_replica

from tpunb._util.units import number_text
from tpunb.display.describe.replicas import ReplicaValuesDescription, describe_replica_values
from tpunb.display.draw.static_forms import mimebundle
from tpunb.display.widgets.live_widget import LiveWidget
from tpunb.display.widgets.replicas import ReplicasWidget

# Old ipywidgets use a deprecated feature of traitlets.
pytestmark = [
    pytest.mark.oldest,
    pytest.mark.filterwarnings("ignore:Deprecated in traitlets:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    know_per_replica(monkeypatch)


def data(widget: ReplicasWidget) -> dict[str, str]:
    """Return the facts that the page states about itself."""
    return dict(
        re.findall(r' data-(replicas|sections?|view|mode|equal)="(.*?)"', widget.html[:300])
    )


def test_the_page_states_what_it_shows() -> None:
    parts = [np.arange(200.0).reshape(10, 20) + k for k in range(3)]
    widget = ReplicasWidget(PerReplica(*parts))
    assert data(widget) == {
        "replicas": "3",
        "sections": "1",
        "section": "0",
        "view": "heat",
        "mode": "values",
        "equal": "false",
    }
    assert "PerReplica of 3 replicas" in widget.html
    assert "2 of 3 differ from replica 0" in widget.html
    assert widget.html.count("<img") == 3


def test_equal_values_are_drawn_once() -> None:
    widget = ReplicasWidget(PerReplica(*[np.zeros((90, 90))] * 8))
    assert widget.html.count("<img") == 1
    assert len(widget.html) < 10_000
    assert 'data-part="0 1 2 3 4 5 6 7"' in widget.html


def test_pages_stay_small() -> None:
    eight = ReplicasWidget(PerReplica(*np.random.default_rng(0).random((8, 500, 500))))
    assert len(eight.html) < 320_000
    many = ReplicasWidget(PerReplica(*np.random.default_rng(0).random((64, 96, 96))))
    assert len(many.html) < 700_000
    assert len(ReplicasWidget(PerReplica(*np.arange(2048.0))).html) < 300_000


def test_views_of_small_values_need_no_value() -> None:
    """A description has all elements of small values, but of large values only a sample."""
    small = [np.arange(6) + 10 * k for k in range(3)]
    widget = ReplicasWidget(describe_replica_values(PerReplica(*small)), mode="sum")
    assert "30  33  36  39  42  45" in widget.html
    large = [np.add.outer(np.arange(300.0), np.arange(400.0)) + k for k in range(4)]
    widget = ReplicasWidget(describe_replica_values(PerReplica(*large)), mode="difference")
    assert "run the cell again" in widget.html
    widget.mode = "values"
    assert widget.html.count("<img") == 4


def test_differences_and_reductions_are_of_all_elements() -> None:
    large = [np.add.outer(np.arange(300.0), np.arange(400.0)) + k for k in range(4)]
    large[3][1, 1] = 1e6  # not in a sample
    widget = ReplicasWidget(PerReplica(*large), mode="difference", reference=1)
    assert "max |Δ| 999997" in widget.html
    widget.mode = "mean"
    assert "mean of 4 replicas" in widget.html
    assert "max 250002.2" in widget.html


def test_slices_of_the_first_axes() -> None:
    cubes = [np.arange(20 * 30 * 40.0).reshape(20, 30, 40) + k for k in range(2)]
    widget = ReplicasWidget(PerReplica(*cubes), slices=[3])
    assert "min 3600  mean 4199  max 4799" in widget.html.replace("4199.5", "4199")
    widget.pointed = {"panel": 1, "cell": [2, 5]}
    assert widget.told["text"].startswith("[3, 2, 5]\n")


@pytest.mark.parametrize(
    ("index", "cell"), [((0, 0), [0, 0]), ((150, 395), [37, 79]), ((299, 395), [74, 79])]
)
def test_a_pointed_element_is_the_values_own(index: tuple[int, int], cell: list[int]) -> None:
    large = [np.add.outer(np.arange(300.0) * 1000, np.arange(400.0)) + k for k in range(2)]
    widget = ReplicasWidget(PerReplica(*large))
    assert widget.html
    widget.pointed = {"panel": 1, "cell": cell}
    title, *told = widget.told["text"].splitlines()
    row, column = map(int, title.strip("[]").split(", "))
    assert (row, column) == (cell[0] * 4, cell[1] * 5) == (index[0] // 4 * 4, index[1])
    expected = [number_text(array[row, column].item()) for array in large]
    assert told == [f"replica {k}  {text}" for k, text in enumerate(expected)]
    widget.update("no picture")
    assert widget.told == {}


def test_pixels_of_images_are_told() -> None:
    pictures = np.random.default_rng(0).integers(0, 255, (2, 5, 16, 12, 3), np.uint8)
    widget = ReplicasWidget(PerReplica(*pictures))
    assert data(widget)["view"] == "images"
    # Three images beside each other, two pixels apart.
    widget.pointed = {"panel": 0, "cell": [18 + 4, 14 + 7]}
    first, second = (" ".join(map(str, each[4, 4, 7])) for each in pictures)
    assert widget.told["text"] == f"[4, 4, 7]\nreplica 0  {first}\nreplica 1  {second}"
    widget.pointed = {"panel": 0, "cell": [17, 0]}
    assert widget.told["text"] == "replica 0  –\nreplica 1  –"


def test_elements_beyond_a_shape_are_not_told() -> None:
    widget = ReplicasWidget(PerReplica(np.zeros((9, 9)), np.ones((12, 9))))
    assert widget.html
    widget.pointed = {"panel": 1, "at": [0.99, 0.99]}
    assert widget.told["text"] == "[11, 8]\nreplica 0  –\nreplica 1  1"


@pytest.mark.parametrize(
    "pointed",
    [{"panel": 9}, {"panel": None}, {"panel": 0, "at": "x"}, {"panel": 0, "cell": [1]}, {"at": 1}],
    ids=str,
)
def test_places_that_do_not_exist_are_not_told(pointed: dict[str, Any]) -> None:
    widget = ReplicasWidget(PerReplica(*np.zeros((2, 30, 30))))
    assert widget.html
    widget.pointed = pointed
    assert widget.told == {}


def test_sparse_values_are_not_subtracted(tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their elements at the same position have different indices."""
    first, second = (tf.sparse.from_dense(row) for row in ([0, 5, 0], [7, 0, 0]))
    widget = ReplicasWidget(PerReplica(first, second), mode="difference")
    assert data(widget)["mode"] == "values"


def test_ragged_values_with_the_same_rows_are_subtracted(tf: Any) -> None:
    first, second = tf.ragged.constant([[1, 2], [3]]), tf.ragged.constant([[1, 2], [9]])
    widget = ReplicasWidget(PerReplica(first, second), mode="difference")
    assert data(widget)["mode"] == "difference"
    assert "6" in widget.html.partition("replica 1")[2]
    other = ReplicasWidget(PerReplica(first, tf.ragged.constant([[1], [2, 9]])), mode="difference")
    assert data(other)["mode"] == "values"


@pytest.mark.parametrize(
    "state",
    [
        {"section": 5},
        {"section": -1},
        {"mode": "no such"},
        {"view": "no such"},
        {"order": "no such"},
        {"slices": [999]},
        {"slices": [0, 0, 0]},
        {"page": 99},
        {"mode": "difference", "reference": -1},
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_ignored(state: dict[str, Any]) -> None:
    widget = ReplicasWidget(PerReplica(*np.zeros((2, 300, 300))), **state)
    assert data(widget)["section"] == "0"
    assert "alert" not in widget.html


def test_the_value_is_kept_while_the_widget_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveWidget, "freeze", lambda self: None)
    widget = ReplicasWidget(PerReplica(*np.zeros((2, 300, 300))))
    widget.mode = "sum"
    assert "alert" not in widget.html
    widget.freeze()
    assert widget._leaves == []
    widget.mode = "mean"
    assert "run the cell again" in widget.html
    other = ReplicasWidget(PerReplica(*np.zeros((2, 300, 300))))
    other.close()
    assert other._leaves == []


def test_descriptions() -> None:
    description = describe_replica_values(PerReplica(*np.zeros((2, 9, 9))))
    widget = ReplicasWidget(description, link="a", selected=[1])
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
    assert "empty" in widget.html


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
    assert widget.html
    widget.update(value)
    assert repr(widget)


def test_variables_have_names(tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        variable = tf.Variable([1.0, 2.0], name="kernel")
    widget = ReplicasWidget(variable)
    assert "kernel" in widget.html
    assert data(widget)["equal"] == "true"
