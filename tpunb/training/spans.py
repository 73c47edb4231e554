"""Sets of times: which moments something was going on in, however often it overlaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Spans"]

Ticks: TypeAlias = npt.NDArray[np.int64]


class Spans:
    """The union of intervals of time, in whole ticks of any unit.

    Args:
        intervals: Starts and ends, in any order; they may overlap.
    """

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        pairs = np.array(sorted(intervals), np.int64).reshape(-1, 2)
        # An interval begins a span of its own where none before it reaches.
        reached = np.maximum.accumulate(pairs[:, 1])
        first = np.append(True, pairs[1:, 0] > reached[:-1])[: len(pairs)]
        self.starts: Ticks = pairs[first, 0]
        self.ends: Ticks = reached[np.append(first[1:], True)[: len(pairs)]]
        self._before: Ticks = np.append(0, np.cumsum(self.ends - self.starts))

    def __or__(self, other: Spans) -> Spans:
        return Spans([*self, *other])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.starts.tolist(), self.ends.tolist(), strict=True))

    def within(self, start: int, end: int) -> int:
        """How many ticks from a start to an end are in the set."""
        return self._until(end) - self._until(start)

    def _until(self, tick: int) -> int:
        """How many ticks before a tick are in the set."""
        place = int(np.searchsorted(self.starts, tick))
        if not place:
            return 0
        beyond = max(0, int(self.ends[place - 1]) - tick)
        return int(self._before[place]) - beyond
