"""A check that finds thousands of problems shows some of them, and counts the rest."""

from __future__ import annotations

from tpunb.virtual.check import CheckReport, Problem


def test_many_problems() -> None:
    problem = Problem("rule", 1, "", "because " * 10_000, "Do otherwise.")
    report = CheckReport((problem,) * 10_000, (problem,) * 40)
    shown = str(report)
    assert shown.startswith("Does not compile for a TPU: 10000 errors, 40 warnings.")
    assert shown.count("error rule") == shown.count("warning rule") == 30
    assert "and 9970 more errors" in shown
    assert "and 10 more warnings" in shown
    assert "and 9970 more errors" in report._repr_html_()
    assert len(shown) + len(report._repr_html_()) < 400_000
