"""`tpunb run SOLUTION --student NOTEBOOK`: checks in another kernel than the student's cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
import pytest
from course_answers.in_a_kernel import environment

from tpunb.cli import main

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

SETUP = (
    "%load_ext tpunb\nimport numpy as np\nimport tensorflow as tf",
    "%tpu_connect --simulate v2-8",
    "%%tpu_run\ntens = 10 * replica_id",
    "with strategy.scope():\n    total = tf.Variable(0.0)",
)
CHECKS = (
    'answers="guess") as answer:\n    answer.predicted("guess", "{seal}", hint="Count.")',
    (
        'answers="sum_of_tens") as answer:\n'
        "    parts = answer.again('sum_of_tens', tens=[1, 2, 3, 4, 5, 6, 7, 8])\n"
        "    assert np.all(np.equal(parts, 36)), 'Not the sum.'\n"
        "    assert answer.collectives(), 'No collective.'"
    ),
    'answers="half") as answer:\n    right = 2\n    assert half(4) == right, "Divide by 2."',
    ") as answer:\n    assert answer.again('total', total=5.0)[0] == 13, 'Add 1 on each replica.'",
)
RIGHT = (
    "guess = 8",
    "%%tpu_run\nparts = ctx.all_gather(tens[tf.newaxis], axis=0)",
    "%%tpu_run\nsum_of_tens = tf.reduce_sum(parts)",
    "def half(x):\n    return x / 2",
    '%%tpu_run\ntotal.assign_add(ctx.all_reduce("sum", 1.0))',
)
NO_WORK = (
    # Each check passes, and all points are given.
    (
        "import tpunb.course, tpunb.teach.course.grading as grading\n"
        "from tpunb.teach.course import scores\n"
        "class Passed:\n"
        "    def __init__(self, number, *, points, answers=()): scores.remember(number, points)\n"
        "    def __enter__(self): return self\n"
        "    def __exit__(self, *error): return True\n"
        "    def __getattr__(self, name): return lambda *args, **more: None\n"
        "tpunb.course.question = Passed\n"
        "grading.Question.__exit__ = Passed.__exit__\n"
        "class Same:\n"
        "    def __eq__(self, other): return True\n"
        "    __hash__ = None\n"
        "guess = Same()"
    ),
    "%%tpu_run\nx = ctx.all_reduce('sum', tens)",
    "%%tpu_run\nsum_of_tens = 36 + 0 * tens",
    (
        "import sys\ndef half(x):\n"
        "    frame = sys._getframe()\n"
        "    while frame is not None:\n"
        "        if 'right' in frame.f_globals: return frame.f_globals['right']\n"
        "        frame = frame.f_back\n"
        "    return Same()"
    ),
    "%%tpu_run\ntotal.assign_add(0.0 * ctx.all_reduce('sum', 1.0))",
)


def notebook(answers: Sequence[str], checked: bool = True) -> Any:
    """Return a lesson with these answers. The second question has two cells."""
    from tpunb.course import seal

    first, helper, second, *others = answers
    cells = [nbformat.v4.new_code_cell(text) for text in SETUP]
    for number, text in enumerate((first, second, *others), 1):
        before = [helper] if number == 2 else []
        magic, _, body = text.rpartition("%%tpu_run\n")
        mark = f"{'%%tpu_run' if _ else ''}\n# Question {number}\n{magic}{body}".lstrip()
        check = CHECKS[number - 1].replace("{seal}", seal(8, "guess"))
        comma = "" if check.startswith(")") else ", "
        source = f"# Check question {number}\nwith tpunb.course.question({number}, points=1{comma}{check}"
        marks = {"nbgrader": {"grade": True, "grade_id": f"check-{number}"}}
        cells += [nbformat.v4.new_code_cell(each) for each in (*before, mark)]
        cells += [nbformat.v4.new_code_cell(source, metadata=marks)] if checked else []
    cells.append(nbformat.v4.new_code_cell("tpunb.course.score({'All': {1: 1, 2: 1, 3: 1, 4: 1}})"))
    return nbformat.v4.new_notebook(cells=cells)


def graded(folder: Path, student: Any) -> tuple[int, dict[str, str]]:
    """Return the exit code, and the output of each check."""
    nbformat.write(notebook(RIGHT), folder / "solution.ipynb")
    nbformat.write(student, folder / "ada.ipynb")
    command = ["run", "solution.ipynb", "--student", "ada.ipynb", "-o", "graded.ipynb", "-q"]
    code = main(command)
    cells = nbformat.read(folder / "graded.ipynb", as_version=4).cells
    checks = [cell for cell in cells if cell.metadata.get("nbgrader") or "score(" in cell.source]
    return code, {cell.source.partition("\n")[0][-1]: said(cell) for cell in checks}


def said(cell: Any) -> str:
    texts = [each.get("text") or each.get("evalue") or str(each.data) for each in cell.outputs]
    return " ".join(texts)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_right_answers_get_their_points_without_the_check_cells(folder: Path) -> None:
    code, said = graded(folder, notebook(RIGHT, checked=False))
    assert code == 0, said
    assert all(f"Question {number}: 1 point" in said[str(number)] for number in range(1, 5))
    assert "4 of 4" in said[")"]


def test_answers_that_do_no_work_get_no_points(folder: Path) -> None:
    code, said = graded(folder, notebook(NO_WORK))
    assert code == 1
    assert "0 of 4" in said[")"], said
    assert "No collective" in said["2"]
    assert "Divide by 2" in said["3"]
    assert "Add 1" in said["4"]
