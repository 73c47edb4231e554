"""Training curves as a matplotlib figure to go on working with."""

from __future__ import annotations

from typing import Any

from tpunb.describe.history import HistoryDescription

__all__ = ["curves_figure"]


def curves_figure(description: HistoryDescription) -> Any:
    """Draws panels side by side, in the style that matplotlib is set to.

    Returns:
        A `matplotlib.figure.Figure` that pyplot does not know.
    """
    from matplotlib.figure import Figure

    panels = description.panels
    figure = Figure(figsize=(5 * max(1, len(panels)), 3.5), layout="constrained")
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), number)
        for line in panel.lines:
            style = "--" if line.validation else "-"
            drawn = axes.plot(line.steps, line.values, style, label=_plain(line.label))
            if line.lows is not None and line.highs is not None:
                colour = drawn[0].get_color()
                axes.fill_between(line.steps, line.lows, line.highs, color=colour, alpha=0.2)
        axes.set_title(_plain(panel.title))
        axes.set_xlabel("step")
        axes.legend()
    return figure


def _plain(text: str) -> str:
    """Text in which matplotlib finds no mathematics, and a legend no hidden label."""
    return text.replace("$", r"\$").lstrip("_") or text
