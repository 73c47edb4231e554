"""The grading of an answer: run it, compile it, and compare its figures with the puzzle's."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from typing import Any

from tpunb._util.plain_data import packed, unpacked
from tpunb.compiler.ask.compile_settings import CompileOptions
from tpunb.compiler.program import CompilerUnavailableError
from tpunb.errors.base import hint
from tpunb.errors.code_problems import is_library, refusal_in_short
from tpunb.errors.explain import explain
from tpunb.teach.puzzles.error_hints import hint_for
from tpunb.teach.puzzles.framework import AnswerError
from tpunb.teach.puzzles.puzzle import Puzzle
from tpunb.teach.puzzles.report import Report
from tpunb.teach.puzzles.scores import remember

_INSTALL = "Try: !tpunb compiler install (on Linux on x86-64)"
_LONGEST, _WITH_HINT = 400, 160
"""The longest part of another package's message that a report quotes, also beside our own hint."""


def check(name: str, *answer: Any) -> Report:
    """Grade the answer to a puzzle.

    The answer runs with random arguments on the virtual TPU, and its results are compared with the
    right results. Then the TPU's compiler compiles the same program. An answer that gives
    wrong results is not compiled.

    Args:
        name: The puzzle's name, such as `"neighbours"`.
        *answer: The answer: a function, two functions or a dict, as the puzzle says.

    Returns:
        A report, which a notebook's cell shows. Its `solved` is true if the answer is right and
        within the limits. `raise_if_unsolved` raises an error otherwise.

    Raises:
        AnswerError: There is no puzzle of this name.
    """
    report = graded(find_puzzle(name), answer)
    remember(report)
    return report


def find_puzzle(name: str) -> Puzzle:
    """Return a puzzle of the framework that is in use.

    Raises:
        AnswerError: There is none of this name.
    """
    known = puzzles()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)
    raise AnswerError(f"There is no puzzle {name!r}.", fix=f"tpunb.puzzles.check({near[0]!r}, …)")


def puzzles() -> dict[str, Puzzle]:
    """Return the puzzles of the framework that is in use, by name."""
    framework = "jax" if "jax" in sys.modules and "tensorflow" not in sys.modules else "tensorflow"
    module = importlib.import_module(f"tpunb.teach.puzzles.{framework}_puzzles")
    return {puzzle.name: puzzle for puzzle in module.PUZZLES}


def graded(puzzle: Puzzle, answer: tuple[Any, ...]) -> Report:
    """Return the report about an answer."""
    try:
        data = packed(puzzle.form.data(puzzle, answer))
    except NotImplementedError:
        return Report(puzzle, "There is no answer yet.")
    except AnswerError as error:
        return Report(puzzle, str(error))
    except Exception as error:  # whatever the answer raises
        return Report(puzzle, _described(error))
    return judged(puzzle, data)


def judged(puzzle: Puzzle, data: str) -> Report:
    """Return the report about an answer that is plain data, without the answer's code."""
    try:
        attempt = puzzle.form.attempt(puzzle, unpacked(data))
    except AnswerError as error:
        return Report(puzzle, str(error))
    except Exception as error:  # whatever a program raises when it is read or run
        return Report(puzzle, _described(error))
    if attempt.problem:
        return Report(puzzle, attempt.problem)
    options = CompileOptions(
        (puzzle.form.framework.tpu,),
        speed=puzzle.timed,
        live_arrays=False,
        advice=False,
        progress=None,
    )
    try:
        return Report(puzzle, program=attempt.compiled(options))
    except CompilerUnavailableError as error:  # or no recorded verdict
        return Report(puzzle, unknown=f"{error.message} {_INSTALL}")


def _described(error: Exception) -> str:
    """Return an error of an answer with its line, and what helps."""
    if short := refusal_in_short(str(error)):
        return short
    known = explain(error)
    fix = hint_for(error) or (known.fix if known else "")
    message, most = " ".join(str(error).split()), _WITH_HINT if fix else _LONGEST
    message = message if len(message) <= most else f"{message[:most].rsplit(' ', 1)[0]} …"
    place = f"Line {line}: " if (line := _line_of(error)) else ""
    text = ": ".join(filter(None, (type(error).__name__, message)))
    text = text if text.endswith((".", "…")) else f"{text}."
    return f"{place}{text} {hint(fix)}" if fix else f"{place}{text}"


def _line_of(error: Exception) -> int | None:
    """Return the innermost line of the learner's code that led to an error."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if not is_library(f.filename)]
    return mine[-1].lineno if mine else None
