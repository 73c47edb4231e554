"""A student's notebook with the checks of its solution, and their outputs."""

from __future__ import annotations

from typing import Any

_SCORE = "tpunb.course.score("


def without_grades(solution: Any) -> None:
    """Give each check of a solution an error as its output, until it runs."""
    import nbformat

    why = "Not graded: the checks stopped before this one."
    for cell in _checks(solution).values():
        cell.outputs = [nbformat.v4.new_output("error", ename="", evalue=why, traceback=[why])]


def with_grades(student: Any, solution: Any) -> Any:
    """Return a student's notebook with the checks of the executed solution.

    A check that is missing in the student's notebook is added at its end.
    """
    checks = _checks(solution)
    for number, cell in enumerate(student.cells):
        if (name := _name(cell)) in checks:
            student.cells[number] = checks.pop(name)
    student.cells += checks.values()
    return student


def _checks(notebook: Any) -> dict[str, Any]:
    """Return the checks of a notebook, and the cell with the score, by their names."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    graded = [c for c in cells if c.metadata.get("nbgrader", {}).get("grade") or _SCORE in c.source]
    return {_name(cell): cell for cell in graded}


def _name(cell: Any) -> str:
    name = str(cell.metadata.get("nbgrader", {}).get("grade_id", ""))
    return _SCORE if _SCORE in cell.source else name
