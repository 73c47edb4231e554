"""Warnings and errors of cells that would otherwise silently do something unexpected."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.cells import Notebook

from tpunb.errors import CellError, TpuWarning


def warnings_of(book: Notebook, text: str, **options: Any) -> list[str]:
    """Return the warnings of a cell, each with its line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        book.cell(text, **options)
    return [f"{each.lineno}: {each.message}" for each in caught if each.category is TpuWarning]


LOST = [
    ("if replica_id == 0:\n    a = 1.0", "a = 0.0", 3),
    ("if replica_id == 0:\n    a = 3", "a = 0", 3),
    ("if replica_id == 0:\n    a = x + 1.0", "a = tf.zeros([2])", 3),
    ("if replica_id == 0:\n    pass\nelse:\n    a = tf.cast(x, tf.int32)", "tf.zeros([2], tf.int32)", 5),
    ("if replica_id == 0:\n    if replica_id < 5:\n        a = True", "a = False", 4),
    ("for i in tf.range(3):\n    a = x * 2.0", "a = tf.zeros([2])", 3),
    ("if replica_id == 0:\n    a, b = 1.0, 2.0", "`a`, `b` do not come back", 3),
    ("if replica_id == 0:\n    a = 1.0\nx", "a = 0.0", 3),
    ("if replica_id == 0:\n    def a():\n        return 1.0", "defines it only within a branch", 3),
    ("if replica_id == 0:\n    class a:\n        b = 1.0", "Define it outside", 3),
    ("for i in tf.range(3):\n    def a(): pass\nx", "`a` does not come back", 3),
    ("if True:\n    def a(): pass\n    def b(): pass", "`a`, `b` do not come back", 3),
    ("try:\n    @tf.function\n    def a(): pass\nexcept ValueError: pass", "a `try`", 4),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words", "line"), LOST)
def test_lost_names(text: str, words: str, line: int) -> None:
    book = Notebook("virtual")
    book.names["x"] = tf.constant([1.0, 2.0])
    (message,) = warnings_of(book, text)
    assert message.startswith(f"{line}: `a`")
    assert words in message
    assert "a" not in book.names
    assert warnings_of(book, text) == []  # the cell is not traced again
    book.runner.close()


@pytest.mark.parametrize(
    "text",
    [
        "a = 0.0\nif replica_id == 0:\n    a = 1.0",
        "if replica_id == 0:\n    a = 1.0\nelse:\n    a = 2.0",
        "if True:\n    a = 1.0",
        "for a in range(3): pass",
        "def a():\n    return 1.0\nif replica_id == 0:\n    def _a(): pass",
        "def f(v):\n    def a(): pass\n    return v\nf(x)",
        "total = 0.0\nfor i in tf.range(3):\n    part = x * 2.0\n    total = total + tf.reduce_sum(part)",
        "def f(v):\n    if replica_id == 0:\n        a = 1.0\n    return v\nf(x)",
        "with tf.GradientTape() as tape:\n    tf.reduce_sum(x)",
        "x + 1.0",
    ],
)
def test_kept_names(text: str) -> None:
    book = Notebook("virtual")
    book.names["x"] = tf.constant([1.0, 2.0])
    assert warnings_of(book, text) == []
    book.runner.close()


def test_a_lost_name_keeps_the_notebooks_value() -> None:
    book = Notebook("virtual")
    book.names["a"] = 5.0
    assert warnings_of(book, "if replica_id == 0:\n    a += 1.0") == []
    assert book.each(book.names["a"]) == [6.0, 5.0]
    book.runner.close()


@pytest.mark.parametrize(
    "expression", ["x.values[0]", "tf.reduce_sum(x.values[1])", "len(x.values)"]
)
def test_the_values_of_a_replica(expression: str) -> None:
    book = Notebook("virtual")
    book.cell("x = tf.cast(replica_id, tf.float32)")
    with pytest.raises(CellError, match="Inside the cell, `x` is this replica's value") as caught:
        book.cell(f"y = {expression}")
    assert caught.value.tpunb_lines == [2]  # type: ignore[attr-defined]
    book.cell(f"y = {caught.value.fix.split('`')[3]}")  # the suggested code works
    assert book.each(book.names["y"]) == [0.0, 0.0]
    # Indexed slices have values.
    book.cell("y = tf.IndexedSlices(tf.ones([1]), tf.constant([0])).values")
    book.runner.close()


ARRAYS = {
    "of a function": ("def f(): return tf.constant(data[::1000])", "f()", "data"),
    "of a nested function": (
        "def g():\n    def inner(): return tf.constant(data[::1000])\n    return inner()", "g()", "data"),
    "of an object": ("class D: pass\nd = D()\nd.data = data", "tf.constant(d.data[::1000])", "data"),
    "in a list of an object": (
        "class D: pass\nd = D()\nd.held = [data]", "tf.constant(d.held[0][::1000])", "data"),
    "closed over": (
        "def make(v):\n    return lambda: tf.constant(v[::1000])\nf = make(data)", "f()", "data"),
    "a view with steps": (
        "half = data[::2]\ndef f(): return tf.constant(half[::500])", "f()", "half"),
}  # fmt: skip
CHANGES = (
    "data[5000] = 7.0",
    "data += 1.0",
    "data[:] = data[::-1].copy()",
    "np.random.shuffle(data)",
)


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_changed_in_place(kind: str) -> None:
    setup, text, _ = ARRAYS[kind]
    book = Notebook("one")
    book.names["data"] = np.arange(10_000.0)  # 80 KB
    book.plain(setup)
    for change in ("", *CHANGES):
        book.plain(change)
        book.plain(f"plain = {text}")
        result = book.cell(f"y = {text}")
        assert book.names["y"].numpy().tolist() == book.names["plain"].numpy().tolist()
        assert not change or "has changed in place" in (result.trace_reason or ""), change
    assert not book.cell(f"y = {text}").traced
    assert warnings_of(book, f"y = {text} + 0.0") == []
    book.runner.close()


def test_arrays_too_large_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpunb.cells.reading.dependencies._MOST_COMPARED", 100_000)
    book = Notebook("one")
    book.names["data"] = np.arange(40_000.0)
    book.plain("def f(): return tf.constant(data[::1000])")
    (message,) = warnings_of(book, "y = f()")
    assert message.startswith("1: `data` (")
    assert "may go on with the former ones" in message
    assert warnings_of(book, "y = f()") == []
    book.plain("data += 1.0")  # most changes are noticed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert book.cell("y = f()").assigned["y"].numpy()[0] == 1.0
    assert warnings_of(book, "y = tf.reduce_sum(data)") == []  # arguments are read in each run
    book.runner.close()
