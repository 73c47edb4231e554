"""Training histories as panels of lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tpunb._util.units import counted, grouped
from tpunb.training.curves_figure import Line, Panel, line_of
from tpunb.training.history import History
from tpunb.training.metrics import MAX_PANELS, panel_of, panels_of

MAX_LINES = 48
"""The largest number of lines in all panels together, unless a single panel has more."""

MAX_RUNS = 12
"""The largest number of runs that are compared."""


@dataclass(frozen=True, slots=True)
class Run:
    """One training run.

    Attributes:
        name: The run's name; empty if it is the only run.
        state: `waiting`, `running`, `finished` or `stopped`.
        num_steps: The number of steps, whether they count from 0 or from 1.
        total_steps: The expected number of steps; None if unknown.
    """

    name: str
    state: str
    num_steps: int
    total_steps: int | None = None


@dataclass(frozen=True, slots=True)
class HistoryDescription:
    """Training curves of one or several runs.

    Attributes:
        runs: The displayed runs.
        panels: The displayed panels, in the order in which their metrics came.
        num_runs: The number of all runs.
        num_panels: The number of panels if all metrics were shown.
        notes: Sentences that a reader of the curves should know.
    """

    runs: tuple[Run, ...]
    panels: tuple[Panel, ...]
    num_runs: int
    num_panels: int
    notes: tuple[str, ...] = ()

    @property
    def num_steps(self) -> int:
        """The number of steps of the longest run."""
        return max((run.num_steps for run in self.runs), default=0)

    @property
    def omissions(self) -> list[str]:
        """Phrases for the parts that are left out."""
        runs, panels = len(self.runs), len(self.panels)
        return omission_phrases((runs, self.num_runs), (panels, self.num_panels))

    @property
    def steps_text(self) -> str:
        """The number of steps as text; for a run that is not over, also the expected number."""
        if len(self.runs) == 1:
            (run,) = self.runs
            if run.state == "running" and (run.total_steps or 0) > run.num_steps:
                return f"{grouped(run.num_steps)} of {counted(run.total_steps or 0, 'step')}"
        return counted(self.num_steps, "step")


def describe_history(
    history: History | Sequence[History],
    metrics: Iterable[str] | None = None,
    names: Sequence[str] | None = None,
) -> HistoryDescription:
    """Describe the present content of one or several histories.

    Args:
        history: A history, or several to compare.
        metrics: Names of metrics, or of panels, to keep; None for all.
        names: A name for each history; None for its own name.

    Returns:
        The description. Values that are appended later do not change it.
    """
    every = list(history) if isinstance(history, Sequence) else [history]
    histories = every[:MAX_RUNS]
    run_titles = run_names(histories, names)
    wanted = None if metrics is None else frozenset(metrics)
    chosen, num_panels = chosen_lines(histories, wanted, run_titles)
    panels: dict[str, list[Line]] = {}
    for run, metric, title, label, validation in chosen:
        part = histories[run].columns(metric)
        for column in part[1:]:
            if column is not None:
                column.setflags(write=False)
        line = line_of(metric, part, label=label, validation=validation, run=run)
        panels.setdefault(title, []).append(line)
    runs = []
    for name, each in zip(run_titles, histories, strict=True):
        first, last = each.first_step, each.last_step
        steps = 0 if last is None else last + (first == 0)
        runs.append(Run(name, each.state, steps, each.total_steps))
    return HistoryDescription(
        tuple(runs),
        tuple(Panel(title, tuple(lines)) for title, lines in panels.items()),
        len(every),
        num_panels,
        notes_of(every),
    )


def notes_of(histories: Sequence[History]) -> tuple[str, ...]:
    """Return the notes of several histories, without repetitions."""
    return tuple(dict.fromkeys(note for each in histories for note in list(each.notes.values())))


class ChosenLine(NamedTuple):
    """A metric of a run that is shown.

    Attributes:
        run: The number of the run.
        metric: The metric's full name.
        panel: The title of its panel.
        label: Its name in the panel's legend.
        validation: Whether it is a validation metric.
    """

    run: int
    metric: str
    panel: str
    label: str
    validation: bool


def chosen_lines(
    histories: Sequence[History], metrics: frozenset[str] | None, names: Sequence[str]
) -> tuple[list[ChosenLine], int]:
    """Choose the lines to show: the first panels.

    Args:
        histories: The histories, at most `MAX_RUNS`.
        metrics: Names of metrics, or of panels, to keep; None for all.
        names: The names of the runs.

    Returns:
        The lines, panel by panel and run by run, and the number of panels that there would be
        without a limit.
    """
    panels: dict[str, list[tuple[int, str]]] = {}
    for run, history in enumerate(histories):
        for metric in history.metrics:
            if is_shown(metric, metrics):
                panels.setdefault(panel_of(metric)[0], []).append((run, metric))
    chosen: list[ChosenLine] = []
    for title, series in list(panels.items())[:MAX_PANELS]:
        if chosen and len(chosen) + len(series) > MAX_LINES:
            break
        (lines,) = panels_of(metric for _, metric in series).values()
        of_metric = {line.metric: line for line in lines}
        for run, metric in series:
            _, role, validation = of_metric[metric]
            label = role
            if len(histories) > 1:
                label = names[run] if role == title else f"{names[run]} · {role}"
            chosen.append(ChosenLine(run, metric, title, label, validation))
    return chosen, len(panels)


def run_names(histories: Sequence[History], given: Sequence[str] | None = None) -> list[str]:
    """Return a distinct name for each history.

    Args:
        histories: The histories.
        given: A name for each history, and perhaps for further ones; None for its own name.
    """
    wanted = [history.name for history in histories] if given is None else [*given]
    if len(histories) == 1:
        return wanted[:1]
    names: list[str] = []
    for number, own in enumerate(wanted[: len(histories)], start=1):
        name = title = own or f"run {number}"
        copies = 1
        while name in names:
            copies += 1
            name = f"{title} ({copies})"
        names.append(name)
    return names


def omission_phrases(runs: tuple[int, int], panels: tuple[int, int]) -> list[str]:
    """Return phrases for omitted parts, such as `"12 of 10,000 metrics"`; empty without any.

    Args:
        runs: The number of runs that are shown, and of all runs.
        panels: The same of panels.
    """
    pairs = ((*runs, "runs"), (*panels, "metrics"))
    return [f"{shown} of {grouped(every)} {noun}" for shown, every, noun in pairs if shown < every]


def is_shown(metric: str, names: frozenset[str] | None) -> bool:
    """Return whether a metric is shown, because the metric or its panel is named."""
    return names is None or metric in names or panel_of(metric)[0] in names
