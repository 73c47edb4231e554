"""`%%tpu_run` on an IPython shell: options, errors and displays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from IPython.core.error import UsageError
from support.shell import Notebook, Ran
from support.tiers import THOROUGH

from tpunb.cells.reading.undefined_names import CellNameError
from tpunb.errors import CellError, NotConnectedError, TpunbError

pytestmark = pytest.mark.usefixtures("tf")

DURATION = re.compile(r"\d (µs|ms|s|min|h)\b")


CONNECT = "%tpu_connect --simulate 2 --lenient unsupported-type,unsupported-op"


@pytest.fixture(scope="module")
def shell(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A shell with the extension."""
    with Notebook(
        tmp_path_factory.mktemp("ipython"), "%load_ext tpunb\nimport tensorflow as tf, numpy as np"
    ) as notebook:
        yield notebook


@pytest.fixture
def book(shell: Notebook) -> Iterator[Notebook]:
    """The connected shell, which forgets the names that a test has defined."""
    shell.good(CONNECT)  # reconnects if a test has left another connection
    before = dict(shell.names)
    yield shell
    shell.names.clear()
    shell.names.update(before)


def each(value: Any) -> list[Any]:
    """Return the value of each replica."""
    return [np.asarray(part).tolist() for part in value.values]


def refused(book: Notebook, source: str, kind: type[BaseException], *words: str) -> Ran:
    """Run a cell that must fail with a short message, and check that the next cell works."""
    ran = book.run(source)
    assert type(ran.error) is kind, ran.text
    assert all(word in str(ran.error) for word in words), ran.error
    assert "Traceback" not in ran.text
    assert len(ran.text.strip().splitlines()) <= 5, ran.text
    if isinstance(ran.error, TpunbError):
        assert ran.error.fix
    assert each(book.good("%%tpu_run\nreplica_id").value) == [0, 1]
    return ran


def test_names_and_values(book: Notebook) -> None:
    book.good("x = tf.constant([1.0, 2.0])\nrate = 0.5\nseen = []")
    ran = book.good(
        "%%tpu_run\ny = x * rate + tf.cast(replica_id, tf.float32)\nn = num_replicas\ny"
    )
    assert each(ran.value) == [[0.5, 1.0], [1.5, 2.0]]
    assert each(book.names["y"]) == each(ran.value)
    assert book.names["n"] == 2
    assert not {"replica_id", "num_replicas", "ctx"} & book.names.keys()
    assert ran.shown[-1].keys() == {"text/plain", "text/html"}
    assert "PerReplica of 2 replicas" in ran.plain
    for expected in ([[2.0, 3.0]] * 2, [[3.0, 4.0]] * 2):
        book.good("%%tpu_run\nx = x + 1")
        assert each(book.names["x"]) == expected


def test_cells_that_show_nothing(book: Notebook) -> None:
    for source in ("replica_id;", "replica_id;  # why", "x = 1", "None", "pass", "print; None;"):
        ran = book.good(f"%%tpu_run\n{source}")
        assert (ran.value, ran.shown) == (None, [])
    ran = book.good("%%tpu_run -o kept -t 0\nreplica_id;")
    assert ran.value is None
    assert each(book.names["kept"]) == [0, 1]


def test_out(book: Notebook) -> None:
    ran = book.good("%%tpu_run --out 'kept'\nreplica_id + 1")
    assert book.names["kept"] is ran.value
    book.good("%%tpu_run -o kept\nx = 1")
    assert book.names["kept"] is None


@pytest.mark.parametrize(
    ("targets", "shown"),
    [("0", [0]), ("1", [1]), ("0,1", [0, 1]), (":1", None), ("1:", [1]), ("0:5", [0, 1]), ("1,0", [0, 1])],
)  # fmt: skip
def test_targets(book: Notebook, targets: str, shown: list[int] | None) -> None:
    source = f"%%tpu_run -o kept -t {targets}\n10 * replica_id"
    if shown is None:
        refused(book, source, UsageError, "0,2:4")
        return
    ran = book.good(source)
    replicas = re.findall(r"replica (\d)", ran.shown[0]["text/plain"])
    assert sorted(map(int, replicas)) == shown
    assert each(book.names["kept"]) == [0, 10]


def test_targets_that_do_not_exist(book: Notebook) -> None:
    """The cell must not run: a long run would be wasted."""
    for targets, name in (("2", "2"), ("0,7:9", "in 7:9"), ("1:1", "in 1:1"), ("5:", "in 5:")):
        source = f"%%tpu_run -t {targets}\nnever_bound = 3\nreplica_id"
        refused(book, source, CellError, f"There is no replica {name}: choose 0 to 1.")
    refused(book, f"%%tpu_run -t {10**20}\nreplica_id", CellError, "choose 0 to 1")
    assert "never_bound" not in book.names


def test_targets_of_nested_and_ordinary_values(book: Notebook) -> None:
    text = book.good("%%tpu_run -t 1\n(replica_id, 'a')").shown[0]["text/plain"]
    assert "replica 1" in text
    assert "replica 0" not in text
    assert "'a'" in text
    assert book.good("%%tpu_run -t 1\n{'k': [replica_id]}").shown[0]["text/plain"]
    for source in ("3", "'text'", "None", "[1, 2]"):
        assert book.good(f"%%tpu_run -t 1\n{source}").error is None
    ran = book.good("%%tpu_run -t 1 -r _=sum\nreplica_id")
    assert "1" in ran.plain


def test_reduce_and_gather(book: Notebook) -> None:
    book.good(
        "%%tpu_run -r a=sum,b=mean --reduce _=sum -g c:1 -g d --gather=e:-1\n"
        "a = b = tf.cast(replica_id, tf.float32)\nc = d = e = tf.ones([2, 1])\n1.0"
    )
    combined = {name: book.names[name].numpy() for name in "abcde"}
    assert (combined["a"], combined["b"]) == (1.0, 0.5)
    assert [combined[name].shape for name in "cde"] == [(2, 2), (4, 1), (2, 2)]


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ("-r a=max", UsageError, "NAME=mean"),
        ("-r a", UsageError, "NAME=mean"),
        ("-r 1=sum", UsageError, "NAME=mean"),
        ("-r class=sum", UsageError, "NAME=mean"),
        ("-r", UsageError, "-r needs a value: -r NAME=mean"),
        ("-g a:x", UsageError, "NAME:AXIS"),
        ("-g a:--1", UsageError, "NAME:AXIS"),
        ("-g 3", UsageError, "NAME:AXIS"),
        ("-t x", UsageError, "0,2:4"),
        ("-t -1", UsageError, ""),
        ("-t 1:2:3", UsageError, "0,2:4"),
        ("-t ''", UsageError, "0,2:4"),
        ("-o 3x", UsageError, "Python name"),
        ("-o class", UsageError, "Python name"),
        ("-o 'a", UsageError, "quotation"),
        ("--nothing", UsageError, "unrecognized"),
        ("x", UsageError, "unrecognized"),
        ("-r b=sum", CellError, "`b`"),
        ("-g a", CellError, "cannot be gathered along axis 0"),
        ("-g a:5", CellError, "cannot be gathered along axis 5"),
        ("-r a=sum -g a", CellError, "Choose one"),
        ("-r _=sum", CellError, "last line"),
    ],
)
def test_wrong_options(book: Notebook, options: str, kind: type[BaseException], words: str) -> None:
    refused(book, f"%%tpu_run {options}\na = tf.constant(1.0)", kind, words)


def test_time_and_verbose(book: Notebook) -> None:
    book.good("x = tf.ones([2])\nrate = 0.1")
    cell = "y = x * rate"
    first = book.good(f"%%tpu_run --time\n{cell}").shown[0]
    assert re.search(r"trace +[\d.]+ m?s\n +first step", first["text/plain"])
    assert DURATION.search(first["text/html"])
    assert re.search(
        r"\n  step +[\d.]+ (ms|µs|s)$", book.good(f"%%tpu_run --time\n{cell}").plain.strip()
    )
    quiet = book.good(f"%%tpu_run --verbose\n{cell}").plain
    assert "no, as before" in quiet
    assert not DURATION.search(quiet), "durations need --time"
    timed = book.good(f"%%tpu_run --time --verbose\n{cell}").plain
    assert "no, as before" in timed
    assert DURATION.search(timed)


def test_traces(book: Notebook) -> None:
    book.good("%tpu_disconnect")
    book.good(CONNECT)
    cells = book.session.connection.cells
    book.good("x = tf.ones([2])\nrate = 0.1")
    cell = "%%tpu_run --verbose\ny = x * rate\ny"
    assert "first run" in book.good(cell).plain
    assert cells.traces == 1
    book.good("x = tf.zeros([2])\nx = np.ones(2, np.float32)")
    book.good("x = tf.zeros([2])")
    assert "no, as before" in book.good(cell).plain
    book.good("%%tpu_run\ny = x * rate\ny")
    assert cells.traces == 1
    book.good("rate = 0.2")
    assert "`rate` is now 0.2, was 0.1" in book.good(cell).plain
    book.good("x = tf.ones([3])")
    assert "`x` is now float32[3], was float32[2]" in book.good(cell).plain
    assert cells.traces == 3
    assert "cells traced   3" in book.good("%tpu_status").plain


@pytest.mark.parametrize(
    ("cell", "kind", "words"),
    [
        ("x +", CellError, ("Line 2: invalid syntax", "line 1")),
        ("if True:\nx", CellError, ("Line 3",)),
        ("  x = 1\n y", CellError, ("Line",)),
        ("break", CellError, ("Line 2", "outside loop")),
        ("y = 1\nreturn y", CellError, ("Line 3: `return`", "last line")),
        ("!ls", CellError, ("Line 2 is IPython's", "!ls", "cell of its own")),
        ("lss", CellNameError, ("`lss` is not defined", "`loss`")),
        ("data", CellError, ("next(iter(data))",)),
        ("seen.append(replica_id)", CellError, ("`seen`",)),
    ],
)
def test_cells_that_cannot_run(
    book: Notebook, cell: str, kind: type[BaseException], words: tuple[str, ...]
) -> None:
    book.good("loss = 1\nseen = []\ndata = tf.data.Dataset.range(4)")
    refused(book, f"%%tpu_run\n{cell}", kind, *words)
    remembered = book.good("%tpu_status").plain
    assert "last error" in remembered


FAILING = [
    ("a = tf.ones([2, 3])\nb = tf.matmul(a, a)\nb", "ValueError", "Dimensions must be equal", 3),
    ("1 / 0", "ZeroDivisionError", "division by zero", 2),
    ("raise ValueError('one\\n\\ntwo')", "ValueError", "one\n\ntwo", 2),
    ("x = 1\nassert x == 2, 'not two'", "AssertionError", "not two", 3),
    ("assert replica_id is None", "AssertionError", "AssertionError\n", 2),
    ("{}['a']", "KeyError", "'a'", 2),
    ("tf.gather([1, 2], [5 + replica_id])", "InvalidArgumentError", "is not in [0, 2)", 2),
    (
        "x = tf.cast(replica_id, tf.float32)\ny = tf.debugging.check_numerics(1 / x, 'bad\\n\\nvery')\ny",
        "InvalidArgumentError", "bad\n\nvery : Tensor had Inf", 3,
    ),
    ("\n\ntf.debugging.assert_positive(replica_id - 2)", "InvalidArgumentError", "x > 0 did not", 4),
    (
        "i = replica_id\nwhile i < 3:\n  i += tf.strings.to_number('a', tf.int32)",
        "InvalidArgumentError", "could not correctly convert string: a\n", "[34]",
    ),
    ("class E(Exception): pass\nraise E()", "E", "\nE\n", 3),
]  # fmt: skip


@pytest.mark.parametrize(("cell", "name", "words", "line"), FAILING)
def test_errors_of_a_cell(
    book: Notebook, cell: str, name: str, words: str, line: int | str
) -> None:
    ran = book.run(f"%%tpu_run\n{cell}")
    assert type(ran.error).__name__ == name
    text = ran.text + "\n"
    assert re.match(rf"In the cell, line ({line}):\n(.*\n)+----> +\1 +\S", text)
    assert words in text
    assert f"\n{name}" in text
    assert "Traceback" not in text
    assert "in user code" not in text
    assert "[Op:" not in text
    assert "[[" not in text
    rendered = ran.error._render_traceback_()  # type: ignore[union-attr]
    assert "\n".join(rendered) == ran.text.strip()
    assert each(book.good("%%tpu_run\nreplica_id").value) == [0, 1]
    status = book.good("%tpu_status").shown[0]["text/plain"]
    assert f"last error     {name}" in status


def test_an_error_in_a_function_of_the_notebook(book: Notebook) -> None:
    book.good("def f(v):\n    raise RuntimeError('inside')")
    ran = book.run("%%tpu_run\nx = 1\nf(x)")
    assert isinstance(ran.error, RuntimeError)
    assert "----> " in ran.text
    assert "f(x)" in ran.text
    assert "inside" in ran.text


def test_not_connected(book: Notebook) -> None:
    book.good("%tpu_disconnect")
    ran = book.run("%%tpu_run\n1")
    assert isinstance(ran.error, NotConnectedError)
    assert "%tpu_connect" in ran.text
    assert "NotConnected" not in book.good("%tpu_status").plain
    connection = book.good("%tpu_connect --simulate 2").value
    connection.close()
    assert isinstance(book.run("%%tpu_run\n1").error, NotConnectedError)


def test_values_of_an_earlier_connection(book: Notebook) -> None:
    book.good("%%tpu_run\nx = replica_id")
    book.good("%tpu_connect --simulate 3")
    ran = book.run("%%tpu_run\nx")
    assert isinstance(ran.error, CellError)
    assert "2 replicas" in ran.text


@pytest.mark.parametrize(
    "cell",
    [
        "tf.constant(['<script>alert(1)</script>'])",
        "text, replica_id",
        "{text: replica_id, 1: text}",
        "[tf.constant(text), replica_id, text]",
    ],
)
def test_html_is_escaped(book: Notebook, cell: str) -> None:
    book.good("text = '<script>alert(1)</script>'")
    for options in ("", "-t 0", "--verbose"):
        for bundle in book.good(f"%%tpu_run {options}\n{cell}").shown:
            page = bundle["text/html"]
            assert "<script" not in page
            assert "&lt;script" in page or "tpu_run" in page


def test_html_in_reports_is_escaped(book: Notebook) -> None:
    book.good("text = '<script>1'")
    book.good("%%tpu_run\ny = text")
    book.good("text = '<script>2'")
    report = book.good("%%tpu_run --verbose\ny = text").shown[0]
    assert "<script>2" in report["text/plain"]
    assert "<script" not in report["text/html"]
    book.run("%%tpu_run\nraise ValueError(text)")
    status = book.good("%tpu_status").shown[0]
    assert "<script>2" in status["text/plain"]
    assert "<script" not in status["text/html"]


SESSION = (
    "%tpu_connect --simulate v3-8 --computation-shape 1,1,1,2",
    "import tensorflow as tf",
    "%tpu_topology",
    "%tpu_topology v5e-16",
    "topology",
    "%%tpu_run --verbose\nx = tf.ones([2, 2]) * tf.cast(replica_id, tf.float32)\nx",
    "%%tpu_run --verbose -t 0\nx, 'text'",
    "%%tpu_run\ntf.range(64 * 64) + replica_id",
    "%%tpu_run\ndef f(v): return v\nf",
    "x",
    "[x, 1]",
    "%tpu_connect --simulate 2",
    "%tpu_connect --simulate 2",
)


@THOROUGH
def test_displays_are_the_same_on_every_run(tmp_path: Path) -> None:
    runs = []
    for _ in range(2):
        notebook = Notebook(tmp_path)
        notebook.good("%load_ext tpunb")
        runs.append([notebook.good(source).shown for source in SESSION])
        notebook.close()
    for source, first, second in zip(SESSION, *runs, strict=True):
        if "def f" in source:  # Python shows functions with their address
            continue
        assert first == second, source
        for text in (value for bundle in first for value in bundle.values()):
            if isinstance(text, str):
                assert not re.search(r"0x[0-9a-f]{5,}|\bid=", text), source
                assert not DURATION.search(text), source
