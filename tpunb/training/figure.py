"""Training curves as a matplotlib figure to go on working with."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from tpunb._util.units import grouped
from tpunb.training.columns import Columns
from tpunb.training.metrics import MAX_PANELS, panels_of, within_reach


def curves_figure(metrics: Mapping[str, Columns]) -> Any:
    """Draws panels side by side, in the style that matplotlib is set to.

    Args:
        metrics: The columns of each metric.

    Returns:
        A `matplotlib.figure.Figure` that pyplot does not know.
    """
    from matplotlib.figure import Figure

    every = panels_of(metrics)
    panels = dict(itertools.islice(every.items(), MAX_PANELS))
    figure = Figure(figsize=(5 * max(1, len(panels)), 3.5), layout="constrained")
    for number, (title, lines) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        for line in lines:
            _draw(axes, metrics[line.metric], _plain(line.role), dashed=line.validation)
        axes.set_title(_plain(title))
        axes.set_xlabel("step")
        axes.legend()
    if len(panels) < len(every):
        figure.suptitle(f"{len(panels)} of {grouped(len(every))} metrics")
    return figure


def _draw(axes: Any, columns: Columns, label: str, *, dashed: bool) -> None:
    style = "--" if dashed else "-"
    drawn = axes.plot(columns.steps, within_reach(columns.values), style, label=label)
    if columns.lows is not None and columns.highs is not None:
        lows, highs = within_reach(columns.lows), within_reach(columns.highs)
        colour = drawn[0].get_color()
        axes.fill_between(columns.steps, lows, highs, color=colour, alpha=0.2)


def _plain(text: str) -> str:
    """Text in which matplotlib finds no mathematics, and a legend no hidden label."""
    return text.replace("$", r"\$").lstrip("_") or text
