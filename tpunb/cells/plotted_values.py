"""The plotted values of steps, fetched behind the steps."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tpunb.cells.reading.cell_errors import replicas_text
from tpunb.cells.reading.source import LAST
from tpunb.errors import CellError, did_you_mean
from tpunb.training.history import History
from tpunb.training.metrics import mean_of


def plotted_leaf(nests: Mapping[str, Any], name: str, is_number: Callable[[Any], bool]) -> Any:
    """Return a plotted number among the values that a cell leaves behind.

    Args:
        nests: The values by name, or what stands for them.
        name: A name that the cell assigns, or a key of its last line's dict.
        is_number: Whether a value is one number on each replica, or stands for one.
    """
    last = nests.get(LAST)
    plotted = nests.get(name)
    if plotted is None and isinstance(last, Mapping):
        plotted = last.get(name)
    if plotted is None and nests.keys() == {LAST}:
        plotted = last  # the result of a function that returns one number
    if is_number(plotted):
        return plotted
    if plotted is None:
        raise CellError(
            f"`{name}` cannot be plotted: the cell does not assign it in every step.",
            fix=did_you_mean(name, nests, "Name a number that each step assigns."),
        )
    raise CellError(f"`{name}` cannot be plotted: it is not one number.", fix="Plot its parts.")


def refuse_shape(name: str, shape: Sequence[int], mean: str) -> None:
    """Refuse a plotted value that is not one number; `mean` is the function that makes it one."""
    if len(shape):
        raise CellError(
            f"`{name}` cannot be plotted: its shape is {list(shape)}, and a curve has one "
            "number for each step.",
            fix=f"Reduce it in the cell: `{name} = {mean}({name})`.",
        )


_FLUSH = 0.1
"""Seconds for which single steps' plotted values stay on the devices."""


class PlottedValues:
    """The plotted values of steps, added to a history, with a warning of non-finite values.

    Args:
        history: Takes the values.
        names: The plotted names.
        reduce: The names that are combined over the replicas, with `mean` or `sum`.
        numbers: Fetches a value's number on each replica.
    """

    def __init__(
        self,
        history: History,
        names: Sequence[str],
        reduce: Mapping[str, str],
        numbers: Callable[[Any], list[float]],
    ) -> None:
        self.history = history
        self._names = tuple(names)
        self._reduce = dict(reduce)
        self._numbers = numbers
        self._pending: list[tuple[int, Sequence[Any]]] = []
        self._flushed = 0.0
        self._warned: set[str] = set()

    def add(self, step: int, values: Sequence[Any]) -> None:
        """Take a single step's values, which stay on the devices for a while."""
        if values:
            self._pending.append((step, values))

    def extend(self, before: int, values: Any) -> None:
        """Take a loop's values, `[steps, names, replicas]`, after `before` other steps."""
        self.flush()
        values = np.asarray(values, np.float64)  # as precise as the mean of a single step's values
        steps: Any = np.arange(before + 1, before + len(values) + 1)
        for number, name in enumerate(self._names):
            numbers = values[:, number, :]
            self._warn_of_nan(name, steps, numbers)
            operation = self._reduce.get(name)
            if operation is None and numbers.shape[1] > 1:
                self.history.extend(name, steps, mean_of(numbers), numbers.min(1), numbers.max(1))
            else:
                combined = numbers.sum(1) if operation == "sum" else mean_of(numbers)
                self.history.extend(name, steps, combined)

    def flush(self) -> None:
        """Fetch the values of single steps."""
        pending, self._pending = self._pending, []
        for step, values in pending:
            numbers: dict[str, Any] = {}
            for name, value in zip(self._names, values, strict=True):
                parts = self._numbers(value)
                numbers[name] = parts if len(parts) > 1 else parts[0]
            self.history.append(step, numbers)
            for name, value in numbers.items():
                self._warn_of_nan(name, [step], value)
        self._flushed = time.perf_counter()

    def flush_in_time(self) -> None:
        """Fetch the values of single steps if they have waited for long."""
        if time.perf_counter() - self._flushed > _FLUSH:
            self.flush()

    def _warn_of_nan(self, name: str, steps: Sequence[int], values: Any) -> None:
        """Warn once, with the step at which a plotted value stopped being finite."""
        if name in self._warned:
            return
        odd = ~np.isfinite(np.asarray(values).reshape(len(steps), -1))
        if not odd.any():
            return
        self._warned.add(name)
        row = int(odd.any(1).argmax())
        # If only some replicas differ, name at most four of them.
        some = not odd[row].all()
        where = f" on {replicas_text(np.flatnonzero(odd[row]).tolist())}" if some else ""
        message = f"`{name}` is not finite at step {int(steps[row])}{where}, for the first time"
        # Show the magic instead of a file's line: a path in tpunb does not help the cell's author.
        warnings.warn_explicit(message, RuntimeWarning, "%%tpu_run", 1)
