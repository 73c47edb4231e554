"""The answers to puzzles that are in a notebook with solutions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpunb.compiler.ask.recorded_verdicts import FOLDER
from tpunb.puzzles import check

Case = tuple[str, tuple[Any, ...], str]
"""A puzzle, an answer, and a part of the report."""

SOLUTIONS = Path(__file__).parents[2] / "notebooks" / "puzzles" / "solutions"


def answers_in(name: str) -> dict[str, tuple[Any, ...]]:
    """Run the cells of a notebook without its magics, and return what it gives `check`."""
    answers: dict[str, tuple[Any, ...]] = {}
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, "")  # the notebook sets it only if it is not set
        for cell in _code_cells(name):
            source = "".join(cell["source"])
            if not source.startswith(("%", "scores")) and cell["id"] != "install":
                exec(compile(source, name, "exec"), names)
                names["check"] = lambda puzzle, *answer: answers.setdefault(puzzle, answer)
    return answers


def reports_in(name: str) -> list[str]:
    """Return the saved reports of a notebook as text."""
    return [
        "".join(output["data"]["text/plain"])
        for cell in _code_cells(name)
        for output in cell["outputs"]
        if "check(" in "".join(cell["source"])
    ]


def _code_cells(name: str) -> Iterator[Any]:
    notebook = json.loads((SOLUTIONS / name).read_text(encoding="utf-8"))
    return (cell for cell in notebook["cells"] if cell["cell_type"] == "code")


def check_saved_reports(notebook: str, names: Sequence[str]) -> None:
    """Check that a notebook's solutions are the best known. It computes its saved reports again."""
    reports = reports_in(notebook)
    assert [report.partition(":")[0] for report in reports] == names
    assert all("as good as the best known" in report for report in reports)


def check_recorded(
    patch: pytest.MonkeyPatch, name: str, answer: Sequence[Any], other: Callable[..., Any]
) -> None:
    """Check that a recorded verdict judges an answer without the compiler, and not another mean."""
    patch.setenv("TPUNB_COMPILER_PYTHON", "/does/not/exist")
    patch.setenv(FOLDER, str(SOLUTIONS.parent / "recorded"))
    report = check(name, *answer)
    assert report.score == 100
    assert "(recorded)" in report._repr_html_()
    assert "tpunb compiler install" in check("mean", other).headline


def unanswered(*_: Any) -> None:
    raise NotImplementedError


def filled(rows: Any) -> Any:
    """Return rows filled up to 64, and their number."""
    return np.pad(rows, ((0, 64 - len(rows)), (0, 0))), np.float32(len(rows))


def no_points_for_wrong(cases: Sequence[Case]) -> Callable[..., None]:
    """Return a test that an answer with wrong results is not compiled."""

    @pytest.mark.parametrize(("name", "answer", "said"), cases, ids=_id)
    def test(name: str, answer: tuple[Any, ...], said: str) -> None:
        report = check(name, *answer)
        assert (report.solved, report.score, report.program) == (False, 0, None)
        assert said in str(report)

    return test


def no_points_for_wasteful(cases: Sequence[Case]) -> Callable[..., None]:
    """Return a test that an answer with right results may cost too much."""

    @pytest.mark.parametrize(("name", "answer", "said"), cases, ids=_id)
    def test(name: str, answer: tuple[Any, ...], said: str, libtpu: None) -> None:
        report = check(name, *answer)
        assert report.problem == ""
        assert (report.solved, report.score) == (False, 0)
        assert said in str(report)

    return test


def _id(case: Any) -> str:
    return case if isinstance(case, str) else ""
