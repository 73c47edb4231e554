"""The plotted values of many steps, fetched from the devices into a history."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb.training.history import History
from tpunb.training.metrics import mean_of

from ..errors import CellError
from .outputs import OutputRecord
from .step_loop import plotted_slots

__all__ = ["PlottedValues"]

_FLUSH = 0.1
"""Seconds for which single steps' plotted values stay on the devices."""


class PlottedValues:
    """Adds what steps plot to a history, and warns when it stops being finite.

    Args:
        history: Takes the values.
        names: What is plotted.
        reduce: Names to combine over the replicas, by `"mean"` or `"sum"`.
    """

    def __init__(self, history: History, names: Sequence[str], reduce: Mapping[str, str]) -> None:
        self.history = history
        self._names = tuple(names)
        self._reduce = dict(reduce)
        self._pending: list[tuple[int, list[Any]]] = []
        self._flushed = 0.0
        self._warned: set[str] = set()

    def found(self, record: OutputRecord, outputs: Sequence[Any]) -> list[Any]:
        """The plotted values of a single step, where they are.

        Raises:
            CellError: One of them is no number.
        """
        values = [outputs[record.places[slot]] for slot in plotted_slots(record, self._names)]
        for name, value in zip(self._names, values, strict=True):
            shape = getattr(value, "values", (value,))[0].shape
            if shape.rank != 0:
                raise CellError(
                    f"`{name}` cannot be plotted: its shape is {list(shape)}, and a curve has one "
                    "number for each step.",
                    fix=f"Reduce it in the cell: `{name} = tf.reduce_mean({name})`.",
                )
        return values

    def put(self, step: int, values: list[Any]) -> None:
        """Takes a single step's values, which stay where they are for a while."""
        if values:
            self._pending.append((step, values))

    def extend(self, before: int, values: Any) -> None:
        """Takes a loop's values.

        Args:
            before: How many steps there were before the loop.
            values: Shaped `[steps, names, replicas]`.
        """
        self.flush()
        steps = np.arange(before + 1, before + len(values) + 1)
        for number, name in enumerate(self._names):
            self._extend(name, steps, values[:, number, :])

    def flush(self) -> None:
        """Fetches the values of single steps."""
        pending, self._pending = self._pending, []
        for step, values in pending:
            numbers = {n: _numbers(v) for n, v in zip(self._names, values, strict=True)}
            self.history.append(step, numbers)
            for name, value in numbers.items():
                self._warn_of_nan(name, [step], value)
        self._flushed = time.perf_counter()

    def flush_in_time(self) -> None:
        """Fetches them if they have waited for long."""
        if time.perf_counter() - self._flushed > _FLUSH:
            self.flush()

    def _extend(self, name: str, steps: Any, values: Any) -> None:
        """Adds a loop's values of a name, `[steps, replicas]`."""
        self._warn_of_nan(name, steps, values)
        operation = self._reduce.get(name)
        if operation is not None or values.shape[1] == 1:
            combined = values.sum(1) if operation == "sum" else mean_of(values)
            self.history.extend(name, steps, combined)
            return
        self.history.extend(name, steps, mean_of(values), values.min(1), values.max(1))

    def _warn_of_nan(self, name: str, steps: Sequence[int], values: Any) -> None:
        """Warns once, with the step at which a plotted value stopped being finite."""
        if name in self._warned:
            return
        odd = ~np.isfinite(np.asarray(values).reshape(len(steps), -1))
        if not odd.any():
            return
        self._warned.add(name)
        row = int(odd.any(1).argmax())
        found = f"`{name}` is not finite at step {int(steps[row])}{_where(odd[row])}, for the first"
        # The magic stands for the line: a path of ours tells the author of a cell nothing.
        warnings.warn_explicit(f"{found} time", RuntimeWarning, "%%tpu_run", 1)


def _where(odd: npt.NDArray[np.bool_]) -> str:
    """On which replicas, where some differ from others; at most four of them by name."""
    if odd.all():
        return ""
    named = [str(replica) for replica in np.flatnonzero(odd)]
    more = f" and {len(named) - 4} more" if len(named) > 4 else ""
    return f" on replica{'s' if len(named) > 1 else ''} {', '.join(named[:4])}{more}"


def _numbers(value: Any) -> Any:
    """A plotted value as a number, or as one for each replica."""
    parts = getattr(value, "values", None)
    if isinstance(parts, tuple):
        return [float(part) for part in parts]
    return float(value)
