"""Training curves as a line of text."""

from __future__ import annotations

from tpunb.describe.history import HistoryDescription
from tpunb.draw.wording import counted

__all__ = ["curves_text", "curves_title"]

_MAX_NAMES = 8


def curves_text(description: HistoryDescription) -> str:
    """What the curves are of: without values, the same in every run.

    For example `"Training curves · loss, accuracy · 500 steps"`.
    """
    parts = ["Training curves"]
    if len(description.runs) > 1:
        parts.append(counted(len(description.runs), "run"))
    titles = [_shown(panel.title) for panel in description.panels]
    if titles:
        more = len(titles) - _MAX_NAMES
        rest = f" and {more} more" if more > 0 else ""
        parts.append(", ".join(titles[:_MAX_NAMES]) + rest)
    if description.num_steps:
        parts.append(counted(description.num_steps, "step"))
    return " · ".join(parts)


def curves_title(description: HistoryDescription) -> str:
    """The name of the only run, or that these are training curves."""
    names = [_shown(run.name) for run in description.runs if run.name]
    return names[0] if len(description.runs) == 1 and names else "Training curves"


def _shown(name: str) -> str:
    """A name in one line."""
    line = "".join(char if char.isprintable() else " " for char in name)
    return line if len(line) <= 60 else f"{line[:59]}…"
