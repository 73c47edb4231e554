"""The measurements of a training run, step by step, as an object and as a table."""

from __future__ import annotations

import csv
import importlib
import io
import itertools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tpunb._util.atomic_files import write_file
from tpunb._util.plain_text import plain
from tpunb._util.units import counted, grouped
from tpunb.errors import HistoryError
from tpunb.training.curves_figure import Panel, curves_figure, line_of
from tpunb.training.metrics import (
    MAX_PANELS,
    Columns,
    Floats,
    Ints,
    Series,
    best_row,
    checked,
    goal_of,
    panels_of,
    summary,
    whole,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NAMED = 20


class History:
    """The metrics of a training run by step.

    One thread may append while others read. Appending takes about a microsecond,
    so it can be done at each step of a training loop.

        history = History("run 1", total_steps=1000)
        history.append(1, loss=0.7, accuracy=0.5)
        history.append(1, {"val_loss": 0.8})
        history.finish()

    Args:
        name: The run's name in comparisons.
        total_steps: The expected number of steps, if known.

    Attributes:
        name: The run's name.
        total_steps: The expected number of steps; None if unknown.
        notes: Sentences that a reader of the curves must know, by kind.
        version: A number that grows with every change.
    """

    def __init__(self, name: str = "", total_steps: int | None = None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a run is a string, not {type(name).__name__}")
        self.name = name
        self.total_steps = None if total_steps is None else whole(total_steps, "total_steps")
        self.notes: dict[str, str] = {}
        self.version = 0
        self._series: dict[str, Series] = {}
        self._ended = ""
        self._callbacks: list[Callable[[], None]] = []

    def append(self, step: int, metrics: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Record the measurements of a step.

        Metrics may start late and have different steps. A second value for a
        metric's last step replaces the first.

        Args:
            step: The number of the step. It never decreases within a metric.
            metrics: Values by name. A value is a number, an array or tensor of one
                number, or one number per replica: a sequence, or a distributed
                value. The history keeps the mean, the minimum and the maximum of several numbers.
                NaN and infinity are valid values.
            more: More values, as keyword arguments.

        Raises:
            TypeError: If a name is not a string, or a value or the step is not a number.
            ValueError: If the step decreases, or a value has more axes than the replicas'.
        """
        if type(step) is not int:
            step = whole(step, "the step")
        if metrics is not None:
            more = {**checked(metrics), **more}
        series_of = self._series
        for name, value in more.items():
            series = series_of.get(name)
            if series is None:
                series = Series()
            elif series.last is not None and step <= series.last:
                if step < series.last:
                    raise HistoryError(
                        f"The steps of {name!r} must not decrease, but step {step} comes after "
                        f"{series.last}.",
                        fix="Use a separate History for each run.",
                    )
                self._put(series, step, name, value)
                continue
            if type(value) is float and series.lows is None:
                series.values.append(value)
                series.steps.append(step)
                series.last = step
            else:
                self._put(series, step, name, value)
            if series.last == step:
                series_of[name] = series
        self._changed()

    def extend(
        self,
        name: str,
        steps: npt.ArrayLike,
        values: npt.ArrayLike,
        lows: npt.ArrayLike | None = None,
        highs: npt.ArrayLike | None = None,
    ) -> None:
        """Add many values of one metric at once.

        Args:
            name: The metric.
            steps: The step of each value. They increase, and come after the existing steps.
            values: The values, or the means if each replica was measured.
            lows: The minimum over the replicas, in that case.
            highs: The maximum over the replicas, in that case.

        Raises:
            TypeError: If the name is not a string.
            ValueError: If the steps do not increase, or the columns differ in length.
        """
        checked({name: values})
        rows = np.asarray(steps, np.int64)
        columns = [
            np.asarray(column, np.float64) for column in (values, lows, highs) if column is not None
        ]
        if any(column.shape != rows.shape for column in columns) or rows.ndim != 1:
            raise ValueError(f"the columns of {name!r} differ in length")
        series = self._series.get(name) or Series()
        before = np.concatenate([[] if series.last is None else [series.last], rows])
        if not (np.diff(before) > 0).all():
            raise ValueError(f"the steps of {name!r} do not increase")
        if rows.size:
            series.extend(rows, *columns)
            self._series[name] = series
        self._changed()

    def _changed(self) -> None:
        self._ended = ""
        self._notify()

    def _notify(self) -> None:
        self.version += 1
        while self._callbacks:
            self._callbacks.pop()()

    def _put(self, series: Series, step: int, name: str, value: Any) -> None:
        """Add a value of any kind."""
        if isinstance(value, (float, int, np.floating, np.integer)):
            mean = low = high = float(value)
        else:
            mean, low, high, spread = summary(name, value)
            if spread:
                series.spread()
        series.put(step, mean, low, high)

    def finish(self, *, stopped: bool = False) -> None:
        """Mark the run as finished. Appending resumes it.

        Args:
            stopped: Whether the run ended early.
        """
        self._ended = "stopped" if stopped else "finished"
        self._notify()

    @property
    def finished(self) -> bool:
        """True if the run is over."""
        return bool(self._ended)

    @property
    def state(self) -> str:
        """`waiting`, `running`, `finished` or `stopped`."""
        return self._ended or ("running" if self._series else "waiting")

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics, in the order of their first values."""
        return list(self._series)

    @property
    def last(self) -> dict[str, float]:
        """The last value of each metric."""
        return {name: series.values[-1] for name, series in list(self._series.items())}

    @property
    def first_step(self) -> int | None:
        """The smallest step of any metric, or None before the first value."""
        return min((series.steps[0] for series in list(self._series.values())), default=None)

    @property
    def last_step(self) -> int | None:
        """The greatest step of any metric, or None before the first value."""
        steps = [series.last for series in list(self._series.values())]
        return max((step for step in steps if step is not None), default=None)

    def __len__(self) -> int:
        """Return the number of values of the longest metric."""
        return max((len(series.steps) for series in list(self._series.values())), default=0)

    def __bool__(self) -> bool:
        """Return True, even for a history without values."""
        return True

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        return f"History({name}{self.state}: {plain(self._named()) or 'no metrics yet'})"

    def _named(self) -> str:
        """Return the metrics' names on one line of readable length."""
        metrics = self.metrics
        shown = metrics[:_MOST_NAMED]
        more = [f"… {counted(len(metrics), 'metric')} in all"] if len(metrics) > len(shown) else []
        return ", ".join([*shown, *more])

    def columns(self, name: str, start: int = 0) -> Columns:
        """Return a copy of a metric's columns, starting at a row.

        Raises:
            KeyError: If the metric does not exist.
        """
        if name not in self._series:
            raise KeyError(f"no metric {name!r}; the metrics are: {self._named() or 'none'}")
        return self._series[name].read(start)

    def rows(self, name: str) -> int:
        """Return the number of values of a metric."""
        return len(self._series[name].steps)

    def steps(self, name: str) -> Ints:
        """Return the steps at which a metric has values."""
        return self.columns(name).steps

    def values(self, name: str) -> Floats:
        """Return a metric's values, or their means if each replica logged a value."""
        return self.columns(name).values

    def best(self, name: str, mode: str = "auto") -> tuple[int, float]:
        """Return the step and the best value of a metric. The first of equal values wins.

        Args:
            name: The metric.
            mode: `min`, `max`, or `auto` to decide by the metric's name: the minimum of a loss
                or an error, the maximum of an accuracy or a score.

        Raises:
            KeyError: If the metric does not exist.
            ValueError: If the name does not imply the mode, or no value is finite.
        """
        goal = goal_of(name) if mode == "auto" else mode
        if goal not in ("min", "max"):
            raise HistoryError(
                f"The name {name!r} does not say whether its least or its greatest value is best.",
                fix=f"Pass the mode: best({name!r}, mode='min') or mode='max'.",
            )
        steps, values = self.columns(name)[1:3]
        row = best_row(values, goal)
        if row is None:
            raise HistoryError(f"{name!r} has no finite value yet.")
        return int(steps[row]), float(values[row])

    def first_nonfinite(self, name: str) -> int | None:
        """Return the first step at which a metric was NaN or infinite, or None."""
        steps, values = self.columns(name)[1:3]
        rows = np.flatnonzero(~np.isfinite(values))
        return int(steps[rows[0]]) if rows.size else None

    def as_dict(self) -> dict[str, Any]:
        """Return the whole history as Python lists and numbers."""
        return {
            "name": self.name,
            "total_steps": self.total_steps,
            "state": self.state,
            "metrics": {name: part.to_dict() for name, part in self._columns().items()},
        }

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each step and a column for each metric.

        Minima and maxima over replicas are in the columns `NAME min` and `NAME max`.

        Raises:
            ImportError: If pandas is not installed.
        """
        try:
            pd = importlib.import_module("pandas")
        except ImportError as error:
            raise ImportError(
                "to_pandas() needs pandas: pip install pandas. as_dict() and to_csv() do not."
            ) from error
        steps, filled = self._table()
        table = {}
        for name, (rows, values) in filled.items():
            table[name] = np.full(len(steps), np.nan)
            table[name][rows] = values
        return pd.DataFrame(table, index=pd.Index(steps, name="step"))

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """Return or write a table with a row for each step and a column for each metric.

        A step without a value has an empty cell; a step whose value is NaN has `nan`.

        Args:
            path: The file to write. If writing fails, an existing file does not change.

        Returns:
            The table as text if no path is given.

        Raises:
            OSError: The file cannot be written.
        """
        steps, filled = self._table()
        columns = []
        for rows, values in filled.values():
            cells = [""] * len(steps)
            for row, value in zip(rows.tolist(), values.tolist(), strict=True):
                cells[row] = repr(value)
            columns.append(cells)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["step", *filled])
        writer.writerows(zip(steps.tolist(), *columns, strict=True))
        if path is None:
            return text.getvalue()
        write_file(path, text.getvalue())
        return None

    def _table(self) -> tuple[Ints, dict[str, tuple[npt.NDArray[np.intp], Floats]]]:
        """Return all steps in order, and each column's rows and values."""
        metrics = self._columns()
        empty = np.empty(0, np.int64)
        steps = np.unique(np.concatenate([empty, *(part.steps for part in metrics.values())]))
        filled = {}
        for name, part in metrics.items():
            rows = np.searchsorted(steps, part.steps)
            for suffix, column in (("", part.values), (" min", part.lows), (" max", part.highs)):
                if column is not None:
                    filled[name + suffix] = (rows, column)
        return steps, filled

    def plot(self) -> Figure:
        """Return a `matplotlib.figure.Figure` in matplotlib's current style.

        Pyplot does not manage the figure and does not show it: display it, change it or save it.
        """
        metrics = self._columns()
        every = panels_of(metrics)
        panels = [
            Panel(
                title,
                tuple(
                    line_of(
                        line.metric,
                        metrics[line.metric],
                        label=line.role,
                        validation=line.validation,
                    )
                    for line in lines
                ),
            )
            for title, lines in itertools.islice(every.items(), MAX_PANELS)
        ]
        left_out = len(panels) < len(every)
        heading = f"{len(panels)} of {grouped(len(every))} metrics" if left_out else ""
        return curves_figure(panels, heading)

    def _columns(self) -> dict[str, Columns]:
        return {name: self.columns(name) for name in self.metrics}

    def when_changed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, at the next value or at the end, on the thread that changes it."""
        if callback not in self._callbacks:
            self._callbacks.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Remove a callback."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)


_latest: History | None = None


def remember_history(history: History) -> None:
    """Remember a history as the last run's."""
    global _latest
    _latest = history


def latest_history() -> History | None:
    """Return the history of the last run, or None before the first run."""
    return _latest
