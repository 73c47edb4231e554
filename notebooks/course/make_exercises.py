"""Make the exercises of the course and the puzzles: `python notebooks/course/make_exercises.py`.

A solution is a notebook, in the course with nbgrader's metadata. The exercise has the same name,
one folder up.
This script does the part of `nbgrader generate_assignment` that students see, without nbgrader.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import nbformat

COURSE = Path(__file__).parent
SOLUTIONS = COURSE / "solutions"
FOLDERS = (SOLUTIONS, COURSE.with_name("puzzles") / "solutions")

STUB = ("# YOUR CODE HERE", "raise NotImplementedError()")
"""The lines that nbgrader writes instead of a solution."""

_SOLUTION = re.compile(
    r"^([ \t]*)### BEGIN SOLUTION\n.*?^[ \t]*### END SOLUTION$", re.DOTALL | re.MULTILINE
)
_HIDDEN_TESTS = re.compile(
    r"^[ \t]*### BEGIN HIDDEN TESTS\n.*?^[ \t]*### END HIDDEN TESTS\n?", re.DOTALL | re.MULTILINE
)

_OWN_LINK = re.compile(r"(notebooks/\w+)/solutions/")


def exercise_of(solution: Any) -> Any:
    """Return the exercise of a solution, which stays as it is."""
    exercise = copy.deepcopy(solution)
    for cell in exercise.cells:
        cell.source = _without_answers(cell.source)
        # A link of the solution to itself, such as Colab's badge, becomes a link of the exercise.
        cell.source = _OWN_LINK.sub(r"\1/", cell.source)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        _lock(cell)
    return exercise


def _without_answers(source: str) -> str:
    stubbed = _SOLUTION.sub(lambda match: "\n".join(match[1] + line for line in STUB), source)
    return _HIDDEN_TESTS.sub("", stubbed).rstrip("\n")


def _lock(cell: Any) -> None:
    """Keep a front end from deleting graded cells, and from editing tests."""
    marks = cell.metadata.get("nbgrader")
    if marks is None:
        return
    cell.metadata["deletable"] = False
    if not marks["solution"]:
        cell.metadata["editable"] = False


def main() -> None:
    """Write the exercise of each solution."""
    for path in sorted(path for folder in FOLDERS for path in folder.glob("*.ipynb")):
        solution = nbformat.read(path, as_version=nbformat.NO_CONVERT)
        exercise = path.parents[1] / path.name
        nbformat.write(exercise_of(solution), exercise)
        print(exercise.relative_to(COURSE.parents[1]))


if __name__ == "__main__":
    main()
