"""Cells that no longer run are freed: objects and functions are counted, not bytes."""

from __future__ import annotations

import gc
import linecache
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf
from support.cells import Notebook
from support.tiers import thorough
from tensorflow.python.eager import context

from tpunb.cells.reading.source import cell_filename
from tpunb.cells.recent_cells import RecentCells

pytestmark = pytest.mark.usefixtures("quick_collections")

KEPT = 3


@pytest.fixture(params=["virtual", *thorough(["one"])])
def book(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """A notebook that keeps a few traced cells."""
    monkeypatch.setattr("tpunb.tensorflow.cells.trace_cache._MOST_TRACED", KEPT)
    monkeypatch.setattr("tpunb.cells.recent_cells._MOST_RECENT", KEPT)
    book = Notebook(request.param)
    with book.strategy.scope():
        book.names["w"] = tf.Variable(2.0)
    book.names["x"] = tf.constant([1.0, 2.0])
    yield book
    book.runner.close()


def functions() -> int:
    """Count the functions that TensorFlow's runtime holds."""
    gc.collect()
    return len(context.context().list_function_names())


def objects(kind: str) -> int:
    gc.collect()
    return sum(1 for each in gc.get_objects() if type(each).__name__ == kind)


def run_edited(book: Notebook, numbers: range, **options: Any) -> list[weakref.ref[Any]]:
    """Run a cell that is edited before each run, and return weak references to its objects."""
    references = []
    for number in numbers:
        text = f"def scaled(v): return v * w\ny = scaled(x) + {number}.0\nloss = tf.reduce_sum(y)"
        if options:
            run = book.runner.steps(text, book.names, **options)
            run.go()
            book.names.update(run.assigned)
        else:
            book.cell(text)
        traced = book.runner.cache._traced[-1]
        references += [weakref.ref(traced), weakref.ref(traced.cell), weakref.ref(traced._function)]
    return references


@pytest.mark.parametrize("options", [{}, {"steps": 8, "steps_per_loop": 3}])
def test_edited_cells_are_freed(book: Notebook, options: dict[str, Any]) -> None:
    run_edited(book, range(2 * KEPT), **options)
    before = functions(), objects("CellSource"), objects("TracedCell"), objects("Loop")
    references = run_edited(book, range(100, 100 + 3 * KEPT), **options)
    # Without Python's collector: no cycle holds a traced cell.
    alive = [ref() for ref in references[: -3 * (KEPT + 1)]]
    assert not any(each is not None for each in alive)
    assert (functions(), objects("CellSource"), objects("TracedCell"), objects("Loop")) == before
    assert 0 < len(book.runner.cache._traced) <= KEPT <= objects("TracedCell")


def test_graphs_are_freed_without_the_garbage_collector(book: Notebook) -> None:
    gc.collect()
    gc.disable()
    try:
        before = len(context.context().list_function_names())
        run_edited(book, range(6 * KEPT))
        assert len(context.context().list_function_names()) - before <= 3 * 4 * KEPT
    finally:
        gc.enable()


def test_an_edited_cell_keeps_one_module_a_version(book: Notebook) -> None:
    """AutoGraph keeps a module for each function that it converts, until the process ends."""
    run_edited(book, range(3))
    before = len(sys.modules)
    for number in range(10):
        book.cell(f"y = x * {number}.0")
    assert len(sys.modules) - before <= 10


def test_a_cell_that_runs_again_stays_traced(book: Notebook) -> None:
    texts = [f"y = x + {number}.0" for number in range(KEPT)]
    for text in texts:
        assert book.cell(text).traced
    assert not any(book.cell(text).traced for text in texts * 3)


def test_a_cell_that_is_edited_back(book: Notebook) -> None:
    for text in ("y = x + 1.0", "y = x + 2.0"):
        book.cell(text)
    assert not book.cell("y = x + 1.0").traced
    run_edited(book, range(2 * KEPT))
    retraced = book.cell("y = x + 1.0")
    assert "too many other cells" in (retraced.trace_reason or "")
    assert book.each(retraced.assigned["y"])[0] == [2.0, 3.0]
    assert not book.cell("y = x + 1.0").traced


def test_a_run_after_a_failure_explains_its_new_trace(book: Notebook) -> None:
    text = "y = x * model.rate"
    book.plain("class Model: rate = 2.0\nmodel = Model()")
    book.cell(text)
    book.plain("class Bad: pass\nmodel = Bad()")
    with pytest.raises(AttributeError):
        book.cell(text)
    book.plain("model = Model()")
    assert (
        book.cell(text).trace_reason
        == "the notebook has replaced an object that its last trace held"
    )


def test_replaced_classes_are_freed(book: Notebook) -> None:
    references = []
    for _ in range(3):
        book.plain("class Model: rate = 2.0\nmodel = Model()")
        references.append(weakref.ref(book.names["Model"]))
        book.cell("y = x * model.rate")
    gc.collect()
    assert [ref() is None for ref in references] == [True, True, False]


def test_a_cells_text_lives_as_long_as_its_functions(book: Notebook) -> None:
    """AutoGraph reads the text of a function that it converts in a later cell."""
    text = "def sign(v):\n    if tf.reduce_sum(v) > 0.0:\n        return 1.0\n    return -1.0"
    filename = cell_filename(text)
    book.cell(text)
    book.plain("kept = sign")
    run_edited(book, range(3 * KEPT))
    gc.collect()
    assert filename in linecache.cache
    second = Notebook("one")
    book.runner.close()
    second.names.update(sign=book.names["sign"], x=book.names["x"])
    assert second.cell("y = sign(-x)").assigned["y"].numpy() == -1.0
    second.runner.close()
    second.names.clear()
    for name in ("kept", "sign"):
        del book.names[name]
    gc.collect()
    assert filename not in linecache.cache


def test_texts_of_other_cells_are_forgotten(book: Notebook) -> None:
    names = [cell_filename(f"y = x + {number}.0") for number in range(3 * KEPT)]
    for number in range(3 * KEPT):
        book.cell(f"y = x + {number}.0")
    gc.collect()
    assert sum(name in linecache.cache for name in names) == KEPT


def test_two_runners_of_the_same_cell() -> None:
    books = [Notebook("one"), Notebook("one")]
    for each in books:
        each.cell("y = 2.0")
    books[0].runner.close()
    gc.collect()
    filename = cell_filename("y = 2.0")
    assert linecache.getline(filename, 2).strip() == "y = 2.0"
    books[1].runner.close()


def test_cells_that_are_not_python_are_not_kept() -> None:
    cells = RecentCells()
    for _ in range(2):
        with pytest.raises(SyntaxError):
            cells.parsed("y = = 1")
    assert cells.parsed("y = 1") is cells.parsed("y = 1")
