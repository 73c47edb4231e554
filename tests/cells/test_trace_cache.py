"""Cells that run again after a change of something that they read."""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest
import tensorflow as tf
from support.cells import Notebook

MODULE = """
    import functools
    import tensorflow as tf
    LR = 2.0
    def scaled(x): return x * LR
    def branched(x):
        if tf.reduce_sum(x) > 0.0:
            x = x * LR
        return x
    @functools.wraps(scaled)
    def wrapped(x): return scaled(x) + 1.0
    compiled = tf.function(lambda x: x * LR)
    class Model:
        rate = 2.0
        def __init__(self): self.seen, self.settings = 0, {"rate": 2.0}
        def __call__(self, x): return x * self.rate * self.settings["rate"]
        def count(self, x):
            self.seen += 1
            return x
    model = Model()
    @tf.custom_gradient
    def custom(x): return x * LR, lambda upstream: upstream * LR
"""


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """A notebook that has imported a module of the user's, and has a tensor."""
    (tmp_path / "edited.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    book = Notebook("one")
    book.plain("import edited\nx = tf.constant([1.0, 2.0])")
    yield book
    book.runner.close()
    sys.modules.pop("edited", None)


CHANGES = [
    ("edited.LR * x", "edited.LR = 5.0"),
    ("edited.scaled(x)", "edited.LR = 5.0"),
    ("edited.branched(x)", "edited.LR = 5.0"),
    ("edited.wrapped(x)", "edited.LR = 5.0"),
    ("edited.custom(x)", "edited.LR = 5.0"),
    ("edited.compiled(x)", "edited.LR = 5.0"),  # an ordinary cell would keep the trace, too
    ("edited.compiled(x)", "edited.compiled = tf.function(lambda x: x * 7.0)"),
    ("edited.model(x)", "edited.Model.rate = 5.0"),
    ("edited.model(x)", "edited.model.settings['rate'] = 5.0"),
    ("edited.model(x)", "edited.model = edited.Model(); edited.model.rate = 3.0"),
    ("edited.scaled(x)", "edited.scaled = lambda x: x * 9.0"),
    ("edited.branched(x)", "def new(x): return x * 9.0\nedited.branched.__code__ = new.__code__"),
]


@pytest.mark.parametrize(("text", "change"), CHANGES)
def test_results_follow_changes_as_in_an_ordinary_cell(
    book: Notebook, text: str, change: str
) -> None:
    for after in ("", change, ""):
        book.plain(after)
        book.plain(f"plain = {text}")
        book.cell(f"y = {text}")
        assert book.names["y"].numpy().tolist() == book.names["plain"].numpy().tolist()
    assert not book.cell(f"y = {text}").traced


def test_verbose_names_the_change(book: Notebook) -> None:
    for text, reason in (
        ("y = edited.LR * x", "`edited.LR` is now 5.0, was 2.0"),
        ("y = edited.scaled(x)", "`LR`, which `scaled` reads, is now 5.0, was 2.0"),
    ):
        book.plain("edited.LR = 2.0")
        book.cell(text)
        book.plain("edited.LR = 5.0")
        assert book.cell(text).trace_reason == reason


def test_going_back_finds_the_old_trace(book: Notebook) -> None:
    traced = []
    for rate in (1.0, 2.0, 1.0, 2.0):
        book.plain(f"edited.LR = {rate}")
        result = book.cell("y = edited.scaled(x)")
        assert result.assigned["y"].numpy().tolist() == [rate, 2 * rate]
        traced.append(result.traced)
    assert traced == [True, True, False, False]


def test_an_edited_and_reloaded_file(book: Notebook, tmp_path: Path) -> None:
    text = "y = edited.branched(x)"
    book.cell(text)
    book.plain("import importlib; importlib.reload(edited)")
    assert not book.cell(text).traced
    path = tmp_path / "edited.py"
    path.write_text(path.read_text().replace("x = x * LR", "x = x * LR * 3"))
    book.plain("import importlib; importlib.invalidate_caches(); importlib.reload(edited)")
    assert book.cell(text).assigned["y"].numpy().tolist() == [6.0, 12.0]
    assert not book.cell(text).traced


def _patch(function: FunctionType, path: Path) -> None:
    """Patch a function as IPython's `%autoreload 2` does, with wrong line numbers."""
    tree = ast.parse(path.read_text())
    names = function.__qualname__.split(".")
    node: ast.AST = tree
    for name in names:
        body = node.body  # type: ignore[attr-defined]
        node = next(each for each in body if getattr(each, "name", "") == name)
    patched: dict[str, FunctionType] = {}
    text = ast.unparse(node)
    exec(compile(text, function.__code__.co_filename, "exec"), function.__globals__, patched)
    function.__code__ = patched[names[-1]].__code__


def test_functions_patched_by_autoreload(book: Notebook, tmp_path: Path) -> None:
    """AutoGraph must find their text although their line numbers are wrong."""
    path = tmp_path / "edited.py"
    edited = book.names["edited"]
    for text, old, new, function, expected in (
        ("y = edited.branched(x)", "x = x * LR", "x = x * LR * 3", edited.branched, [6.0, 12.0]),
        ("y = edited.model(x)", "x * self.rate *", "7 * self.rate *",
         edited.Model.__call__, 28.0),
    ):  # fmt: skip
        book.cell(text)
        path.write_text(path.read_text().replace(old, new))
        _patch(function, path)
        assert "has been edited" in (book.cell(text).trace_reason or "")
        assert np.asarray(book.names["y"]).tolist() == expected
        assert not book.cell(text).traced


def test_an_edited_file_that_is_not_reloaded(book: Notebook, tmp_path: Path) -> None:
    code = book.names["edited"].scaled.__code__
    path = tmp_path / "edited.py"
    path.write_text("# more\n\n" + path.read_text().replace("return x * LR", "return 9 * x"))
    book.cell("y = edited.scaled(x)")
    assert book.names["edited"].scaled.__code__ is code


def test_a_counter_of_the_cell_causes_no_trace(book: Notebook) -> None:
    text = "y = edited.model.count(x)"
    assert [book.cell(text).traced for _ in range(3)] == [True, False, False]
    other = "z = edited.model.count(x) + 1.0"
    assert [book.cell(each).traced for each in (other, text, other)] == [True, False, False]


def test_layers_with_settings(book: Notebook) -> None:
    book.plain(
        """
import keras
class Scale(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.rate = 2.0
    def build(self, shape): self.w = self.add_weight(shape=(), initializer="ones")
    def call(self, x): return x * self.rate * self.w
layer = Scale()
model = keras.Sequential([layer, keras.layers.Dense(1, kernel_initializer="ones")])
x = tf.ones([2, 3])
"""
    )
    text = "y = model(x)\nz = len(model.trainable_variables)"
    seen = []
    for change in ("", "", "layer.rate = 5.0", "", "layer.trainable = False", "", "del model, x"):
        if change.startswith("del"):
            break
        book.plain(change)
        result = book.cell(text)
        seen.append((result.traced, float(book.names["y"][0, 0]), book.names["z"]))
    assert [each[1:] for each in seen] == [(6.0, 3)] * 2 + [(15.0, 3)] * 2 + [(15.0, 2)] * 2
    assert [traced for traced, *_ in seen] == [True, False, True, False, True, False]


def test_many_steps_check_dependencies_once(
    book: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = []
    change = "tpunb.cells.reading.dependencies.Dependencies.change"
    real = __import__("tpunb.cells.reading.dependencies", fromlist=["_"]).Dependencies.change
    monkeypatch.setattr(change, lambda self: checks.append(1) or real(self))
    for rate in (2.0, 3.0):
        book.plain(f"edited.LR = {rate}\nx = tf.constant([1.0, 2.0])")
        checks.clear()
        text = "x = x + edited.scaled(tf.ones(2))"
        run = book.runner.steps(text, book.names, steps=30, steps_per_loop=2)
        run.go()
        assert run.assigned["x"].numpy().tolist() == [1 + 30 * rate, 2 + 30 * rate]
        assert len(checks) < 6  # not once a step


def test_unchanged_tensors_cause_no_trace(book: Notebook) -> None:
    book.plain("edited.mean = tf.zeros(2)")
    assert book.cell("y = x - edited.mean").traced
    assert not book.cell("y = x - edited.mean").traced
    book.plain("edited.mean = tf.ones(2)")
    assert book.cell("y = x - edited.mean").assigned["y"].numpy().tolist() == [0.0, 1.0]
    assert isinstance(book.names["x"], tf.Tensor)
