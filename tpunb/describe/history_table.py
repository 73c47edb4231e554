"""A training history as one table: a row for each step."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tpunb.histories import History

__all__ = ["history_csv", "history_table", "write_whole"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def history_table(history: History) -> tuple[Ints, dict[str, Floats]]:
    """All steps in order, and each column at these steps, NaN where it has no value.

    Spreads over replicas are columns `NAME min` and `NAME max`.
    """
    steps, filled = _filled(history)
    table = {}
    for name, (rows, values) in filled.items():
        table[name] = np.full(len(steps), np.nan)
        table[name][rows] = values
    return steps, table


def history_csv(history: History) -> str:
    """The table as CSV.

    A step without a value is an empty cell, and one whose value is NaN says so.
    """
    steps, filled = _filled(history)
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


def _filled(history: History) -> tuple[Ints, dict[str, tuple[npt.NDArray[np.intp], Floats]]]:
    """All steps in order, and each column's rows and values."""
    parts = {name: history.columns(name) for name in history.metrics}
    empty = np.empty(0, np.int64)
    steps = np.unique(np.concatenate([empty, *(part.steps for part in parts.values())]))
    filled = {}
    for name, part in parts.items():
        rows = np.searchsorted(steps, part.steps)
        for suffix, column in (("", part.values), (" min", part.lows), (" max", part.highs)):
            if column is not None:
                filled[name + suffix] = (rows, column)
    return steps, filled


def write_whole(path: Path, text: str) -> None:
    """Writes a file beside its place and moves it there."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """What the process's new files may not be."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
