"""Wrong answers to the lessons get no points and their hint; unusual right answers get their points.

All answers to a lesson are given in one kernel, after the lesson has run with its solutions.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import pytest
from course_answers.in_a_kernel import Given, checks_of, environment, what_checks_say
from support.tiers import THOROUGH

from tpunb.compiler.ask import libtpu

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

LESSONS = ("1", "2", "3", "4", "5")
WITH_JAX = "3"

BEFORE = {
    ("2", 3): "with strategy.scope():\n    weights = tf.Variable(tf.zeros([64, 10]))\n"
    "    sgd = keras.optimizers.SGD(0.1)",
    ("2", 5): "with strategy.scope():\n    weights = tf.Variable(tf.zeros([64, 10]))\n"
    "    trainer = keras.optimizers.SGD(0.5)",
}
"""By lesson and question, a cell to run before each attempt, as the lesson asks."""

ODD = (
    "None",
    "True",
    "''",
    "'many'",
    "'8'",
    "[]",
    "[1]",
    "()",
    "{}",
    "{'a': 1}",
    "set()",
    "-1",
    "0.3",
    "1e30",
    "float('nan')",
    "float('inf')",
    "1j",
    "np.ones(3)",
    "object()",
    "len",
)
"""Values that are right for no prediction."""


def odd_predictions(lesson: str) -> Iterator[Given]:
    for number, (_, check) in checks_of(lesson)[1].items():
        names = re.findall(r"predicted\(\s*\"(\w+)\"", check)
        for value in ODD if names else ():
            yield Given(number, "\n".join(f"{name} = {value}" for name in names), "Not yet: ")


def all_answers(lesson: str) -> list[Given]:
    answers = importlib.import_module(f"course_answers.lesson_{lesson}")
    points = {
        number: int(re.findall(r"points=(\d)", check)[0])
        for number, (_, check) in checks_of(lesson)[1].items()
    }
    wrong = [
        Given(number, answer, words, BEFORE.get((lesson, number), ""))
        for number, given in answers.WRONG.items()
        for answer, words in given.items()
    ]
    right = [
        Given(number, answer, f"Question {number}: {points[number]} point", given_before)
        for number, given in answers.RIGHT.items()
        for answer in given
        for given_before in [BEFORE.get((lesson, number), "")]
    ]
    return [*wrong, *right, *odd_predictions(lesson)]


@THOROUGH
@pytest.mark.parametrize("lesson", LESSONS)
def test_each_answer_gets_its_hint_or_its_points(
    lesson: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lesson == WITH_JAX and (reason := libtpu.why_unavailable()):
        pytest.skip(str(reason).splitlines()[0])
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    answers = all_answers(lesson)
    said = what_checks_say(lesson, answers)
    other = {
        (given.question, given.answer): text
        for given, text in zip(answers, said, strict=True)
        if given.words not in text
    }
    assert other == {}


def test_the_answers_are_of_all_questions() -> None:
    """Each check of a lesson is given wrong answers, and unusual right answers."""
    for lesson in LESSONS:
        answers = importlib.import_module(f"course_answers.lesson_{lesson}")
        numbers = set(checks_of(lesson)[1])
        assert set(answers.WRONG) == set(answers.RIGHT) == numbers
