"""A lesson in a kernel, to give other answers to its questions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from counterparts.children import python_path
from nbclient import NotebookClient
from support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
SOLUTIONS = ROOT / "notebooks" / "course" / "solutions"

_REGION = re.compile(
    r"^([ \t]*)### BEGIN SOLUTION\n.*?^[ \t]*### END SOLUTION$", re.DOTALL | re.MULTILINE
)


@dataclasses.dataclass(frozen=True)
class Given:
    """An answer to a question.

    Attributes:
        question: The question's number.
        answer: The code instead of the solution.
        words: A part of what the check says; the points if the answer is right.
        before: A cell to run before the answer.
    """

    question: int
    answer: str
    words: str
    before: str = ""


def checks_of(name: str) -> tuple[Any, dict[int, tuple[str, str]]]:
    """Return a lesson without its last cell, and by question its answer's cell and its check."""
    (path,) = SOLUTIONS.glob(f"{name}_*.ipynb")
    lesson = nbformat.read(path, as_version=4)
    questions: dict[int, tuple[str, str]] = {}
    answer = ""
    for cell in lesson.cells:
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("solution"):
            answer = cell.source
        elif marks.get("grade"):
            questions[len(questions) + 1] = (answer, cell.source)
    kept = [cell for cell in lesson.cells if not cell.source.startswith("%tpu_disconnect")]
    # The last cells of lesson 3 do not disconnect, and the score is the last cell of code.
    lesson.cells = [cell for cell in kept if cell.cell_type == "code"]
    return lesson, questions


def cell_with(solution: str, answer: str) -> str:
    """Return an answer's cell with another answer."""

    def indented(match: re.Match[str]) -> str:
        return "\n".join(match[1] + line for line in answer.strip("\n").split("\n"))

    return _REGION.sub(indented, solution)


def what_checks_say(name: str, answers: Sequence[Given], *, last: int | None = None) -> list[str]:
    """Run a lesson, then give each answer, and return the output of each check.

    Args:
        name: The number of the lesson.
        answers: The answers.
        last: The last question of the lesson whose cells run; None for all.
    """
    lesson, questions = checks_of(name)
    if last is not None:
        sources = [cell.source for cell in lesson.cells]
        del lesson.cells[sources.index(questions[last][1]) + 1 :]
    places = []
    for given in answers:
        solution, check = questions[given.question]
        cells = [given.before, cell_with(solution, given.answer), check]
        lesson.cells += [nbformat.v4.new_code_cell(source) for source in cells if source]
        places.append(len(lesson.cells) - 1)
    resources = {"metadata": {"path": str(SOLUTIONS)}}
    client = NotebookClient(
        lesson, timeout=PATIENCE, kernel_name="python3", resources=resources, allow_errors=True
    )
    client.execute()
    return [_said(lesson.cells[place]) for place in places]


def environment() -> dict[str, str]:
    """Return the variables of the kernel."""
    return {"PYTHONPATH": python_path(ROOT), "TPUNB_WIDGETS": "never"}


def _said(cell: Any) -> str:
    texts = [
        "\n".join(output.traceback) if output.output_type == "error" else output.get("text", "")
        for output in cell.outputs
    ]
    return "".join(texts).strip()
