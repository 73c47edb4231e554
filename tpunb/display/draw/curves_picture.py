"""Training curves as a line of text and as a picture."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb._util.plain_text import shortened
from tpunb._util.units import and_more, counted, grouped, number_text
from tpunb.display.describe.history_description import HistoryDescription, Line, Panel
from tpunb.display.draw.canvas import (
    FRAME,
    GRID,
    HOST_COLOURS,
    INK,
    POINTS,
    Canvas,
    ascii_text,
    new_canvas,
)
from tpunb.training.metrics import Columns, Floats, within_reach

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
    return "\n".join([" · ".join(parts), *(f"Note: {note}" for note in description.notes)])


def shown_of(description: HistoryDescription) -> list[str]:
    """Phrases for what is left out, such as `"12 of 10,000 metrics"`; empty where all is shown."""
    pairs = (
        (len(description.runs), description.num_runs, "runs"),
        (len(description.panels), description.num_panels, "metrics"),
    )
    return [f"{shown} of {grouped(every)} {what}" for shown, every, what in pairs if shown < every]


def _shown(name: str) -> str:
    """A name in one line."""
    line = "".join(char if char.isprintable() else " " for char in name)
    return shortened(line, 60)


_WIDTH = 900
_MARGIN = 18
_GAP = 22
_PLOT_HEIGHT = 190
_LEGEND_LINE = 17
_NOTE_CHARACTERS = 130
_FAINT = 0.22
_BAND = 0.26
"""Between the opacities that the live curves have on light pages and on dark ones."""


def curves_png(
    description: HistoryDescription,
    *,
    scale: str = "linear",
    smoothing: int = 0,
    spread: bool = True,
) -> bytes:
    """Draws training curves as a PNG of some 900 pixels' width.

    Args:
        description: What to draw.
        scale: `linear` or `log`, of the values' axis.
        smoothing: Weight of the moving average in percent; the values stay, faint.
        spread: Whether to draw the spread over replicas.

    Returns:
        The PNG file; the same curves give the same bytes.
    """
    several = len(description.runs) > 1
    panels = description.panels
    # Panels beside each other; four make a square.
    columns = 2 if len(panels) == 4 else max(1, min(len(panels), 3))
    across = 2 if columns == 1 else 1
    width = (_WIDTH - 2 * _MARGIN - (columns - 1) * _GAP) / columns
    with new_canvas(_WIDTH) as canvas:
        title, facts = ascii_text(_title(description)), " · ".join(_facts(description))
        canvas.text(_MARGIN, _MARGIN - 6, title, size=19, bold=True)
        canvas.text(_MARGIN, _MARGIN + 19, facts or "waiting for the first step")
        top = _MARGIN + 42.0
        for note in description.notes:
            for line in textwrap.wrap(note, _NOTE_CHARACTERS):
                canvas.text(_MARGIN, top, ascii_text(line), size=11, colour=HOST_COLOURS[1])
                top += _LEGEND_LINE
        top += 12 if description.notes else 4
        for begin in range(0, len(panels), columns):
            row = panels[begin : begin + columns]
            legend = max(math.ceil(len(panel.lines) / across) for panel in row) * _LEGEND_LINE
            for number, panel in enumerate(row):
                left = _MARGIN + number * (width + _GAP)
                drawing = _Panel(canvas, panel, width, several)
                drawing.legend(left, top, across)
                drawing.draw(left, top + 24 + legend, scale, smoothing / 100, spread)
            top += 24 + legend + _PLOT_HEIGHT + 52
        canvas.set_height(top - 4)
        return canvas.png()


def _title(description: HistoryDescription) -> str:
    """The name of the only run, or that these are training curves."""
    names = [_shown(run.name) for run in description.runs if run.name]
    return names[0] if len(description.runs) == 1 and names else "Training curves"


def _facts(description: HistoryDescription) -> Iterator[str]:
    if 1 < len(description.runs) == description.num_runs:
        yield f"{len(description.runs)} runs"
    if description.panels:
        yield counted(description.num_steps, "step")
    yield from shown_of(description)
    if any(run.state == "stopped" for run in description.runs):
        yield "stopped"


def smoothed(steps: npt.NDArray[Any], values: Floats, weight: float) -> Floats:
    """The exponential moving average, as the widget's page computes it.

    Its weight is per 1/200 of the line's reach, so that the same setting smooths a
    line of ten values as it does one of a hundred thousand. What is NaN or infinite
    stays as it is and does not enter the average.
    """
    kept = np.flatnonzero(np.isfinite(values))
    result: Floats = values.copy()
    if not kept.size:
        return result
    unit = max(float(steps[-1] - steps[0]), 1.0) / 200
    weights = np.power(weight, np.diff(steps[kept]) / unit)
    average = float(values[kept[0]])
    averages = [average]
    for keep, value in zip(weights.tolist(), values[kept[1:]].tolist(), strict=True):
        average = keep * average + (1 - keep) * value
        averages.append(average)
    result[kept] = averages
    return result


def thinned(
    steps: npt.NDArray[Any], columns: list[Floats], buckets: int
) -> tuple[Floats, list[Floats]]:
    """Downsamples a long line: keeps each bucket's minimum and maximum rows.

    Args:
        steps: The step of each row.
        columns: The first one decides which rows are kept, in all of them.
        buckets: Into how many parts the range of steps is divided.

    Returns:
        Steps and columns, unchanged where they are short; NaN where one is in a bucket.
    """
    places = steps.astype(np.float64)
    if places.size <= 4 * buckets:
        return places, columns
    reach = max(places[-1] - places[0], 1.0)
    bucket = np.minimum((places - places[0]) * (buckets / reach), buckets - 1).astype(np.int64)
    begins = np.flatnonzero(np.diff(bucket, prepend=-1))
    ends = np.append(begins[1:], places.size)
    kept: set[int] = set()
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        part = columns[0][begin:end]
        bad = ~np.isfinite(part)
        kept.update((begin, end - 1))
        if bad.any():
            kept.add(begin + int(np.argmax(bad)))
        if not bad.all():
            kept.add(begin + int(np.nanargmin(np.where(bad, np.nan, part))))
            kept.add(begin + int(np.nanargmax(np.where(bad, np.nan, part))))
    rows = np.fromiter(sorted(kept), np.int64, len(kept))
    return places[rows], [column[rows] for column in columns]


class _Panel:
    """The lines of one panel, of a width in pixels."""

    def __init__(self, canvas: Canvas, panel: Panel, width: float, several: bool) -> None:
        self.canvas, self.panel, self.width = canvas, panel, width
        # Runs by colour, validation dashed; in a single run, train and validation by colour.
        self.styles = [
            (
                HOST_COLOURS[(line.run if several else number) % len(HOST_COLOURS)],
                several and line.validation,
            )
            for number, line in enumerate(panel.lines)
        ]

    def legend(self, left: float, top: float, across: int) -> None:
        """Writes the title, and each line's last value and best one."""
        title = _clipped(ascii_text(self.panel.title), self.width / 8)
        self.canvas.text(left, top, title, size=13, bold=True)
        for number, line in enumerate(self.panel.lines):
            label = " · ".join(ascii_text(part) for part in line.label.split(" · "))
            _, steps, values, _, _ = line.columns
            parts = [f"{label}  {number_text(float(values[-1]))}"]
            if line.best is not None:
                parts.append(f"best {number_text(float(values[line.best]))} at {steps[line.best]}")
            if line.first_nonfinite is not None:
                parts.append(f"not finite from {steps[line.first_nonfinite]}")
            x = left + number % across * (self.width / across)
            y = top + 21 + number // across * _LEGEND_LINE
            colour, dashed = self.styles[number]
            ends = [((x, y + 7), (x + 15, y + 7))]
            self.canvas.lines(ends, colour=colour, width=2.2, dashed=dashed)
            text = _clipped(" · ".join(parts), (self.width / across - 22) / 6.3)
            self.canvas.text(x + 22, y, text, size=11)

    def draw(self, left: float, top: float, scale: str, weight: float, spread: bool) -> None:
        """Draws axes and lines below the legend."""
        gutter = 52
        axes = self.canvas.new_axes((left + gutter, top, self.width - gutter - 4, _PLOT_HEIGHT))
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(FRAME)
        axes.grid(axis="y", color=GRID, linewidth=1 * POINTS)
        axes.set_axisbelow(True)
        axes.set_xlabel("step", fontsize=10.5 * POINTS, color=INK, labelpad=2)
        every = [line.columns for line in self.panel.lines]
        log = scale == "log" and any((part.values > 0).any() for part in every)
        if log:
            axes.set_yscale("log", nonpositive="mask")
        for line, style in zip(self.panel.lines, self.styles, strict=True):
            self._line(axes, line.columns, style, weight, spread, log)
        for line, (colour, _) in zip(self.panel.lines, self.styles, strict=True):
            _marks(axes, line, colour, log)
        if log and all(part.lows is None for part in every):
            shown = np.concatenate([within_reach(part.values, log=True) for part in every])
            kept = np.unique(shown[~np.isnan(shown)])
            # Equal values get room: matplotlib's own falls short for very small ones.
            if kept.size == 1:
                axes.set_autoscaley_on(False)  # else it is computed once before
                axes.set_ylim(kept[0] / 10, kept[0] * 10)
        steps = [part.steps[[0, -1]] for part in every if part.steps.size]
        low, high = min(s[0] for s in steps), max(s[1] for s in steps)
        axes.set_xlim((low - 0.5, high + 0.5) if low == high else (low, high))

    def _line(
        self,
        axes: Any,
        part: Columns,
        style: tuple[str, bool],
        weight: float,
        spread: bool,
        log: bool,
    ) -> None:
        (colour, dashed), buckets = style, round(self.width)
        if spread and part.lows is not None and part.highs is not None:
            band = [within_reach(part.lows, log=log), within_reach(part.highs, log=log)]
            steps, (lows, highs) = thinned(part.steps, band, buckets)
            axes.fill_between(steps, lows, highs, color=colour, alpha=_BAND, linewidth=0)
        raw = within_reach(part.values, log=log)
        steps, (values,) = thinned(part.steps, [raw], buckets)
        shape = {
            "color": colour,
            "linestyle": (0, (4, 2)) if dashed else "solid",
            "solid_joinstyle": "round",
            "marker": "o" if part.steps.size == 1 else None,
        }
        if not weight:
            axes.plot(steps, values, linewidth=1.8 * POINTS, markersize=4, **shape)
            return
        axes.plot(steps, values, linewidth=1 * POINTS, alpha=_FAINT, **shape)
        steps, (values,) = thinned(part.steps, [smoothed(part.steps, raw, weight)], buckets)
        axes.plot(steps, values, linewidth=1.9 * POINTS, **shape)


def _marks(axes: Any, line: Line, colour: str, log: bool) -> None:
    """Marks the best value, and where the values stop being finite."""
    _, steps, values, _, _ = line.columns
    if line.best is not None and not (log and values[line.best] <= 0):
        best = slice(line.best, line.best + 1)
        axes.plot(
            steps[best],
            within_reach(values[best], log=log),
            linestyle="none",
            marker="o",
            markersize=5.5,
            markerfacecolor="white",
            markeredgecolor=colour,
            markeredgewidth=1.3,
            clip_on=False,
            zorder=5,
        )
    if line.first_nonfinite is not None:
        step = steps[line.first_nonfinite]
        axes.axvline(step, color=colour, linewidth=1 * POINTS, linestyle=(0, (3, 3)))


def _clipped(text: str, length: float) -> str:
    """Text of at most so many characters."""
    room = max(8, int(length))
    return text if len(text) <= room else f"{text[: room - 3]}..."
