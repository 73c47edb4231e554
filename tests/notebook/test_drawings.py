"""Pictures of the collectives that the last cell called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.shell import Notebook

from tpunb.errors import TpunbError

SETUP = """\
import numpy as np, tensorflow as tf, tpunb
%load_ext tpunb
%tpu_connect --simulate 4
pairs = [(0, 1), (1, 2)]
batches = tf.data.Dataset.range(8).map(lambda n: tf.cast(n, tf.float32)).batch(8)"""


@pytest.fixture(scope="module")
def book(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with Notebook(tmp_path_factory.mktemp("ipython"), SETUP) as notebook:
        notebook.good("%%tpu_run\nx = 10 * (replica_id + 1)\n")
        yield notebook


def drawn(book: Notebook, operation: str) -> tuple[list[Any], list[Any], str]:
    """Return the values before and after, and the call in the title."""
    effect = book.good(f"tpunb.draw.collective({operation!r})").value.description
    before = [held.values.tolist() for held in effect.before]
    return before, [held.values.tolist() for held in effect.after], effect.call


def refused(book: Notebook, operation: str) -> str:
    error = book.run(f"tpunb.draw.collective({operation!r})").error
    assert isinstance(error, TpunbError)
    assert error.fix
    return str(error)


TENS = [10, 20, 30, 40]


@pytest.mark.parametrize(
    ("cell", "operation", "before", "after"),
    [
        ('y = ctx.all_reduce("sum", x)', "all_reduce", TENS, [100] * 4),
        ('ctx.all_reduce(value=x, reduce_op="SUM")', "all_reduce", TENS, [100] * 4),
        ('a = 2 * x\nb = 1 + ctx.all_reduce("sum", a)', "all_reduce", [20, 40, 60, 80], [200] * 4),
        ('y = ctx.all_reduce("mean", 1.5)', "all-reduce", [1.5] * 4, [1.5] * 4),
        (
            "v = tf.reshape(x, [1])\ny = ctx.all_gather(v, axis=0)",
            "all_gather",
            [[ten] for ten in TENS],
            [TENS] * 4,
        ),
        (
            "y = tf.raw_ops.CollectivePermute(input=x, source_target_pairs=pairs)",
            "ppermute",
            TENS,
            [0, 10, 20, 0],
        ),
        (
            'first = ctx.all_reduce("sum", x)\nlast = ctx.all_reduce("sum", first)',
            "all_reduce",
            [100] * 4,
            [400] * 4,
        ),
    ],
)
def test_a_picture_has_the_values_of_the_last_cell(
    book: Notebook, cell: str, operation: str, before: list[Any], after: list[Any]
) -> None:
    book.good(f"%%tpu_run\n{cell}\n")
    assert drawn(book, operation)[:2] == (before, after)


def test_the_values_are_those_of_the_run(book: Notebook) -> None:
    book.good('%%tpu_run\ny = ctx.all_reduce("sum", x)\n')
    kept = book.names["x"]
    book.names["x"] = 3
    try:
        before, after, call = drawn(book, "all_reduce")
    finally:
        book.names["x"] = kept
    assert (before, after) == (TENS, [100] * 4)
    assert call == "ctx.all_reduce('sum', x)"


def test_a_loop_shows_its_last_step(book: Notebook) -> None:
    book.good('%%tpu_run -d batches\npart = 1.0 * batch\ny = ctx.all_reduce("sum", part)\n')
    before, after, _ = drawn(book, "all_reduce")
    assert before == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert after == [[12, 16]] * 4


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("z = 1 * x", "does not call `all_reduce`"),
        ('y = ctx.all_reduce("sum", 2 * x)', "`part = 2 * x`"),
        ('w = 1 * x\nw = ctx.all_reduce("sum", w)', "gives `w` another value"),
        (
            'w = 1 * x\nfor _ in range(2):\n    y = ctx.all_reduce("sum", w)\n    w = w + y',
            "gives `w` another value",
        ),
    ],
)
def test_values_that_the_cell_does_not_keep_are_not_made_up(
    book: Notebook, cell: str, words: str
) -> None:
    book.good(f"%%tpu_run\n{cell}\n")
    assert words in refused(book, "all_reduce")


def test_a_batch_is_not_the_notebooks_value_of_the_same_name(book: Notebook) -> None:
    book.names["images"] = 5
    book.good('%%tpu_run -d batches --as images\ny = ctx.all_reduce("sum", images)\n')
    assert "does not keep `images`" in refused(book, "all_reduce")


def test_a_cell_that_failed_has_no_picture(book: Notebook) -> None:
    book.good('%%tpu_run\ny = ctx.all_reduce("sum", x)\n')
    book.run('%%tpu_run\ny = ctx.all_reduce("sum", x)\nundefined_name\n')
    assert "no %%tpu_run cell has run" in refused(book, "all_reduce")


def test_the_last_cell_says_what_the_arguments_are(book: Notebook) -> None:
    book.good('%%tpu_run\ny = ctx.all_reduce("sum", x)\n')
    error = book.run('tpunb.draw.collective("all_reduce", reduction="max")').error
    assert "Leave `reduction` out" in str(error)


def test_a_per_replica_value_can_be_given(book: Notebook) -> None:
    effect = book.good('tpunb.draw.collective("pmax", x)').value.description
    assert [held.values.tolist() for held in effect.after] == [40] * 4


def test_the_values_go_with_the_connection(book: Notebook, tf: Any) -> None:
    del tf
    book.good('%%tpu_run\ny = ctx.all_reduce("sum", x)\n')
    book.good("%tpu_disconnect")
    assert "no %%tpu_run cell has run" in refused(book, "all_reduce")
    book.good("%tpu_connect --simulate 4")
    book.good("%%tpu_run\nx = 10 * (replica_id + 1)\n")
