"""Training curves as a line of text."""

from __future__ import annotations

from tpunb._util.plain_text import shortened
from tpunb._util.units import counted, grouped
from tpunb.display.describe.history import HistoryDescription
from tpunb.display.draw.formats import and_more

__all__ = ["curves_text", "curves_title", "shown_of"]

_MAX_NAMES = 8


def curves_text(description: HistoryDescription) -> str:
    """A title for the curves, without values: the same in every run.

    For example `"Training curves · loss, accuracy · 500 steps"`.
    """
    parts = ["Training curves"]
    if description.num_runs > 1:
        parts.append(counted(description.num_runs, "run"))
    titles = [_shown(panel.title) for panel in description.panels]
    if titles:
        more = description.num_panels - _MAX_NAMES
        rest = f" {and_more(more)}" if more > 0 else ""
        parts.append(", ".join(titles[:_MAX_NAMES]) + rest)
    if description.num_steps:
        parts.append(counted(description.num_steps, "step"))
    return "\n".join([" · ".join(parts), *map(_shown_note, description.notes)])


def _shown_note(note: str) -> str:
    return f"Note: {note}"


def shown_of(description: HistoryDescription) -> list[str]:
    """What is left out, such as `"12 of 10,000 metrics"`; empty where all is shown."""
    pairs = (
        (len(description.runs), description.num_runs, "runs"),
        (len(description.panels), description.num_panels, "metrics"),
    )
    return [f"{shown} of {grouped(every)} {what}" for shown, every, what in pairs if shown < every]


def curves_title(description: HistoryDescription) -> str:
    """The name of the only run, or that these are training curves."""
    names = [_shown(run.name) for run in description.runs if run.name]
    return names[0] if len(description.runs) == 1 and names else "Training curves"


def _shown(name: str) -> str:
    """A name in one line."""
    line = "".join(char if char.isprintable() else " " for char in name)
    return shortened(line, 60)
