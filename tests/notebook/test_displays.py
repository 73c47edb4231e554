"""When displays are live, where a widget appears, and how it freezes."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from support.shell import Notebook

import tpunb
from tpunb.connection.tpu_connection import open_connections
from tpunb.display import widgets
from tpunb.display.widgets import CurvesWidget, ReplicasWidget, TopologyWidget, frontend
from tpunb.display.widgets import live_widget as _base
from tpunb.display.widgets.live_widget import MOST_IN_A_RUN, AutoDisplays
from tpunb.display.widgets.page_data import es_module

pytestmark = pytest.mark.oldest

VIEW = "application/vnd.jupyter.widget-view+json"
SIGNS = ("JPY_SESSION_NAME", "SERVER_SOFTWARE", "KAGGLE_KERNEL_RUN_TYPE", frontend.VARIABLE)


class Word(_base.LiveWidget):
    """A widget that shows a word."""

    _esm = "export default { render() {} };"

    def __init__(self, word: str = "", **state: Any) -> None:
        super().__init__(**state)
        self.word = word

    def update(self, value: str) -> bool:
        self.word = value
        return True

    def static_bundle(self) -> dict[str, Any]:
        return {"text/plain": self.word, "image/png": b"\x89PNG" + self.word.encode()}


class Shell:
    """The part of a kernel's shell that displays use."""

    def __init__(self) -> None:
        self.kernel = object()
        self.user_ns: dict[str, Any] = {}
        self.execution_count = 1
        self.cell: str | None = "a"
        self.published: list[tuple[dict[str, Any], dict[str, Any], str, bool]] = []
        self.display_pub = types.SimpleNamespace(publish=self.publish)

    def get_parent(self) -> dict[str, Any]:
        return {"metadata": {} if self.cell is None else {"cellId": self.cell}}

    def publish(
        self, data: dict[str, Any], metadata: dict[str, Any], *, transient: Any, update: bool
    ) -> None:
        self.published.append((data, metadata, transient["display_id"], update))

    def run(self, cell: str | None) -> None:
        self.execution_count += 1
        self.cell = cell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    for sign in SIGNS:
        monkeypatch.delenv(sign, raising=False)
    shell = Shell()
    monkeypatch.setattr(frontend, "_shell", lambda: shell)
    return shell


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("JPY_SESSION_NAME", "/home/me/a.ipynb", True),
        ("SERVER_SOFTWARE", "voila/0.5.8", True),
        ("SERVER_SOFTWARE", "nginx", False),
        ("KAGGLE_KERNEL_RUN_TYPE", "Interactive", True),
        ("KAGGLE_KERNEL_RUN_TYPE", "Batch", False),
        ("TPUNB_WIDGETS", "always", True),
        ("TPUNB_WIDGETS", "nonsense", False),
    ],
)
def test_front_ends_are_recognised(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: bool
) -> None:
    assert not frontend.shows_widgets()
    monkeypatch.setenv(variable, value)
    assert frontend.shows_widgets() is expected
    monkeypatch.setenv(frontend.VARIABLE, "never")
    assert not frontend.shows_widgets()


def test_vs_code_and_colab(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.user_ns["__vsc_ipynb_file__"] = "/a.ipynb"
    assert frontend.shows_widgets()
    shell.user_ns.clear()
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    assert frontend.shows_widgets()


def test_a_terminal_has_no_widgets(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "inherited")
    del shell.kernel
    assert not frontend.shows_widgets()


def test_showing_and_freezing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(frontend.VARIABLE, "always")
    widget = Word("one")
    widget.show()
    widget.show()
    widget.word = "two"
    widget.freeze()
    widget.freeze()
    (live, metadata, first, update), (_, _, second, _), *frozen = shell.published
    assert live.keys() == {VIEW, "text/plain", "image/png"}
    assert live[VIEW]["model_id"] == widget.model_id
    assert live["image/png"] == "iVBOR29uZQ=="  # base64: a front end gets text
    assert metadata == {"tpunb": {}, "image/png": {"alt": "one"}}
    assert not update
    assert first != second
    assert [(name, updated) for *_, name, updated in frozen] == [(first, True), (second, True)]
    for data, *_ in frozen:
        assert data == {"text/plain": "two", "image/png": "iVBOR3R3bw=="}
    widget.show()
    assert VIEW in shell.published[-1][0]


def test_static_where_widgets_cannot_run(shell: Shell) -> None:
    Word("one")._ipython_display_()
    ((data, metadata, _, _),) = shell.published
    assert data.keys() == {"text/plain", "image/png"}
    assert metadata == {"image/png": {"alt": "one"}}


def test_a_widget_is_shown_once_in_its_own_cell(shell: Shell) -> None:
    widget = Word("one")
    widget.show_once()
    widget._ipython_display_()  # as the cell's value
    assert len(shell.published) == 1
    widget._ipython_display_()  # displayed a second time
    assert len(shell.published) == 2
    widget.show_once()
    shell.run("b")
    widget._ipython_display_()
    assert len(shell.published) == 4


def test_without_ipython(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(frontend, "_shell", lambda: None)
    widget = Word("one")
    widget.show_once()
    widget.freeze()
    assert capsys.readouterr().out == "one\n"


def test_in_marimo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[Any] = []
    marimo = types.SimpleNamespace(
        running_in_notebook=lambda: True, output=types.SimpleNamespace(append=shown.append)
    )
    monkeypatch.setitem(sys.modules, "marimo", marimo)
    monkeypatch.setattr(frontend, "_shell", lambda: None)
    widget = Word("one")
    widget.show_once()  # it is the value of the cell, which the page shows anyway
    assert shown == []
    widget.show()
    widget.freeze()
    assert shown == [widget]  # live: marimo redraws it
    assert capsys.readouterr().out == ""
    marimo.running_in_notebook = lambda: False  # a script that imports marimo
    widget.show_once()
    assert capsys.readouterr().out == "one\n"


@pytest.fixture
def display(shell: Shell) -> Callable[[str], Any]:
    displays = AutoDisplays()
    return lambda word: displays.widget(Word, word, lambda: Word(word))


def test_a_cell_reuses_its_widgets(shell: Shell, display: Callable[[str], Any]) -> None:
    first, second = display("one"), display("two")
    assert first is not second
    shell.run("b")
    other = display("three")
    assert other not in (first, second)
    shell.run("a")
    assert display("four") is first
    assert first.word == "four"
    assert display("five") is second
    assert display("six") not in (first, second, other)


def test_a_closed_widget_is_replaced(shell: Shell, display: Callable[[str], Any]) -> None:
    first = display("one")
    first.close()
    shell.run("a")
    assert display("two") is not first


def test_cells_without_ids_share_no_widgets(shell: Shell, display: Callable[[str], Any]) -> None:
    shell.run(None)
    first = display("one")
    shell.run(None)
    assert display("one") is not first


def test_a_loop_shows_static_pictures_after_a_while(
    shell: Shell, display: Callable[[str], Any]
) -> None:
    widgets = [display(str(number)) for number in range(MOST_IN_A_RUN + 3)]
    assert widgets[MOST_IN_A_RUN:] == [None] * 3
    assert len(set(widgets[:MOST_IN_A_RUN])) == MOST_IN_A_RUN
    shell.run("a")
    assert display("again") is widgets[0]


@pytest.mark.usefixtures("tf")
def test_displays_of_a_shell(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    book.good("%load_ext tpunb\n%tpu_connect --simulate 2")
    value = "%%tpu_run\nreplica_id"
    assert VIEW not in book.good(value).shown[-1]
    monkeypatch.setenv(frontend.VARIABLE, "always")
    for source in (value, "topology", "%tpu_topology", "%tpu_topology v4-32", "{'a': _}"):
        bundle = book.good(source).shown[-1]
        static = {"image/png", "text/html"} & bundle.keys()
        assert len(static) == (0 if source == "{'a': _}" else 1), source
    monkeypatch.setenv(frontend.VARIABLE, "never")
    assert VIEW not in book.good("topology").shown[-1]


@pytest.mark.usefixtures("tf")
def test_show_chooses_the_widget(shell: Shell) -> None:
    for opened in open_connections():  # left open by earlier tests
        opened.close()
    with tpunb.connect(simulate=2) as connection:
        shown = {
            TopologyWidget: [
                connection,
                connection.topology,
                "v3-8",
                tpunb.accelerator("v4-8"),
            ],
            CurvesWidget: [tpunb.History(), [tpunb.History("a"), tpunb.History("b")]],
            ReplicasWidget: [1, "words", [], [1, 2], {"a": None}, object()],
        }
        for kind, values in shown.items():
            for value in values:
                widget = tpunb.show(value)
                assert isinstance(widget, kind)
                assert widget.link == connection.link
                widget.freeze()
    before = len(shell.published)
    widget = tpunb.show("v3-8")
    assert tpunb.show(widget) is widget
    assert widget.link == ""
    assert len(shell.published) == before + 2


@pytest.mark.parametrize("name", ["CurvesWidget", "ReplicasWidget", "TopologyWidget"])
def test_a_widget_is_a_single_module(name: str) -> None:
    source = str(getattr(widgets, name)._esm)
    assert source.count("export ") == 1
    assert "export default" in source
    assert "\nimport " not in source
    assert "http://" not in source.replace("http://www.w3.org", "")


def test_modules_are_joined_once() -> None:
    source = es_module("saving.js")
    assert "function saveStatically" in source
    assert "export" not in source
