"""Training curves as a line of text, and the heading of their picture."""

from __future__ import annotations

import re

from tpunb._util.plain_text import shortened
from tpunb._util.units import and_more, counted, grouped
from tpunb.display.describe.history_description import HistoryDescription

_MAX_NAMES = 8
_NUMBERED = re.compile(r"run \d+( \(\d+\))?$")


def curves_text(description: HistoryDescription) -> str:
    """Return a title for the curves, without values, so that it is the same in every run.

    For example `"Training curves · loss, accuracy · 500 steps"`.
    """
    parts = ["Training curves"]
    if description.num_runs > 1:
        parts.append(counted(description.num_runs, "run") + _names_of_runs(description))
    titles = [_shown(panel.title) for panel in description.panels]
    if titles:
        more = description.num_panels - _MAX_NAMES
        rest = f" {and_more(more)}" if more > 0 else ""
        parts.append(", ".join(titles[:_MAX_NAMES]) + rest)
    if description.num_steps:
        parts.append(description.steps_text)
    return "\n".join([" · ".join(parts), *(f"Note: {note}" for note in description.notes)])


def _names_of_runs(description: HistoryDescription) -> str:
    """Return the names of the runs, unless they are only numbers."""
    if all(_NUMBERED.match(run.name) for run in description.runs):
        return ""
    names = [_shown(run.name) for run in description.runs[:_MAX_NAMES]]
    more = description.num_runs - len(names)
    rest = f" {and_more(more)}" if more > 0 else ""
    return f": {', '.join(names)}{rest}"


def omission_phrases(runs: tuple[int, int], panels: tuple[int, int]) -> list[str]:
    """Return phrases for omitted parts, such as `"12 of 10,000 metrics"`; empty without any.

    Args:
        runs: The number of runs that are shown, and of all runs.
        panels: The same of panels.
    """
    pairs = ((*runs, "runs"), (*panels, "metrics"))
    return [f"{shown} of {grouped(every)} {noun}" for shown, every, noun in pairs if shown < every]


def _shown(name: str) -> str:
    """Return a name in one line."""
    line = "".join(char if char.isprintable() else " " for char in name)
    return shortened(line, 60)


def curves_heading(description: HistoryDescription) -> list[str]:
    """Return the lines above a picture: the run's name, how much is shown, and the notes."""
    names = [_shown(run.name) for run in description.runs if run.name]
    parts = names[:1] if len(description.runs) == 1 and names else ["Training curves"]
    if 1 < len(description.runs) == description.num_runs:
        parts.append(f"{len(description.runs)} runs")
    if description.panels:
        parts.append(description.steps_text)
    parts += omission_phrases(
        (len(description.runs), description.num_runs),
        (len(description.panels), description.num_panels),
    )
    if any(run.state == "stopped" for run in description.runs):
        parts.append("stopped")
    return [" · ".join(parts), *(f"Note: {note}" for note in description.notes)]
