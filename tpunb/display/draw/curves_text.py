"""Training curves as a line of text, and the heading of their picture."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpunb._util.plain_text import shortened
from tpunb._util.units import and_more, counted, number_text
from tpunb.display.describe.history_description import HistoryDescription

_MAX_NAMES = 8
_NUMBERED = re.compile(r"run \d+( \(\d+\))?$")


def curves_text(description: HistoryDescription) -> str:
    """Return a title for the curves, without values, so that it is the same in every run.

    For example `"Training curves · loss, accuracy · 500 steps"`.
    """
    parts = ["Training curves"]
    if description.num_runs > 1:
        runs = [run.name for run in description.runs]
        named = not all(map(_NUMBERED.match, runs))
        names = f": {_listed(runs, description.num_runs)}" if named else ""
        parts.append(f"{counted(description.num_runs, 'run')}{names}")
    if description.panels:
        titles = [panel.title for panel in description.panels]
        parts.append(_listed(titles, description.num_panels))
    if description.num_steps:
        parts.append(description.steps_text)
    return "\n".join([" · ".join(parts), *(f"Note: {note}" for note in description.notes)])


def last_values_text(description: HistoryDescription) -> str:
    """Return the last values of the curves, in a line for each run.

    For example `"loss 0.0312 · accuracy 0.98"`. A saved notebook does without them, since they
    differ between machines. A terminal has no picture.
    """
    lines = []
    for number, run in enumerate(description.runs):
        values = [
            f"{'val_' * line.validation}{_shown(panel.title)} "
            f"{number_text(float(line.columns.values[-1]))}"
            for panel in description.panels
            for line in panel.lines
            if line.run == number and len(line.columns.values)
        ]
        if values:
            more = [and_more(len(values) - _MAX_NAMES)] if len(values) > _MAX_NAMES else []
            name = f"{_shown(run.name)}: " if run.name else ""
            lines.append(name + " · ".join([*values[:_MAX_NAMES], *more]))
    return "\n".join(lines)


def _listed(names: Sequence[str], count: int) -> str:
    """Return the first of so many names, and the number of the others."""
    first = ", ".join(map(_shown, names[:_MAX_NAMES]))
    return f"{first} {and_more(count - _MAX_NAMES)}" if count > _MAX_NAMES else first


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
    parts += description.omissions
    if any(run.state == "stopped" for run in description.runs):
        parts.append("stopped")
    return [" · ".join(parts), *(f"Note: {note}" for note in description.notes)]
