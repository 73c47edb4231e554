"""The course in notebooks/course: exercises come from solutions, and nbgrader can grade both."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
from pathlib import Path
from typing import Any

import jsonschema
import nbformat
import pytest

import tpunb.course

COURSE = Path(__file__).parents[1] / "notebooks" / "course"
SOLUTIONS = sorted((COURSE / "solutions").glob("*.ipynb"))

QUESTIONS = range(5, 9)
"""The numbers of graded questions that a lesson may have."""

# nbgrader's checks of a cell (nbgraderformat/v3.py), for the course's kinds of cells: answers in
# code and their tests.
MARKS = {
    "type": "object",
    "properties": {
        "schema_version": {"const": 3},
        "cell_type": {"const": "code"},
        "grade_id": {"type": "string", "pattern": r"^[\w-]+$"},
        "grade": {"type": "boolean"},
        "locked": {"type": "boolean"},
        "points": {"type": "integer", "minimum": 1, "maximum": 3},
        "solution": {"type": "boolean"},
        "task": {"const": False},
    },
    "required": ["schema_version", "grade_id", "grade", "locked", "solution", "task"],
    "additionalProperties": False,
    "if": {"properties": {"grade": {"const": True}}},
    "then": {
        "required": ["points"],
        "properties": {"locked": {"const": True}, "solution": {"const": False}},
    },
    "else": {
        "not": {"required": ["points"]},
        "properties": {"locked": {"const": False}, "solution": {"const": True}},
    },
}


def load_script() -> Any:
    path = COURSE / "make_exercises.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


SCRIPT = load_script()


@pytest.fixture(params=SOLUTIONS, ids=lambda path: path.name)
def path(request: pytest.FixtureRequest) -> Path:
    solution: Path = request.param
    return solution


@pytest.fixture
def solution(path: Path) -> Any:
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


@pytest.fixture
def exercise(path: Path) -> Any:
    return nbformat.read(COURSE / path.name, as_version=nbformat.NO_CONVERT)


def marks(cell: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = cell.metadata.get("nbgrader", {})
    return metadata


def graded_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if marks(cell)]


def cell(source: str, **nbgrader: Any) -> Any:
    return nbformat.v4.new_code_cell(source, metadata={"nbgrader": nbgrader} if nbgrader else {})


def exercise_cells(*cells: Any) -> list[Any]:
    converted: list[Any] = SCRIPT.exercise_of(nbformat.v4.new_notebook(cells=list(cells))).cells
    return converted


def test_each_lesson_has_a_solution_and_an_exercise() -> None:
    assert SOLUTIONS
    exercises = sorted(COURSE.glob("*.ipynb"))
    assert [path.name for path in exercises] == [path.name for path in SOLUTIONS]


def test_the_exercise_is_up_to_date(path: Path, solution: Any) -> None:
    converted = nbformat.writes(SCRIPT.exercise_of(solution)) + "\n"
    advice = "type: python notebooks/course/make_exercises.py"
    assert (COURSE / path.name).read_text(encoding="utf-8") == converted, advice


def test_a_solution_becomes_nbgraders_stub() -> None:
    source = "%%tpu_run\nif x:\n    ### BEGIN SOLUTION\n    y = 1\n    ### END SOLUTION\ny"
    answer = cell(source, grade=False, solution=True)
    (converted,) = exercise_cells(answer)
    assert converted.source == (
        "%%tpu_run\nif x:\n    # YOUR CODE HERE\n    raise NotImplementedError()\ny"
    )
    assert answer.source == source


def test_each_of_two_solutions_in_a_cell_becomes_a_stub() -> None:
    region = "### BEGIN SOLUTION\n{}\n### END SOLUTION"
    (converted,) = exercise_cells(
        cell(f"{region.format('a = 1')}\nb = 2\n{region.format('c = 3')}")
    )
    assert converted.source == "\n".join([*SCRIPT.STUB, "b = 2", *SCRIPT.STUB])


def test_hidden_tests_and_outputs_are_removed() -> None:
    hidden = "assert a\n### BEGIN HIDDEN TESTS\nassert b\n### END HIDDEN TESTS"
    test = cell(hidden, grade=True, solution=False)
    test.outputs, test.execution_count = [nbformat.v4.new_output("stream", text="a")], 3
    (converted,) = exercise_cells(test)
    assert (converted.source, converted.outputs, converted.execution_count) == (
        "assert a",
        [],
        None,
    )


def test_only_graded_cells_are_protected() -> None:
    plain, answer, test = exercise_cells(
        cell("x = 1"), cell("", grade=False, solution=True), cell("", grade=True, solution=False)
    )
    assert "deletable" not in plain.metadata
    assert (answer.metadata["deletable"], answer.metadata.get("editable")) == (False, None)
    assert (test.metadata["deletable"], test.metadata.get("editable")) == (False, False)


def test_the_metadata_of_graded_cells_is_valid(solution: Any) -> None:
    for graded in graded_cells(solution):
        assert graded.cell_type == "code"
        jsonschema.validate(marks(graded), MARKS)
    ids = [marks(graded)["grade_id"] for graded in graded_cells(solution)]
    assert sorted(set(ids)) == sorted(ids)


def test_each_answer_has_a_test(solution: Any) -> None:
    """A test may follow several answers, and each answer has a test."""
    kinds = ["test" if marks(graded)["grade"] else "answer" for graded in graded_cells(solution)]
    runs = [kind for kind, _ in itertools.groupby(kinds)]
    assert runs == ["answer", "test"] * (len(runs) // 2)
    assert kinds.count("test") in QUESTIONS


def test_solutions_and_hidden_tests_are_in_their_cells(solution: Any) -> None:
    for each in solution.cells:
        solutions = each.source.count("### BEGIN SOLUTION")
        assert each.source.count("### END SOLUTION") == solutions
        assert (solutions > 0) == bool(marks(each).get("solution")), each.source
        hidden = each.source.count("### BEGIN HIDDEN TESTS")
        assert each.source.count("### END HIDDEN TESTS") == hidden
        assert not hidden or marks(each)["grade"], each.source


def checks(solution: Any) -> list[Any]:
    return [graded for graded in graded_cells(solution) if marks(graded)["grade"]]


def test_failed_checks_have_advice(solution: Any) -> None:
    for check in checks(solution):
        asserts = check.source.split("assert ")[1:]
        assert asserts or "answer.predicted(" in check.source
        assert all('"' in text.partition("\n")[0] or ", (" in text for text in asserts)


def test_checks_are_folded_and_find_their_answers(solution: Any) -> None:
    """A check grades the question of its number, with the points that nbgrader gives."""
    for number, check in enumerate(checks(solution), 1):
        points = marks(check)["points"]
        assert check.source.startswith(f"# Check question {number}\n")
        assert f"tpunb.course.question({number}, points={points}" in check.source
        assert check.metadata["jupyter"] == {"source_hidden": True}
    number = 0
    for graded in graded_cells(solution):
        if marks(graded)["grade"]:
            number += 1
        else:
            assert f"# Question {number + 1}\n" in graded.source


def test_the_score_has_all_points(solution: Any) -> None:
    (score,) = (cell.source for cell in solution.cells if "tpunb.course.score(" in cell.source)
    parts = ast.literal_eval(score.partition("score(")[2].rpartition(")")[0].strip())
    points = {number: each for part in parts.values() for number, each in part.items()}
    assert points == {n: marks(check)["points"] for n, check in enumerate(checks(solution), 1)}
    text = "\n".join(cell.source for cell in solution.cells if cell.cell_type == "markdown")
    assert all(f"## {part}\n" in text for part in parts)


def test_no_prediction_is_readable_in_its_check(solution: Any) -> None:
    """A check has the seal of a prediction, which is the seal of the solution's value."""
    for answer, check in itertools.pairwise(graded_cells(solution)):
        for name, seal in re.findall(r'predicted\(\s*"(\w+)",\s*"(\w+)"', check.source):
            names: dict[str, Any] = {}
            exec(answer.source, names)
            assert tpunb.course.seal(names[name], name) == seal


def test_each_question_names_its_answer(solution: Any, exercise: Any) -> None:
    """The names that a test looks for are in the exercise, outside of the tests."""
    expected_names: set[str] = set()
    for graded in graded_cells(solution):
        names = set(re.findall(r"\w+", graded.source))
        if marks(graded)["grade"]:
            text = "\n".join(each.source for each in exercise.cells if not marks(each).get("grade"))
            assert {
                name for name in expected_names & names if not re.search(rf"\b{name}\b", text)
            } == set()
            expected_names = set()
        else:
            expected_names |= set(
                re.findall(r"^(?:def )?(\w+)(?= =|.*:$)", graded.source, re.MULTILINE)
            )


def test_the_exercise_has_no_answers(exercise: Any) -> None:
    for each in exercise.cells:
        assert "SOLUTION" not in each.source
        assert "HIDDEN TESTS" not in each.source
        assert "course/solutions/" not in each.source
        assert not each.get("outputs")
        stubbed = SCRIPT.STUB[1] in each.source and each.cell_type == "code"
        assert stubbed == bool(marks(each).get("solution"))
