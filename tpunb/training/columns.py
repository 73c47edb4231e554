"""The columns of one metric: steps, values and their spread."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Columns(NamedTuple):
    """Some rows of a metric, copied into arrays.

    Attributes:
        start: The number of the first row, counted from 0.
        steps: The step of each row.
        values: Its value; the mean if a value was logged for each replica.
        lows: The minimum over the replicas, or None if none were logged.
        highs: The maximum over the replicas, or None.
    """

    start: int
    steps: Ints
    values: Floats
    lows: Floats | None
    highs: Floats | None

    def to_dict(self) -> dict[str, list[int] | list[float]]:
        """The columns as lists: `steps` and `values`, `min` and `max` if they were logged."""
        columns = {"steps": self.steps.tolist(), "values": self.values.tolist()}
        if self.lows is not None and self.highs is not None:
            columns |= {"min": self.lows.tolist(), "max": self.highs.tolist()}
        return columns


class Series:
    """The columns of one metric, which grow in amortised constant time."""

    __slots__ = ("highs", "last", "lows", "steps", "values")

    def __init__(self) -> None:
        self.steps, self.values = array("q"), array("d")
        self.lows: array[float] | None = None
        self.highs: array[float] | None = None
        self.last: int | None = None

    def put(self, step: int, value: float, low: float, high: float) -> None:
        """Appends a row, or replaces the one of the same step."""
        if step == self.last:
            self.values[-1] = value
            if self.lows is not None and self.highs is not None:
                self.lows[-1], self.highs[-1] = low, high
            return
        if self.lows is not None and self.highs is not None:
            self.lows.append(low)
            self.highs.append(high)
        self.values.append(value)
        self.steps.append(step)
        self.last = step

    def extend(self, steps: Ints, values: Floats, lows: Any = None, highs: Any = None) -> None:
        """Appends rows."""
        if lows is not None:
            self.spread()
        if self.lows is not None and self.highs is not None:
            self.lows.frombytes((values if lows is None else lows).tobytes())
            self.highs.frombytes((values if highs is None else highs).tobytes())
        self.values.frombytes(values.tobytes())
        self.steps.frombytes(steps.tobytes())
        self.last = int(steps[-1])

    def spread(self) -> None:
        """Starts to keep the spread; so far there was none."""
        if self.lows is None:
            self.highs = self.values[:]
            self.lows = self.values[:]

    def read(self, start: int) -> Columns:
        """A copy of the rows from `start` on, while another thread may append."""
        # Steps are appended last: a row with a step is complete. Slices are copies:
        # an array with a view on it could not grow.
        stop = len(self.steps)
        lows, highs = self.lows, self.highs
        return Columns(
            start,
            np.frombuffer(self.steps[start:stop], np.int64),
            np.frombuffer(self.values[start:stop], np.float64),
            None if lows is None else np.frombuffer(lows[start:stop], np.float64),
            None if lows is None or highs is None else np.frombuffer(highs[start:stop], np.float64),
        )
