"""A lesson of the course in a shell, to give other answers to its questions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
from support.shell import Notebook, Ran

SOLUTIONS = Path(__file__).parents[2] / "notebooks" / "course" / "solutions"

_REGION = re.compile(
    r"^([ \t]*)### BEGIN SOLUTION\n.*?^[ \t]*### END SOLUTION$", re.DOTALL | re.MULTILINE
)


class Lesson:
    """A lesson whose cells have run with the right answers.

    Args:
        book: The shell.
        name: The beginning of the lesson's file name.
        until: The last question whose cells run; None for all.
    """

    def __init__(self, book: Notebook, name: str, until: int | None = None) -> None:
        (path,) = SOLUTIONS.glob(f"{name}*.ipynb")
        self.book = book
        self.answers: dict[int, str] = {}
        self.checks: dict[int, str] = {}
        pending = ""
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type != "code" or cell.source.startswith("%tpu_disconnect"):
                continue
            marks = cell.metadata.get("nbgrader", {})
            if marks.get("solution"):
                pending = cell.source
            if marks.get("grade"):
                number = int(cell.source.split()[3])
                self.answers[number], self.checks[number] = pending, cell.source
            book.good(cell.source)
            if marks.get("grade") and number == until:
                break

    def grade(self, question: int, answer: str, first: Iterable[str] = ()) -> str:
        """Give an answer, and return what the check says.

        Args:
            question: The question.
            answer: The lines instead of the solution, or a whole cell that begins with `%%`.
            first: Cells to run before the answer.
        """
        for cell in first:
            self.book.good(cell)
        self.book.run(answer if answer.startswith("%%") else self.cell(question, answer))
        return said(self.book.run(self.checks[question]))

    def cell(self, question: int, answer: str) -> str:
        """Return the cell of a question with another answer."""

        def indented(match: re.Match[str]) -> str:
            return "\n".join(match[1] + line for line in answer.strip("\n").split("\n"))

        return _REGION.sub(indented, self.answers[question])


def said(ran: Ran) -> str:
    """Return the message of a check, or the line with the points."""
    return ran.text.strip() if ran.error is None else f"{type(ran.error).__name__}: {ran.error}"


def names_of(values: dict[str, Any]) -> str:
    """Return a cell that assigns values."""
    return "\n".join(f"{name} = {value!r}" for name, value in values.items())
