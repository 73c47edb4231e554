"""A training history as one table: a row for each step."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tpunb.training.columns import Columns, Floats, Ints


def history_table(metrics: Mapping[str, Columns]) -> tuple[Ints, dict[str, Floats]]:
    """All steps in order, and each column at these steps, NaN where it has no value.

    Spreads over replicas are columns `NAME min` and `NAME max`.
    """
    steps, filled = _filled(metrics)
    table = {}
    for name, (rows, values) in filled.items():
        table[name] = np.full(len(steps), np.nan)
        table[name][rows] = values
    return steps, table


def history_csv(metrics: Mapping[str, Columns]) -> str:
    """The table as CSV.

    A step without a value is an empty cell, one whose value is NaN has `nan`.
    """
    steps, filled = _filled(metrics)
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
    return text.getvalue()


def _filled(
    metrics: Mapping[str, Columns],
) -> tuple[Ints, dict[str, tuple[npt.NDArray[np.intp], Floats]]]:
    """All steps in order, and each column's rows and values."""
    empty = np.empty(0, np.int64)
    steps = np.unique(np.concatenate([empty, *(part.steps for part in metrics.values())]))
    filled = {}
    for name, part in metrics.items():
        rows = np.searchsorted(steps, part.steps)
        for suffix, column in (("", part.values), (" min", part.lows), (" max", part.highs)):
            if column is not None:
                filled[name + suffix] = (rows, column)
    return steps, filled
