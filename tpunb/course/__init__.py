"""Checks of answers in a lesson: `question`, `seal` and `score`."""

from tpunb.course.grading import question
from tpunb.course.scores import score
from tpunb.course.seals import seal

__all__ = ["question", "score", "seal"]
