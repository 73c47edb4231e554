"""Training curves as a figure of matplotlib: panels one below the other.

Matplotlib is imported when a figure is made, and never through pyplot: a display must not
touch the user's figures, backend or style.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpunb._util.plain_text import shortened
from tpunb._util.units import number_text
from tpunb.training.metrics import Columns, Floats, Ints, best_row, goal_of, within_reach
from tpunb.training.smoothing import smoothed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _PANEL_HEIGHT, _LEGEND_LINE = 5.6, 2.2, 0.2
"""In inches. On a page of 400 pixels, a picture of this width has labels of 10 pixels."""

_STRETCHES = 2_000
"""More than a line has pixels."""

_LONGEST_LABEL = 64
_FAINT = 0.25
_SPREAD = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One metric of one run.

    Attributes:
        run: The number of the run.
        label: Its name in the panel's legend.
        validation: Whether it is a validation metric.
        columns: Its steps and values.
        best: The row of the best value; None where the metric's name does not say what is best.
        first_nonfinite: The first row that is NaN or infinite, or None.
    """

    run: int
    label: str
    validation: bool
    columns: Columns
    best: int | None
    first_nonfinite: int | None


@dataclass(frozen=True, slots=True)
class Panel:
    """The lines that are drawn over each other.

    Attributes:
        title: The metric's name without `val_` and its like.
        lines: The lines, run by run.
    """

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class CurvesLook:
    """The settings of a figure.

    Attributes:
        scale: `linear` or `log`, of the values' axes.
        smoothing: Weight of the moving average in percent; the values stay, faint.
        spread: Whether to draw the spread over replicas.
    """

    scale: str = "linear"
    smoothing: int = 0
    spread: bool = True


DEFAULT_LOOK = CurvesLook()


def line_of(
    metric: str, columns: Columns, *, label: str, validation: bool = False, run: int = 0
) -> Line:
    """Return a metric's line, with its best value and its first value that is not finite."""
    goal, finite = goal_of(metric), np.isfinite(columns.values)
    return Line(
        run,
        label,
        validation,
        columns,
        best=best_row(columns.values, goal) if goal else None,
        first_nonfinite=None if finite.all() else int(np.argmin(finite)),
    )


def curves_figure(
    panels: Sequence[Panel], heading: str = "", look: CurvesLook = DEFAULT_LOOK
) -> Figure:
    """Draw panels in the style that matplotlib is set to.

    Args:
        panels: What to draw.
        heading: Lines above the first panel.
        look: The settings.
    """
    from matplotlib.figure import Figure

    heights = [_PANEL_HEIGHT + _LEGEND_LINE * len(panel.lines) for panel in panels]
    # The heading's lines are as high as a legend's.
    above = 0.1 + 1.2 * _LEGEND_LINE * len(heading.splitlines())
    figure = Figure(figsize=(_WIDTH, above + max(1.0, sum(heights))), layout="constrained")
    if heading:
        text = _without_mathematics(heading)
        figure.suptitle(text, x=0.01, horizontalalignment="left", fontsize="medium")
    if not panels:
        return figure
    several = len({line.run for panel in panels for line in panel.lines}) > 1
    every = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, panel in zip(every, panels, strict=True):
        # Colours tell runs apart, dashes validation; in a single run, colours tell all.
        styles = [
            (f"C{line.run}", "--" if line.validation else "-") if several else (f"C{number}", "-")
            for number, line in enumerate(panel.lines)
        ]
        _draw_panel(axes, panel, styles, look)
    return figure


def _draw_panel(
    axes: Axes, panel: Panel, styles: Sequence[tuple[str, str]], look: CurvesLook
) -> None:
    """Draw the lines of a panel, its title, and its legend between the two."""
    columns = [line.columns for line in panel.lines]
    log = look.scale == "log" and any((part.values > 0).any() for part in columns)
    if log:
        axes.set_yscale("log", nonpositive="mask")
    for line, (colour, style) in zip(panel.lines, styles, strict=True):
        _draw_line(axes, line, colour, style, log, look)
    if log:
        _make_room(axes, columns)
    size = float(axes.xaxis.label.get_fontsize())
    title = _without_mathematics(shortened(panel.title, _LONGEST_LABEL))
    axes.set_title(title, loc="left", pad=5 + 1.25 * size * len(panel.lines))
    axes.set_xlabel("step")
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        frameon=False,
        fontsize=size,
        borderpad=0,
        borderaxespad=0.3,
        labelspacing=0.2,
    )


def _draw_line(
    axes: Axes, line: Line, colour: str, style: str, log: bool, look: CurvesLook
) -> None:
    """Draw a metric, its spread, its best value, and where it stops being finite."""
    _, steps, values, lows, highs = line.columns
    if look.spread and lows is not None and highs is not None:
        low, high = within_reach(lows, log=log), within_reach(highs, log=log)
        rows = _drawn_rows(low)
        axes.fill_between(
            steps[rows], low[rows], high[rows], color=colour, alpha=_SPREAD, linewidth=0
        )
    shown = within_reach(values, log=log)
    if look.smoothing:
        rows = _drawn_rows(shown)
        axes.plot(steps[rows], shown[rows], style, color=colour, linewidth=1, alpha=_FAINT)
        shown = smoothed(steps, shown, look.smoothing / 100)
    marker = "o" if steps.size == 1 else None
    label = _without_mathematics(_label(line))
    rows = _drawn_rows(shown)
    axes.plot(
        steps[rows], shown[rows], style, color=colour, linewidth=1.4, marker=marker, label=label
    )
    if line.best is not None and not (log and values[line.best] <= 0):
        best = slice(line.best, line.best + 1)
        at = within_reach(values[best], log=log)
        axes.plot(steps[best], at, "o", color=colour, fillstyle="none", clip_on=False)
    if line.first_nonfinite is not None:
        axes.axvline(float(steps[line.first_nonfinite]), color=colour, linewidth=0.8, linestyle=":")


def _drawn_rows(values: Floats) -> Ints:
    """Return the rows that are drawn of a long line: the least and greatest of each stretch."""
    stretch = -(-values.size // _STRETCHES)
    if stretch <= 2:
        return np.arange(values.size)
    padded = np.append(values, np.full(-values.size % stretch, np.nan)).reshape(-1, stretch)
    missing, begins = np.isnan(padded), np.arange(0, values.size, stretch)
    least = begins + np.where(missing, np.inf, padded).argmin(axis=1)
    greatest = begins + np.where(missing, -np.inf, padded).argmax(axis=1)
    return np.unique(np.concatenate([least, greatest, [values.size - 1]]))


def _label(line: Line) -> str:
    """Return a line's name, its last value, and its best one."""
    _, steps, values, _, _ = line.columns
    parts = [f"{shortened(line.label, _LONGEST_LABEL // 2)}  {number_text(float(values[-1]))}"]
    if line.best is not None:
        parts.append(f"best {number_text(float(values[line.best]))} at {steps[line.best]}")
    if line.first_nonfinite is not None:
        parts.append(f"not finite from {steps[line.first_nonfinite]}")
    return " · ".join(parts)


def _make_room(axes: Axes, columns: Sequence[Columns]) -> None:
    """Give equal values room on a logarithmic axis: matplotlib's own falls short for tiny ones."""
    shown = np.concatenate([within_reach(part.values, log=True) for part in columns])
    kept = np.unique(shown[~np.isnan(shown)])
    if kept.size == 1 and all(part.lows is None for part in columns):
        axes.set_autoscaley_on(False)
        axes.set_ylim(kept[0] / 10, kept[0] * 10)


def _without_mathematics(text: str) -> Any:
    """Return text in which matplotlib finds no mathematics, and a legend no hidden label."""
    line = "\n".join(
        "".join(char if char.isprintable() else " " for char in part) for part in text.splitlines()
    )
    return line.replace("$", r"\$").lstrip("_") or line
