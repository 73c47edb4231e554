"""Checks of answers on an IPython shell with a small lesson."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.shell import Notebook

from tpunb.course import score
from tpunb.errors import NotConnectedError

pytestmark = pytest.mark.usefixtures("tf")

SETUP = (
    "%load_ext tpunb\nimport numpy as np\nimport tensorflow as tf",
    "%tpu_connect --simulate v2-8",
    "data = tf.data.Dataset.from_tensors(tf.range(16.0))\nring = [[n, (n + 1) % 8] for n in range(8)]",
    "%%tpu_run\ntens = 10 * replica_id",
    "%%tpu_run\ntwice = tens + tens",
    "with strategy.scope():\n    total = tf.Variable(0.0)",
)

CHECK = """# Check question 1
with tpunb.course.question(1, points=2, answers="sum_of_tens") as answer:
    assert answer.on_each_replica("sum_of_tens")[0] == 280, "Not the sum."
    parts = answer.again("sum_of_tens", tens=[1, 2, 3, 4, 5, 6, 7, 8])
    assert parts[0] == 36, f"With other numbers: {parts[0]}."
"""
ANSWER = "%%tpu_run\n# Question 1\n"


@pytest.fixture(scope="module")
def shell(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with Notebook(tmp_path_factory.mktemp("ipython"), *SETUP) as notebook:
        yield notebook


@pytest.fixture
def book(shell: Notebook) -> Iterator[Notebook]:
    """The shell, which forgets the names and the cells of a test."""
    ran = shell.shell._tpunb_extension.ran
    names, cells = dict(shell.names), list(ran.cells)
    yield shell
    shell.names.clear()
    shell.names.update(names)
    ran.cells[:] = cells


def said(book: Notebook, check: str = CHECK) -> str:
    ran = book.run(check)
    assert ran.error is None or isinstance(ran.error, AssertionError), ran.text
    return ran.text.strip()


@pytest.mark.parametrize(
    "answer",
    [
        'sum_of_tens = ctx.all_reduce("sum", tens)',
        "sum_of_tens = tf.reduce_sum(ctx.all_gather(tens[tf.newaxis], axis=0))",
        'sum_of_tens = ctx.all_reduce("sum", twice) // 2',
    ],
)
def test_a_right_answer_gets_its_points(book: Notebook, answer: str) -> None:
    book.good(ANSWER + answer)
    assert said(book) == "Question 1: 2 points"
    assert repr(score({"Sums": {1: 2}, "Rings": {2: 1}})) == (
        "2 of 3 points\nRead again: Rings (question 2)"
    )


@pytest.mark.parametrize(
    "answer", ["sum_of_tens = 280 + 0 * replica_id", 'sum_of_tens = ctx.all_reduce("mean", 280.0)']
)
def test_a_constant_gets_no_points(book: Notebook, answer: str) -> None:
    book.good(ANSWER + answer)
    assert said(book) == "Not yet: With other numbers: 280" + (".0." if "mean" in answer else ".")
    assert "0 of 2" in repr(score({"Sums": {1: 2}}))


def test_a_python_value_is_no_computation(book: Notebook) -> None:
    book.good(ANSWER + "sum_of_tens = 280")
    assert "`sum_of_tens` is one value for all replicas" in said(book)


def test_an_answer_of_two_cells_runs_again_as_one(book: Notebook) -> None:
    book.good('%%tpu_run\nall_of_them = ctx.all_reduce("sum", tens)')
    book.good(ANSWER + "sum_of_tens = all_of_them + 0")
    assert said(book) == "Question 1: 2 points"


def test_an_older_answer_is_not_graded(book: Notebook) -> None:
    book.good(ANSWER + 'sum_of_tens = ctx.all_reduce("sum", tens)')
    book.run(ANSWER + 'sum_of_tens = ctx.allreduce("sum", tens)')
    assert "stopped with an error, CellError." in said(book)
    book.run(ANSWER + "raise NotImplementedError()")
    assert "Question 1 has no answer yet: assign sum_of_tens" in said(book)
    book.run(ANSWER + "sum_of_ten = tens")
    assert "does not assign `sum_of_tens`" in said(book)
    book.run("sum_of_tens = (280")
    assert "stopped with an error, SyntaxError." in said(book)


def test_a_cell_that_was_replaced_by_plain_python_is_refused(book: Notebook) -> None:
    book.good(ANSWER + 'sum_of_tens = ctx.all_reduce("sum", tens)')
    book.good("sum_of_tens = sum_of_tens")
    assert "make `%%tpu_run` the first line" in said(book)


def test_a_check_without_a_connection_says_how_to_connect(
    book: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    book.good(ANSWER + 'sum_of_tens = ctx.all_reduce("sum", tens)')
    monkeypatch.setattr(book.session, "_connection", None)
    ran = book.run(CHECK)
    assert isinstance(ran.error, NotConnectedError)
    assert "%tpu_connect" in ran.error.fix


def test_a_failed_check_shows_no_code(book: Notebook) -> None:
    book.good(ANSWER + "sum_of_tens = tens")
    assert said(book) == "Not yet: Not the sum."


def test_another_batch_and_other_numbers_of_replicas(book: Notebook) -> None:
    check = """# Check question 1
with tpunb.course.question(1, points=1, answers="mean") as answer:
    other = tf.data.Dataset.from_tensors(tf.range(32.0))
    print([float(part) for part in answer.again("mean", data=other)][:2])
    print([float(part) for part in answer.again("mean", replica_id=[7, 6, 5, 4, 3, 2, 1, 0])][:2])
    print(sorted(answer.collectives()))
"""
    body = "mean = tf.reduce_mean(x) + tf.cast(0 * ctx.replica_id_in_sync_group, tf.float32)"
    book.good(f"%%tpu_run -d data --as x\n# Question 1\n{body}")
    assert said(book, check).split("\n") == [
        "[1.5, 5.5]",
        "[0.5, 2.5]",
        "[]",
        "Question 1: 1 point",
    ]


def test_replica_numbers_reach_cells_above(book: Notebook) -> None:
    book.good(ANSWER + "mine = tens + replica_id")
    check = """# Check question 1
with tpunb.course.question(1, points=1, answers="mine") as answer:
    print([int(part) for part in answer.again("mine", replica_id=[3, 1, 4, 1, 5, 9, 2, 6])])
"""
    assert said(book, check).split("\n")[0] == "[33, 11, 44, 11, 55, 99, 22, 66]"


def test_the_collectives_of_a_cell(book: Notebook) -> None:
    permute = "tf.raw_ops.CollectivePermute(input=tens, source_target_pairs=ring)"
    book.good(f'%%tpu_run\n# Question 1\nx = {permute}\ny = ctx.all_reduce("sum", x)')
    check = """# Check question 1
with tpunb.course.question(1, points=1, answers="y") as answer:
    print(sorted(answer.collectives()))
"""
    assert said(book, check).startswith("['CollectivePermute', 'CrossReplicaSum']")


def test_the_collectives_of_the_cells_behind_an_answer_count(book: Notebook) -> None:
    book.good('%%tpu_run\nhidden = ctx.all_reduce("sum", tens)')
    book.good(ANSWER + "y = hidden")
    check = """# Check question 1
with tpunb.course.question(1, points=1, answers="y") as answer:
    print(sorted(answer.collectives()))
"""
    assert said(book, check).startswith("['CrossReplicaSum']")


def test_a_rerun_that_fails_says_so(book: Notebook) -> None:
    book.good(ANSWER + "sum_of_tens = tf.gather(tf.fill([8], 280), tens // 10)")
    assert "With other numbers, your cell" in said(
        book, CHECK.replace("[1, 2, 3, 4", "[999, 2, 3, 4")
    )


def test_variables_get_their_values_back(book: Notebook) -> None:
    book.good('%%tpu_run\n# Question 1\nz = total.assign_add(ctx.all_reduce("sum", 1.0))')
    check = """# Check question 1
with tpunb.course.question(1, points=1) as answer:
    print([float(copy) for copy in answer.again("total", total=3.0)][:2])
    print(float(answer.value("total")), answer.collectives())
"""
    before = float(book.names["total"].numpy())
    shown = said(book, check).split("\n")
    assert shown[:2] == ["[11.0, 11.0]", f"{before} set()"]  # no name is assigned
    assert float(book.names["total"].numpy()) == before


PREDICTION = """# Check question 3
with tpunb.course.question(3, points=1, answers="guess") as answer:
    answer.predicted("guess", "{seal}", {{1: "one hint"}}, hint="another hint")
"""


@pytest.mark.parametrize(
    ("guess", "words"),
    [
        ("8", "Question 3: 1 point"),
        ("tf.constant(8.0)", "Question 3: 1 point"),
        ("1", "Not yet: Not 1: one hint"),
        ("1 / 3", "Not yet: Not 0.333333: another hint"),
        ("'8'", "Not yet: Write the number without quotes."),
        ("'1/8'", "Not yet: Write the number without quotes."),
        ("[8]", "Not yet: Write the number alone, without brackets."),
        ("None", "`guess` has the type NoneType"),
        ("True", "Not yet: Not True: another hint"),
    ],
)
def test_predictions(book: Notebook, guess: str, words: str) -> None:
    from tpunb.course import seal

    book.good(f"# Question 3\nguess = {guess}")
    assert words in said(book, PREDICTION.format(seal=seal(8, "guess")))


FUNCTION = """# Check question 4
with tpunb.course.question(4, points=1, answers="half") as answer:
    assert half(4) == 2, "Divide by 2."
"""


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("def half(x):\n    return x / 2", "Question 4: 1 point"),
        ("def half(x):\n    return x", "Not yet: Divide by 2."),
        ("def half(x):\n    raise NotImplementedError()", "Question 4 has no answer yet"),
        ("half = 2", "The check cannot use this answer. It raised TypeError"),
    ],
)
def test_functions(book: Notebook, answer: str, words: str) -> None:
    book.good(f"# Question 4\n{answer}")
    assert words in said(book, FUNCTION)


def test_an_error_in_the_students_function_shows_its_line(book: Notebook) -> None:
    book.good("# Question 4\ndef half(x):\n    return x / nothing")
    ran = book.run(FUNCTION)
    assert isinstance(ran.error, NameError)
    assert ran.text.strip().startswith(
        "Not yet: your code stopped with an error at\n    return x / nothing\nNameError"
    )
    assert "Divide by 2" not in ran.text
