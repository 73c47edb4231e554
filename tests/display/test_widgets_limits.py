"""Live displays at their limits: large, hostile, unusual, lost, many, and saved by programs."""

from __future__ import annotations

import dataclasses
import gc
import html
import json
import math
import os
import re
import subprocess
import sys
import tracemalloc
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counterparts.children import WITHOUT_KERAS
from support.markup import Tags
from support.patience import PATIENCE
from support.shell import Notebook
from support.tiers import THOROUGH, thorough

import tpunb
from tpunb.display.describe.replicas import describe_replica_values
from tpunb.display.describe.topology_description import describe_accelerator
from tpunb.display.draw.replicas.text import replicas_text
from tpunb.display.draw.static_forms import mimebundle
from tpunb.display.widgets import CurvesWidget, ReplicasWidget, TopologyWidget, frontend
from tpunb.display.widgets.live_widget import MOST_IN_A_RUN, AutoDisplays
from tpunb.tpu.types import accelerator

# Old ipywidgets use a deprecated feature of traitlets.
pytestmark = pytest.mark.filterwarnings("ignore:Deprecated in traitlets:DeprecationWarning")

VIEW = "application/vnd.jupyter.widget-view+json"
HOSTILE = ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "'\"><b>&amp;"]


@pytest.fixture
def distributed(tf: Any) -> Callable[..., Any]:
    """Return a function that makes a PerReplica."""
    from tensorflow.python.distribute.values import PerReplica

    return lambda *values: PerReplica(values)


def sent(widget: Any) -> int:
    """Count the bytes that a page gets of a widget, without the source."""
    state = {name: value for name, value in widget.get_state().items() if name[0] != "_"}
    binary = [value for value in state.values() if isinstance(value, bytes)]
    text = {name: value for name, value in state.items() if not isinstance(value, bytes)}
    return sum(map(len, binary)) + len(json.dumps(text, default=str))


def answers(widget: ReplicasWidget) -> list[str]:
    """Return a widget's pages of all views of its first leaf."""
    pages = []
    for widget.mode in ("values", "difference", "mean", "sum", "gather"):
        for widget.view in ("", "heat", "histogram", "table"):
            pages.append(widget.html)
            widget.pointed = {"panel": 0, "at": [0.5, 0.5]}
            json.dumps(widget.told, allow_nan=False)
    return pages


# Large values


def test_the_largest_topology_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    description = describe_accelerator(accelerator("v5p-17920"))
    widget = TopologyWidget(description)
    bundle = widget.static_bundle()
    assert description.num_chips == 8960
    assert sent(widget) + len(bundle["text/html"]) + len(bundle["text/plain"]) < 550_000
    assert max(map(len, bundle["text/plain"].splitlines())) < 120


@THOROUGH
def test_large_values_are_neither_copied_nor_sent(distributed: Any, tf: Any) -> None:
    side = 2000
    value = distributed(
        *[tf.random.stateless_normal([side, side], [replica, 1]) for replica in range(8)]
    )
    whole = 8 * 4 * side * side
    ReplicasWidget(distributed(*[tf.zeros([99, 99])] * 8)).live_bundle()  # imports
    tracemalloc.start()
    widget = ReplicasWidget(value)
    bundle, _ = widget.live_bundle()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < whole / 4
    assert sent(widget) < 400_000
    assert len(bundle["text/html"]) < 500_000
    assert all('role="alert"' not in answer for answer in answers(widget))


def test_a_live_display_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    widget = TopologyWidget("v5e-8")
    static = widget.static_bundle()
    monkeypatch.setattr(widget, "static_bundle", lambda: drawn.append(1) or static)
    bundle, metadata = widget.live_bundle()
    assert bundle.keys() == {VIEW, "text/plain", "text/html"}
    assert bundle["text/plain"] == static["text/plain"]
    assert "tpunb" in metadata
    assert drawn == [1]
    assert repr(widget) == static["text/plain"]


def test_many_large_leaves_stay_small(distributed: Any) -> None:
    value = {
        f"layer{number}": distributed(*[np.ones((100, 100), np.float32) * k for k in range(4)])
        for number in range(100)
    }
    widget = ReplicasWidget(value)
    assert 'data-sections="64"' in widget.html
    assert sent(widget) < 300_000
    assert len(widget.static_bundle()["text/plain"]) < 100_000


# Hostile values


def hostile_values(tf: Any, distributed: Any) -> Iterator[Any]:
    for words in HOSTILE:
        yield distributed(tf.constant(words), tf.constant(words + "!"))
        yield distributed(tf.constant([words] * 3), tf.constant([words] * 3))
        yield distributed(words, words.encode())
        yield {words: distributed(tf.ones([2]), tf.ones([2]))}
        yield {words: distributed(tf.ones([99, 99]), tf.zeros([99, 99]))}
        yield type(words, (), {"__repr__": lambda _, words=words: words})()
        yield [tf.Variable(1.0, name=words)]
        yield tf.ragged.constant([[words], [words, words]])
        yield np.array([words], dtype=object)
        yield namedtuple("Pair", "a b")(words, distributed(words, "b"))


def test_text_in_values_is_escaped(tf: Any, distributed: Any) -> None:
    for value in hostile_values(tf, distributed):
        widget = ReplicasWidget(value)
        bundle = widget.static_bundle()
        page = Tags(widget.html)
        assert not {name for name in page.attributes if name.startswith("on")}
        assert "script" not in page.names
        tags = Tags(bundle.get("text/html", ""))
        allowed = {
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "div",
            "span",
            "pre",
            "wbr",
            "b",
            "img",
        }
        assert tags.names <= allowed
        pictures = [attributes["src"] for tag, attributes in tags.found if tag == "img"]
        assert all(str(source).startswith("data:image/") for source in pictures)
        assert not {name for name in tags.attributes if name.startswith("on")}
        assert "text/html" not in bundle or tags.words
        assert bundle["text/plain"]


def test_names_of_metrics_and_runs_are_escaped() -> None:
    for words in HOSTILE:
        history = tpunb.History(words)
        history.append(1, {words: 1.0, f"val_{words}": 2.0})
        widget = CurvesWidget([history, tpunb.History("other")])
        bundle = widget.static_bundle()
        assert bundle.keys() == {"text/plain", "image/png"}
        assert words in bundle["text/plain"]
        widget.close()


def test_names_of_topologies_are_escaped() -> None:
    for words in HOSTILE:
        description = dataclasses.replace(describe_accelerator(accelerator("v3-8")), name=words)
        widget = TopologyWidget(description)
        assert html.escape(words) in widget.html
        assert Tags(widget.html).names.isdisjoint({"img", "script", "b"})
        bundle = widget.static_bundle()
        assert bundle.keys() == {"text/plain", "text/html"}
        assert Tags(bundle["text/html"]).names <= {"div", "img"}
        assert words in bundle["text/plain"]


# Unusual values

DTYPES = [
    "bool", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
    "uint64", "bfloat16", "half", "float32", "float64", "complex64", "complex128", "float8_e5m2",
    "float8_e4m3fn", "string",
]  # fmt: skip
SHAPES = [[3, 4], *thorough([[], [0], [3, 0, 2], [1, 1, 1, 1], [70], [9, 9], [8, 8, 3]])]


def tensors_of_all_types(tf: Any, shape: list[int]) -> Iterator[Any]:
    # The first shape has all types, and every other shape some types.
    for name in DTYPES if shape == SHAPES[0] else DTYPES[len(shape) :: 4]:
        dtype = tf.as_dtype(name)
        if dtype == tf.string:
            yield tf.fill(shape, "a")
        else:
            yield tf.cast(tf.ones(shape, tf.int8 if "int4" in name else tf.float32), dtype)
    for number in (math.nan, math.inf, -math.inf):
        for name in ("float32", "float64", "half", "bfloat16")[: 4 if shape == SHAPES[0] else 1]:
            yield tf.cast(tf.fill(shape, number), name)


def odd_tensors(tf: Any) -> Iterator[Any]:
    yield tf.sparse.from_dense(tf.eye(3))
    yield tf.sparse.SparseTensor(np.zeros((0, 2), np.int64), tf.zeros([0]), [5, 5])
    yield tf.IndexedSlices(tf.ones([2, 3]), tf.constant([0, 4]), tf.constant([9, 3]))
    yield tf.IndexedSlices(tf.ones([2, 3]), tf.constant([0, 4]))
    yield tf.ragged.constant([[1.0], [], [2.0, math.nan]])
    yield tf.ragged.constant([[[1]], [[2, 3], []]])
    yield tf.quantization.quantize(tf.ones([3]), 0.0, 2.0, tf.qint8).output
    yield tf.data.Dataset.range(3)
    yield tf.TensorArray(tf.float32, 2)
    yield tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), 0)
    yield None


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_type_and_shape_is_shown(tf: Any, distributed: Any, shape: list[int]) -> None:
    assert_shown(distributed, tensors_of_all_types(tf, shape))


def test_any_tensor_is_shown(tf: Any, distributed: Any) -> None:
    assert_shown(distributed, odd_tensors(tf))


def assert_shown(distributed: Any, tensors: Iterator[Any]) -> None:
    updated = ReplicasWidget(1)
    for tensor in tensors:
        for value in (distributed(tensor, tensor), distributed(tensor), {"a": tensor}):
            # The widget has shown other values before.
            assert updated.update(value)
            assert "data-sections" in updated.html
            description = describe_replica_values(value)
            assert updated.description == description
            assert replicas_text(description)
            if isinstance(value, dict):
                continue
            assert all(answers(updated))
        assert mimebundle(description).keys() & {"image/png", "text/html"}


def test_replicas_with_different_kinds_of_values(tf: Any, distributed: Any) -> None:
    odd = [tf.ones([3]), tf.ones([4], tf.int32), "text", None, tf.sparse.from_dense(tf.eye(3))]
    for value in (distributed(*odd), distributed({"a": 1}, {"b": 2}), distributed((1, 2), 3)):
        widget = ReplicasWidget(value)
        assert widget.html
        assert widget.static_bundle()["text/plain"]
        answers(widget)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32])
def test_only_extreme_values(distributed: Any, kind: Any) -> None:
    info = np.finfo(kind) if kind is not np.int32 else np.iinfo(kind)
    large = np.full((200, 200), info.max, kind)
    value = distributed(large, large * kind(-1))
    widget = ReplicasWidget(value)
    assert all('role="alert"' not in answer for answer in answers(widget))
    assert "<img" in widget.static_bundle()["text/html"]


# Lost values


@pytest.mark.usefixtures("tf")
def test_values_of_a_closed_connection() -> None:
    import tensorflow as tf

    with tpunb.connect(simulate=2) as connection:
        with connection.strategy.scope():
            variable = tf.Variable(tf.ones([300, 300]))
        step = connection.strategy.run(tf.function(lambda: tf.ones([300, 300])))
        widgets = [ReplicasWidget(value) for value in (variable, step, [variable, step])]
        topology = TopologyWidget(connection)
    for widget in widgets:
        answers(widget)
        assert "<img" in widget.live_bundle()[0]["text/html"]
    for value in (variable, step):
        assert ReplicasWidget(value).static_bundle()["text/plain"]
    topology.colour = "memory"
    assert "variables" in topology.html
    assert topology.static_bundle()["text/html"]


def test_deleted_variables(tf: Any) -> None:
    variable = tf.Variable(tf.ones([300, 300]), name="gone")
    widget = ReplicasWidget(variable)
    tf.raw_ops.DestroyResourceOp(resource=variable.handle)
    answers(widget)
    assert "<img" in widget.static_bundle()["text/html"]
    later = ReplicasWidget([variable, 1])
    assert 'data-sections="2"' in later.html
    assert later.static_bundle()["text/plain"]


def test_closed_and_frozen_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    history = tpunb.History()
    history.append(1, loss=1.0)
    widgets = [
        (TopologyWidget("v3-8"), "v4-8"),
        (ReplicasWidget([1, 2]), {"a": "b"}),
        (CurvesWidget(history), history),
    ]
    monkeypatch.setenv(frontend.VARIABLE, "always")
    for widget, other in widgets:
        widget.freeze()
        assert widget.update(other)
        widget.close()
        widget.close()
        assert widget.update(other)
        widget.show()
        widget.freeze()
        assert repr(widget)
        assert widget.static_bundle()["text/plain"]
    history.append(2, loss=0.5)


class Big:
    """A stand-in for a value that takes much memory."""


@pytest.mark.usefixtures("tf")
def test_replaced_values_are_freed(distributed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = iter(range(100))
    monkeypatch.setattr(frontend, "cell_id", lambda: "a")
    monkeypatch.setattr(frontend, "execution", lambda: next(run))

    def display(displays: AutoDisplays, kind: Any, value: Any) -> Any:
        return displays.widget(kind, value, lambda: kind(value))

    displays = AutoDisplays()
    big = Big()
    gone = weakref.ref(big)
    widget = display(displays, ReplicasWidget, distributed(big, big))
    assert widget._leaves
    # A value of another kind replaces the widget.
    topology = display(displays, TopologyWidget, "v3-8")
    assert widget.comm is None
    del big
    gc.collect()
    assert gone() is None
    big = Big()
    gone = weakref.ref(big)
    other = display(displays, ReplicasWidget, distributed(big, big))
    assert topology.comm is None
    displays.close()
    assert other.comm is not None
    assert not other._leaves
    del big
    gc.collect()
    assert gone() is None


def test_a_history_keeps_its_widget_in_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    run = iter(range(100))
    monkeypatch.setattr(frontend, "cell_id", lambda: "a")
    monkeypatch.setattr(frontend, "execution", lambda: next(run))
    displays = AutoDisplays()
    first_run, second_run = tpunb.History("one"), tpunb.History("two")

    def display(value: Any) -> Any:
        kind = CurvesWidget
        return displays.widget(kind, value, lambda: kind(value))

    first = display(first_run)
    assert display(first_run) is first
    assert display([first_run]) is first
    second = display([first_run, second_run])
    assert second is not first
    assert first.comm is None
    # The first widget no longer follows the history.
    first_run.append(1, loss=1.0)
    assert first._follower is not None
    assert not first._follower.running
    assert second._follower is not None
    assert second._follower.running
    second.close()


# Many displays


@pytest.mark.usefixtures("tf")
def test_displays_in_a_loop(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    book.good("%load_ext tpunb\n%tpu_connect --simulate 2")
    book.good("%%tpu_run\nx = replica_id\nNone")
    monkeypatch.setenv(frontend.VARIABLE, "always")
    bundles = book.good("from IPython.display import display\nfor _ in range(30): display(x)").shown
    assert [VIEW in bundle for bundle in bundles] == [True] * MOST_IN_A_RUN + [False] * 6
    assert {bundle["text/html"] for bundle in bundles} == {bundles[0]["text/html"]}
    book.shell.execution_count += 1
    assert VIEW in book.good("x").shown[0]


# Saved notebooks

SETUP = WITHOUT_KERAS + "import tensorflow as tf, tpunb\n%load_ext tpunb\n%tpu_connect --simulate 2"
CELLS = [
    SETUP,
    "%%tpu_run\nx = tf.ones([20, 20]) * tf.cast(replica_id, tf.float32)\nx",
    "%%tpu_run\nreplica_id",
    "history = tpunb.History('run')\nhistory.append(1, {'</script>': 1.0})\nhistory",
    "curves = tpunb.show(history)\nhistory.append(2, {'</script>': 2.0})\ncurves.freeze()",
    "tpunb.show('v4-32')",
]
EXECUTE = """
import sys, nbformat, nbclient
from nbformat.v4 import new_code_cell, new_notebook
notebook = new_notebook(cells=[new_code_cell(source) for source in {cells!r}])
nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[1])
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Execute and save a notebook of all displays, as a program does."""
    path = tmp_path_factory.mktemp("saved") / "executed.ipynb"
    signs = ("JPY_SESSION_NAME", "SERVER_SOFTWARE", frontend.VARIABLE)
    environment = {name: value for name, value in os.environ.items() if name not in signs}
    command = [sys.executable, "-c", EXECUTE.format(cells=CELLS), str(path)]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=PATIENCE)
    return path


@pytest.mark.tensorflow
@THOROUGH
def test_programs_save_static_forms(saved: Path) -> None:
    notebook = json.loads(saved.read_text())
    outputs = [output for cell in notebook["cells"] for output in cell["outputs"]]
    bundles = [output["data"] for output in outputs if "data" in output]
    assert not any(VIEW in bundle for bundle in bundles)
    # A saved state would be larger than everything else, and would need a script from a CDN.
    assert "widgets" not in notebook["metadata"]
    pictures = [
        "image/png" in bundle or "<img" in "".join(bundle.get("text/html", []))
        for bundle in bundles
    ]
    assert sum(pictures) >= 4
    assert all("text/plain" in bundle for bundle in bundles)
    assert saved.stat().st_size < 1_000_000


@pytest.mark.tensorflow
@THOROUGH
def test_a_page_of_static_forms(saved: Path) -> None:
    nbconvert = pytest.importorskip("nbconvert")
    page, _ = nbconvert.HTMLExporter().from_filename(str(saved))
    saved_text = saved.read_text()
    # The metadata of a picture, which has its alternative text, has the same key.
    pictures_saved = saved_text.count('"image/png": "') + saved_text.count('src=\\"data:image/')
    assert page.count('src="data:image/') == pictures_saved > 4
    assert "<table" in page
    assert not re.search(r"widget-view|widget-state|anywidget|html-manager", page)
    assert "Error displaying widget" not in page
