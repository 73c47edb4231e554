"""The points of a lesson, and the parts to read again."""

from __future__ import annotations

from collections.abc import Mapping

_earned: dict[int, int] = {}
"""By number of a question, the points of its last check in this process."""


def remember(question: int, points: int) -> None:
    """Keep the points that the last check of a question gave."""
    _earned[question] = points


def score(parts: Mapping[str, Mapping[int, int]]) -> Score:
    """Return the points of the checks that ran, to show at the end of a lesson.

    Args:
        parts: By heading of a part of the lesson, the points of each question in this part.
    """
    return Score({part: dict(questions) for part, questions in parts.items()}, dict(_earned))


class Score:
    """The points of a lesson.

    Args:
        parts: By heading, the points of each question.
        earned: By question, the points that its check gave.

    Attributes:
        points: The points of all questions.
        possible: The highest number of points.
    """

    def __init__(self, parts: Mapping[str, Mapping[int, int]], earned: Mapping[int, int]) -> None:
        questions = {number: points for part in parts.values() for number, points in part.items()}
        self.points = sum(min(earned.get(n, 0), points) for n, points in questions.items())
        self.possible = sum(questions.values())
        self._parts, self._earned = parts, earned

    def __repr__(self) -> str:
        """Return the points, with a line for each part that misses some."""
        lines = [f"{self.points} of {self.possible} points"]
        for part, questions in self._parts.items():
            if missing := [number for number in questions if not self._earned.get(number)]:
                lines.append(f"Read again: {part} ({_questions(missing)})")
        return "\n".join(lines)


def _questions(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"question {numbers[0]}"
    return f"questions {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
