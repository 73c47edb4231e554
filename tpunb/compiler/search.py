"""The largest batch of which a program fits, in few compilations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

__all__ = ["FINE", "Tried", "search"]

FINE = 32
"""Batches are told apart to this part of themselves: 1/32."""

_MOST_TRIES = 12
_LARGEST = 2**24
_FARTHEST = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """What became of a size.

    Attributes:
        fits: Whether it fits.
        peak: Bytes that it takes; None where that is not known.
    """

    fits: bool
    peak: int | None


def search(
    attempt: Callable[[int], Tried], first: int, available: int, *, step: int = 1, fine: int = 0
) -> int:
    """Finds the largest size that fits, by trying some.

    Memory grows about linearly with a batch: what two sizes take says where to look next.

    Args:
        attempt: Tries a size.
        first: The size to begin with.
        available: Bytes that there are.
        step: Sizes are multiples of it.
        fine: Where it is given, the answer is exact to this part of itself only.

    Returns:
        The size, exact to a step or to its part; 0 where nothing fits.
    """
    low, high = 0, _LARGEST
    peaks: dict[int, int] = {}
    size = max(first // step, 1) * step
    for _ in range(_MOST_TRIES):
        found = attempt(size)
        if found.peak is not None:
            peaks[size] = found.peak
        low, high = (size, high) if found.fits else (low, size)
        unit = max(low // fine // step, 1) * step if fine else step
        if high - low <= unit:
            break
        guess = _guessed(peaks, available) or _middle(low, high)
        size = _between(low, high, guess // step * step, unit)
    return low


def _between(low: int, high: int, guess: int, unit: int) -> int:
    """What to try next between what fits and what does not."""
    if guess <= low:  # what fits may be the answer: show that more does not
        return low + unit
    farthest = high - unit if high < _LARGEST else _FARTHEST * low
    return max(min(guess, farthest), low + unit)


def _middle(low: int, high: int) -> int:
    return (low + high) // 2 if high < _LARGEST else 2 * low


def _guessed(peaks: Mapping[int, int], available: int) -> int:
    """Where the line through the two sizes nearest to it reaches what there is; or 0.

    Of a single size, the line from nothing.
    """
    near = sorted(peaks, key=lambda size: abs(peaks[size] - available))[:2]
    if not near:
        return 0
    small, large = (0, *near) if len(near) == 1 else sorted(near)
    slope = (peaks[large] - peaks.get(small, 0)) / (large - small)
    return large + int((available - peaks[large]) // slope) if slope > 0 else 0
