"""Checks of answers in a lesson: `question`, `seal` and `score`."""

from tpunb.course.question import question
from tpunb.course.score import score
from tpunb.course.seals import seal

__all__ = ["question", "score", "seal"]
