"""The output of replicas that print, on an IPython shell."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import pytest
from support.shell import Notebook

pytestmark = pytest.mark.usefixtures("tf")

OPENING = ["%load_ext tpunb\nimport tensorflow as tf\n%tpu_connect --simulate 3"]
NOTE = "On a TPU, printing needs tf.config.set_soft_device_placement(True), and is slow."


def printed(book: Notebook, body: str, options: str = "") -> list[str]:
    """Return the lines that a cell prints, without the note below the first output."""
    text = book.good(f"%%tpu_run {options}\n{body}").text
    return [line for line in text.splitlines() if line != NOTE]


def test_each_replica_prints_its_own_values(book: Notebook) -> None:
    cell = "%%tpu_run\nprint('id', replica_id)\nx = 1"
    lines = [f"[replica {replica}] id {replica}" for replica in range(3)]
    assert book.good(cell).text.splitlines() == [*lines, NOTE]
    assert book.good(cell).text.splitlines() == lines  # also without a new trace
    assert book.session.connection.cells.traces == 1


def test_tensorflows_print(book: Notebook) -> None:
    body = "tf.print('a', {'k': replica_id}, tf.range(9) * replica_id, sep='|', end='!')"
    assert printed(book, body, "-t 1")[1] == "[replica 1] a|{'k': 1}|[0 1 2 ... 6 7 8]!"


def test_lines_keep_the_order_of_the_cell(book: Notebook) -> None:
    book.good("def helper(x):\n    print('helper', x)\n    return x")
    lines_printed = printed(
        book,
        """
print("first", replica_id)
for i in tf.range(3):
    if replica_id == i:
        print("I am", i)
    tf.print("all", ctx.all_reduce("sum", i))
helper(replica_id)
print([replica_id, "x"], tf.eye(2), end="")""",
    )
    assert lines_printed == sorted(lines_printed, key=lambda line: line[:11])
    expected = """\
first {0}
{1}helper {0}
[{0}, 'x'] [[1. 0.]
 [0. 1.]]"""
    for replica in range(3):
        loop = "".join((f"I am {i}\n" if i == replica else "") + f"all {3 * i}\n" for i in range(3))
        lines = expected.format(replica, loop).splitlines()
        of_replica = [line for line in lines_printed if line.startswith(f"[replica {replica}]")]
        assert of_replica == [f"[replica {replica}] {line}" for line in lines]


def test_variables_strings_and_steps(book: Notebook) -> None:
    book.good("with strategy.scope():\n    v = tf.Variable(1.0)")
    lines = printed(book, "v.assign_add(1.0)\nprint('v', v)", "-n 4 -k 1")
    assert [line for line in lines if "replica 2" in line] == [
        f"[replica 2] v {value}" for value in (2.0, 3.0, 4.0, 5.0)
    ]
    assert printed(book, "print('ö', tf.constant('ü'))") == [
        f"[replica {replica}] ö ü" for replica in range(3)
    ]


def test_an_f_string_is_explained(book: Notebook) -> None:
    text = book.good("%%tpu_run\nprint(f'loss {replica_id}')").text
    assert text == (
        "A tensor has no value yet where an f-string is made: "
        "print('loss', loss) shows the values.\n"
    )


def test_values_without_tensors_are_printed_once(book: Notebook, tf: Any) -> None:
    before = builtins.print, tf.print
    assert printed(book, "print('traced', 3)\nreplica_id;") == ["traced 3"]
    assert (builtins.print, tf.print) == before
    assert printed(book, "print('traced', 3)\nreplica_id;") == []


def test_long_output_is_truncated(book: Notebook) -> None:
    lines = printed(book, "for i in tf.range(1000):\n    print(i)")
    assert len(lines) == 3 * (500 // 3 + 1)
    assert lines[-1] == f"[replica 2] … and {1000 - 500 // 3} more lines"


def test_a_failed_cell_shows_earlier_output(book: Notebook) -> None:
    ran = book.run(
        "%%tpu_run\nprint(replica_id)\nif replica_id > 1:\n"
        "    tf.debugging.assert_less(replica_id, 1)"
    )
    assert ran.error is not None
    assert "[replica 2] 2\n" in ran.text


def test_a_check_reports_that_the_host_must_print(book: Notebook) -> None:
    report = book.good("%%tpu_check\ntf.print(replica_id)").plain
    assert "StringFormat prints, which the host has to do" in report
    assert "[replica" not in report


def test_soft_placement_needs_no_note(book: Notebook, place_softly: Callable[[bool], None]) -> None:
    place_softly(True)
    text = book.good("%%tpu_run\ntf.print(replica_id)").text
    assert text.splitlines() == [f"[replica {replica}] {replica}" for replica in range(3)]


def test_printing_outside_of_cells_is_refused(book: Notebook) -> None:
    ran = book.run("tf.function(lambda: strategy.run(lambda: tf.print(1)))()")
    assert "No registered 'StringFormat' OpKernel" in str(ran.error)
