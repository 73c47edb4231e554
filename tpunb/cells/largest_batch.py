"""The largest batch of which a program fits, in few compilations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

__all__ = ["search"]

_MOST_TRIES = 12
_FINE = 32
"""The answer is exact to this part of itself: 1/32."""

_LARGEST = 2**24


def search(peak_of: Callable[[int], int | None], first: int, available: int) -> int:
    """Finds the largest size that fits, by trying some.

    Memory grows about linearly with a batch: what two sizes take says where to look next.

    Args:
        peak_of: Bytes that a size takes; None where it does not fit and it is not known
            what it would take.
        first: The size to begin with.
        available: Bytes that there are.

    Returns:
        The size, to a thirty-second of itself; 0 where nothing fits.
    """
    low, high = 0, _LARGEST
    peaks: dict[int, int] = {}
    size = first
    for _ in range(_MOST_TRIES):
        peak = peak_of(size)
        if peak is not None:
            peaks[size] = peak
        if peak is not None and peak <= available:
            low = size
        else:
            high = size
        if high - low <= max(1, low // _FINE):
            break
        size = _next(low, high, _guessed(peaks, available))
    return low


def _next(low: int, high: int, guess: int | None) -> int:
    """What to try next between what fits and what does not."""
    step = max(1, low // _FINE)
    if guess is None:
        guess = (low + high) // 2 if high < _LARGEST else 2 * low
    if guess <= low:  # what fits may be the answer: show that more does not
        return low + step
    return min(guess, max(low + 1, high - step))


def _guessed(peaks: Mapping[int, int], available: int) -> int | None:
    """Where the line through the two largest sizes reaches what there is."""
    if not peaks:
        return None
    *rest, large = sorted(peaks)
    small = rest[-1] if rest else 0
    slope = (peaks[large] - peaks.get(small, 0)) / (large - small)
    return large + int((available - peaks[large]) // slope) if slope > 0 else None
