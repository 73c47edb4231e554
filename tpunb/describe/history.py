"""What training histories look like: panels of lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tpunb.describe.metrics import goal_of, panel_of

if TYPE_CHECKING:
    from tpunb.histories import History

__all__ = [
    "HistoryDescription",
    "Line",
    "Panel",
    "Run",
    "describe_history",
    "is_wanted",
    "run_names",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Run:
    """One training run.

    Attributes:
        name: Its name; empty for the only one.
        state: `waiting`, `running`, `finished` or `stopped`.
        num_steps: How many steps were made, whether they count from 0 or from 1.
        total_steps: How many there will be; None where unknown.
    """

    name: str
    state: str
    num_steps: int
    total_steps: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One metric of one run, as arrays that cannot be written.

    Attributes:
        run: The number of the run.
        metric: The metric's full name.
        label: What tells it apart from the panel's other lines.
        validation: Whether it is a validation's.
        goal: `min` or `max` where the name tells which value is best, else empty.
        steps: The step of each value, which never falls.
        values: The values; means where replicas were logged one by one.
        lows: The least of the replicas, or None.
        highs: The greatest of the replicas, or None.
        best: The row of the best value, or None.
        first_nonfinite: The first row that is NaN or infinite, or None.
    """

    run: int
    metric: str
    label: str
    validation: bool
    goal: str
    steps: Ints
    values: Floats
    lows: Floats | None
    highs: Floats | None
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
class HistoryDescription:
    """Training curves of one or several runs.

    Attributes:
        runs: The runs.
        panels: The panels, in the order in which their metrics came.
    """

    runs: tuple[Run, ...]
    panels: tuple[Panel, ...]

    @property
    def num_steps(self) -> int:
        """The steps of the longest run."""
        return max((run.num_steps for run in self.runs), default=0)


def describe_history(
    history: History | Sequence[History], metrics: Iterable[str] | None = None
) -> HistoryDescription:
    """Describes what one or several histories hold now.

    Args:
        history: A history, or several to compare.
        metrics: Names of metrics, or of panels, to keep; None for all.

    Returns:
        The description; what is appended later does not change it.
    """
    histories = list(history) if isinstance(history, Sequence) else [history]
    names = run_names(histories)
    kept = None if metrics is None else frozenset(metrics)
    shown = [[name for name in each.metrics if is_wanted(name, kept)] for each in histories]
    shared = {panel_of(name)[0] for each in shown for name in each if panel_of(name)[1]}
    panels: dict[str, list[Line]] = {}
    for number, (each, metrics_of_it) in enumerate(zip(histories, shown, strict=True)):
        for metric in metrics_of_it:
            title, validation = panel_of(metric)
            role = ("validation" if validation else "train") if title in shared else metric
            label = f"{names[number]} · {role}" if len(histories) > 1 else role
            panels.setdefault(title, []).append(_line(number, each, metric, label))
    return HistoryDescription(
        tuple(_run(each, name) for each, name in zip(histories, names, strict=True)),
        tuple(Panel(title, tuple(lines)) for title, lines in panels.items()),
    )


def run_names(histories: Sequence[History]) -> list[str]:
    """A name for each history by which it can be told from the others."""
    if len(histories) == 1:
        return [histories[0].name]
    names: list[str] = []
    for number, history in enumerate(histories, start=1):
        name = wanted = history.name or f"run {number}"
        copies = 1
        while name in names:
            copies += 1
            name = f"{wanted} ({copies})"
        names.append(name)
    return names


def is_wanted(metric: str, kept: frozenset[str] | None) -> bool:
    """Whether a metric is to be shown: it or its panel is named."""
    return kept is None or metric in kept or panel_of(metric)[0] in kept


def _run(history: History, name: str) -> Run:
    firsts = [history.columns(metric).steps[:1] for metric in history.metrics]
    first = min((int(steps[0]) for steps in firsts if steps.size), default=1)
    last = history.last_step
    counted = 0 if last is None else last + (first == 0)
    return Run(name, history.state, counted, history.total_steps)


def _line(number: int, history: History, metric: str, label: str) -> Line:
    part = history.columns(metric)
    goal = goal_of(metric)
    finite = np.isfinite(part.values)
    for column in part[1:]:
        if column is not None:
            column.setflags(write=False)
    return Line(
        run=number,
        metric=metric,
        label=label,
        validation=panel_of(metric)[1],
        goal=goal,
        steps=part.steps,
        values=part.values,
        lows=part.lows,
        highs=part.highs,
        best=_best(part.values, finite, goal),
        first_nonfinite=None if finite.all() else int(np.argmin(finite)),
    )


def _best(values: Floats, finite: npt.NDArray[np.bool_], goal: str) -> int | None:
    kept = np.flatnonzero(finite)
    if not goal or not kept.size:
        return None
    pick = np.argmin if goal == "min" else np.argmax
    return int(kept[pick(values[kept])])
