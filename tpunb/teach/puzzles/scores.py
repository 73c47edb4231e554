"""The scores of the puzzles that were checked in this process."""

from __future__ import annotations

import dataclasses

from tpunb._util.tables import table
from tpunb._util.units import counted
from tpunb.teach.puzzles.report import Report

_best: dict[str, Report] = {}


def remember(report: Report) -> None:
    """Keep a report if no earlier answer to its puzzle was better."""
    former = _best.get(report.puzzle.name)
    if former is None or (report.solved, report.score) >= (former.solved, former.score):
        _best[report.puzzle.name] = report


@dataclasses.dataclass(frozen=True, repr=False)
class Scores:
    """The best report about each puzzle that was checked."""

    reports: tuple[Report, ...]

    @property
    def headline(self) -> str:
        """The number of solved puzzles, and the mean of their scores."""
        solved = [report for report in self.reports if report.solved]
        if not solved:
            return "No puzzle is solved yet."
        mean = sum(report.score for report in solved) / len(solved)
        return (
            f"{len(solved)} of {counted(len(self.reports), 'puzzle')} solved, with a mean score of "
            f"{mean:.0f} of 100."
        )

    def rows(self) -> list[tuple[str, str]]:
        """Return each puzzle with its score as text."""
        return [
            (report.puzzle.name, str(report.score) if report.solved else "not solved")
            for report in self.reports
        ]

    def __repr__(self) -> str:
        return "\n".join([self.headline, *(f"  {name}: {score}" for name, score in self.rows())])

    def _repr_html_(self) -> str:
        return f"<p>{self.headline}</p>{table(self.rows(), head=('puzzle', 'score'), named=True)}"


def scores() -> Scores:
    """Return the best score of each puzzle that was checked since the kernel started."""
    return Scores(tuple(_best.values()))
