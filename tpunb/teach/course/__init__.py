"""Checks of answers in a lesson: `question`, `seal` and `score`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tpunb.notebook.files import STUDENT
from tpunb.teach.course.grading import Question
from tpunb.teach.course.scores import score
from tpunb.teach.course.seals import seal

__all__ = ["question", "score", "seal"]


def question(number: int, *, points: int, answers: str | Sequence[str] = ()) -> Question:
    """Return the check of an answer, for a `with` block of `assert` statements.

    The block grades the answer. It runs only if the answer's cell has run to its end: the cell with
    the line `# Question N`, or the latest cell that assigns one of the names. At the end of the
    block, the points are printed and kept for `score`. A failed `assert` shows its message only,
    without the code of the check.

    Args:
        number: The number of the question.
        points: The points for a right answer.
        answers: The names that the answer assigns.
    """
    names = (answers,) if isinstance(answers, str) else tuple(answers)
    if STUDENT in os.environ:
        from tpunb.teach.course.remote import RemoteQuestion

        return RemoteQuestion(number, points, names)
    return Question(number, points, names)
