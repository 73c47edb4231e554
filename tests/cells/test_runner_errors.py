"""Cells that fail, and the reasons why a cell is traced again."""

from __future__ import annotations

import gc
import linecache
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cells import Notebook

from tpunb.cells.reading.source import cell_filename
from tpunb.cells.reading.undefined_names import CellNameError
from tpunb.errors import CellError


class Unusual(Exception):
    """An exception that AutoGraph cannot recreate."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)


def failing(book: Notebook, text: str, kind: type[BaseException], **options: Any) -> Any:
    with pytest.raises(kind) as caught:
        book.cell(text, **options)
    return caught.value


def test_error_in_the_trace(book: Notebook) -> None:
    book.names["x"] = tf.ones([2, 3])
    error = failing(book, "y = x + 1\nfor i in range(2):\n  z = tf.matmul(x,\n    x)", ValueError)
    assert error.tpunb_lines == [4]
    assert "line 4 of the cell: z = tf.matmul(x," in getattr(error, "__notes__", [str(error)])[
        0
    ] or not (hasattr(error, "add_note"))


def test_error_in_the_run(book: Notebook) -> None:
    book.names["x"] = tf.constant(1.0)
    text = "y = x - 1\nz = tf.debugging.check_numerics(x / y, 'not a number')\nz"
    error = failing(book, text, tf.errors.InvalidArgumentError)
    assert error.tpunb_lines == [3]
    book.names["x"] = tf.constant(2.0)
    assert not book.cell(text).traced


def test_error_in_a_function_of_the_cell(book: Notebook) -> None:
    error = failing(book, "def f(v):\n  raise KeyError(v)\nf(\n 'k')", KeyError)
    assert error.tpunb_lines[-1] == 3


def test_error_that_autograph_cannot_recreate(book: Notebook) -> None:
    book.names["Unusual"] = Unusual
    error = failing(book, "x = 1\nif x:\n  raise Unusual(1, 2)", Unusual)
    assert error.args == (1, 2)
    assert error.tpunb_lines == [4]


def test_error_in_code_that_autograph_does_not_convert(single: Notebook) -> None:
    error = failing(single, "if (n := 3):\n  raise OSError('o')", OSError)
    assert error.tpunb_lines == [3]


def test_a_failed_trace_leaves_nothing(single: Notebook) -> None:
    single.plain("def f(v): return v.nothing")
    failing(single, "y = f(tf.constant(1))", AttributeError)
    assert (single.runner.traces, "y" in single.names) == (0, False)
    single.plain("def f(v): return v + 1")
    result = single.cell("y = f(tf.constant(1))")
    assert (int(result.assigned["y"]), result.trace_reason) == (2, "first run")


@pytest.mark.parametrize("text", ["lss", "y = 1\nlss + y", "lss += 1", "with lss: pass"])
def test_undefined_name(single: Notebook, text: str) -> None:
    single.names["loss"] = 1
    error = failing(single, text, CellNameError)
    assert isinstance(error, NameError)
    assert "name `lss` is not defined" in str(error)
    assert "`loss`" in str(error)
    assert f"Line {text.count(chr(10)) + 2}" in str(error)


def test_undefined_names_that_may_not_be_needed(single: Notebook) -> None:
    assert single.cell("def f(): return nothing\n1").value == 1
    assert single.cell("2 if True else nothing").value == 2
    failing(single, "if True: nothing", NameError)


@pytest.mark.parametrize(
    "source",
    [
        "tf.data.Dataset.range(4).batch(2)",
        "iter(tf.data.Dataset.range(4).batch(2))",
        "strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2))",
        "iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)))",
    ],
)
def test_datasets(single: Notebook, source: str) -> None:
    single.names["strategy"] = single.strategy
    single.plain(f"data = {source}")
    error = failing(single, "x = data", CellError)
    assert "next(iter(data))" in str(error)
    assert "-d data" in str(error)


def test_values_of_another_strategy() -> None:
    two, single = Notebook("mirrored"), Notebook("one")
    two.cell("x = replica_id")
    single.names["x"] = two.names["x"]
    assert "2 replicas" in str(failing(single, "x + 1", CellError))


def test_changes_in_place(book: Notebook) -> None:
    book.names |= {"kept": [], "d": {"a": tf.constant(1)}, "x": tf.constant(1)}
    assert "`kept`" in str(failing(book, "kept.append(x)", CellError))
    assert book.names["kept"] == []
    assert "`d`" in str(failing(book, "d['b'] = x", CellError))
    assert set(book.names["d"]) == {"a"}
    failing(book, "kept.append(x)\nraise ValueError", ValueError)
    assert book.names["kept"] == []


def test_object_that_holds_tensors(single: Notebook) -> None:
    single.plain("class Box:\n  def __init__(self, v): self.v = [v]")
    error = failing(single, "b = Box(tf.constant(1))", CellError)
    assert "`b` is a Box that holds tensors" in str(error)
    assert single.cell("b = Box(tf.constant(1))\nv = b.v\ndel b").assigned.keys() == {"v"}
    assert single.cell("b = Box(1)").assigned["b"].v == [1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reduce": {"los": "mean"}}, "Did you mean `loss`"),
        ({"gather": {"los": 0}}, "does not assign `los`"),
        ({"reduce": {"loss": "max"}}, "`mean` or `sum`"),
        ({"reduce": {"_": "sum"}}, "last line"),
        ({"reduce": {"loss": "sum"}, "gather": {"loss": 0}}, "Choose one"),
        ({"reduce": {"text": "sum"}}, "cannot be reduced"),
    ],
)
def test_unfit_options(single: Notebook, options: dict[str, Any], words: str) -> None:
    assert words in str(failing(single, "loss = 1.0\ntext = 'a'", CellError, **options))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("x = 0.1", "x = 0.2", "`x` is now 0.2, was 0.1"),
        ("x = True", "x = 1", "`x` is now 1, was True"),
        ("x = (1, 'a')", "x = (1, 'b')", "`x` is now (1, 'b'), was (1, 'a')"),
        ("x = None", "x = tf.constant(1)", "`x` is now a tensor, was None"),
        ("x = tf.ones([4])", "x = tf.ones([8, 3])", "`x` is now float32[8, 3], was float32[4]"),
        ("x = np.ones(2)", "x = np.ones(2, int)", "`x` is now int64[2], was float64[2]"),
        ("x = object()", "x = object()", "`x` is another object now"),
        ("x = lambda: 1", "x = lambda: 1", "`x` is another function now"),
        ("x = {'a': 1}", "x['a'] = 2", "`x` is now {'a': 2}, was {'a': 1}"),
        ("k = 1\ndef x(): return k", "k = 2", "`k`, which `x` reads, is now 2, was 1"),
        ("k = 1\ndef f(): return k\ndef x(): return f()", "k = 2", "`k`, which `f` reads, is"),
        ("import functools\nk = 1\nx = functools.partial(lambda v: k, 1)", "k = 2", "`k`, which"),
    ],
)  # fmt: skip
def test_reasons(single: Notebook, before: str, after: str, reason: str) -> None:
    single.plain(before)
    text = "y = x"
    assert single.cell(text).trace_reason == "first run"
    single.plain("pass")
    assert single.cell(text).trace_reason is None
    single.plain(after)
    assert reason in (single.cell(text).trace_reason or "")
    assert not single.cell(text).traced


def test_equal_values_do_not_retrace(single: Notebook) -> None:
    source = "x = (float('nan'), 10**20, 'a' * 3, range(2), None)\ny = [1, {'b': -0.0}]"
    single.plain(source)
    single.cell("z = (x, y)")
    single.plain(source)
    assert not single.cell("z = (x, y)").traced


def test_going_back_to_an_old_value_does_not_retrace(single: Notebook) -> None:
    traced = []
    for rate in (0.1, 0.2, 0.1, 0.2):
        single.names["rate"] = rate
        result = single.cell("y = rate\ny")
        traced.append(result.traced)
        assert result.value == rate
    assert traced == [True, True, False, False]


def test_python_values_depend_on_shapes(single: Notebook) -> None:
    for size in (2, 3, 2):
        single.names["x"] = tf.ones([size])
        assert single.cell("n = x.shape[0]").assigned == {"n": size}
    assert single.runner.traces == 2


def test_names_assigned_first_are_not_captured(single: Notebook) -> None:
    assert single.cell("y = 1\nz = y + 1").traced
    assert not single.cell("y = 1\nz = y + 1").traced


def test_replaced_objects_are_freed(single: Notebook) -> None:
    single.plain("class Model: pass\nm = Model()")
    reference = weakref.ref(single.names["m"])
    single.cell("y = m.__class__.__name__")
    single.plain("m = Model()")
    assert single.cell("y = m.__class__.__name__").trace_reason == "`m` is another Model now"
    gc.collect()
    assert reference() is None


def test_the_number_of_kept_programs_is_limited(
    single: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpunb.tensorflow.cells.trace_cache._MOST_TRACED", 2)
    for text in ("1", "2", "3"):
        single.cell(text)
    assert not single.cell("3").traced
    assert "too many other cells" in (single.cell("1").trace_reason or "")


def test_closing_removes_the_cells_lines() -> None:
    book = Notebook("one")
    book.cell("closed = 1")
    filename = cell_filename("closed = 1")
    assert linecache.getline(filename, 2).strip() == "closed = 1"
    linecache.checkcache()
    assert filename in linecache.cache
    book.runner.close()
    assert filename not in linecache.cache


def test_lists_that_contain_themselves(single: Notebook) -> None:
    single.plain("x = [1]\nx.append(x)")
    assert single.cell("x[0]").value == 1
    single.names["x"] = list(range(100_000))
    assert single.cell("len(x)").value == 100_000
    assert not single.cell("len(x)").traced


_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(),
        st.text(max_size=3), st.binary(max_size=2),
        st.just(np.ones(2)), st.just(np.array([object()])), st.just(np.datetime64("2020")),
        st.just(object()), st.just({1, 2}), st.just(len), st.just(int), st.just(np),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers()), inner, max_size=3),
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(_VALUES)
def test_any_value_can_be_captured(value: Any) -> None:
    book = Notebook("one")
    book.names["x"] = value
    book.cell("y = x\nz = [x, 1]")
    assert not book.cell("y = x\nz = [x, 1]").traced
    book.runner.close()


def test_the_second_run_uses_the_fast_path(
    single: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    single.plain("x = tf.ones([2])\nrate = 0.1\nk = 2\ndef f(v): return v * k")
    single.cell("y = f(x) * rate")
    monkeypatch.setattr("tpunb.tensorflow.cells.trace_cache.why_new_trace", None)
    monkeypatch.setattr("tpunb.tensorflow.cells.trace_cache.capture", None)
    single.names["x"] = tf.zeros([2])
    assert single.cell("y = f(x) * rate").assigned["y"].numpy().tolist() == [0.0, 0.0]
