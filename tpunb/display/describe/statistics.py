"""Statistics, a checksum and samples of large arrays, in one pass over memory.

Arrays are processed piece by piece, while a piece is in the processor's cache. Memory is read once,
and only a few temporary pieces are allocated. NumPy lets other threads run meanwhile.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

PIECE = 2**18
"""The number of a piece's elements, 1 MiB of float32; with smaller pieces threads wait."""

Array = npt.NDArray[Any]

_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Numbers about the elements of one value.

    Attributes:
        minimum: The minimum of the finite elements; `None` without any.
        mean: The mean of the finite elements; `None` without any.
        maximum: The maximum of the finite elements; `None` without any.
        nans: The number of elements that are not a number.
        infs: The number of infinite elements.
        deviation: The standard deviation of the finite elements, over all of them;
            `None` without any, or if their squares are more than a float holds.
    """

    minimum: float | int | None
    mean: float | None
    maximum: float | int | None
    nans: int = 0
    infs: int = 0
    deviation: float | None = None


@dataclass
class Tally:
    """Accumulated statistics of pieces.

    Attributes:
        minimum: The minimum of the finite elements so far.
        maximum: The maximum of the finite elements so far.
        nans: The number of elements that were not a number.
        infs: The number of infinite elements.
        finite: The number of finite elements.
        means: For each piece, the mean of its finite elements and their number.
        squares: For each piece, the sum of the squared distances from its mean.
    """

    minimum: float | int | None = None
    maximum: float | int | None = None
    nans: int = 0
    infs: int = 0
    finite: int = 0
    means: list[tuple[float | int, int]] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)

    def add(self, piece: Array) -> None:
        """Count a flat piece with a dtype of NumPy's own."""
        if piece.size == 0:
            return
        if piece.dtype.kind != "f":
            self._take(int(piece.min()), int(piece.max()), _total(piece) / piece.size, piece)
            return
        low, high, total = float(piece.min()), float(piece.max()), _total(piece)
        # NaN is contagious, and so is Inf: if the total, low and high are finite, all elements are.
        if math.isfinite(total + low + high):
            self._take(low, high, total / piece.size, piece)
        else:
            self.add_floats(piece)

    def add_floats(self, piece: Array) -> None:
        """Count a piece of floats of any dtype in float64; slower than `add`."""
        nans = int(np.isnan(piece).sum())
        finite = piece[np.isfinite(piece)].astype(np.float64, copy=False)
        self.nans += nans
        self.infs += piece.size - nans - finite.size
        if finite.size:
            # Dividing first keeps the mean of very large numbers finite.
            low, high = float(finite.min()), float(finite.max())
            with np.errstate(over="ignore"):
                mean = float(np.sum(finite / finite.size))
            self._take(low, high, min(max(mean, low), high), finite)

    def _take(self, low: float | int, high: float | int, mean: float, piece: Array) -> None:
        self.minimum = low if self.minimum is None else min(self.minimum, low)
        self.maximum = high if self.maximum is None else max(self.maximum, high)
        self.finite += piece.size
        self.means.append((mean, piece.size))
        kind, width = piece.dtype.kind, piece.dtype.itemsize
        wide = np.float64 if width == 8 or (kind in "iu" and width == 4) else np.float32
        with np.errstate(over="ignore", invalid="ignore"):
            distances = np.subtract(piece, mean, dtype=wide)
            self.squares.append(float(np.dot(distances, distances)))

    @property
    def statistics(self) -> Statistics:
        """The statistics of all pieces so far."""
        mean = None
        if self.finite:
            mean = float(math.fsum(mean * (count / self.finite) for mean, count in self.means))
        spread = combined_deviation(self.means, self.squares)
        return Statistics(self.minimum, mean, self.maximum, self.nans, self.infs, spread)


def combined_deviation(
    means: Sequence[tuple[float | int, int]], squares: Sequence[float]
) -> float | None:
    """Return the standard deviation of all pieces together.

    Args:
        means: The mean of each piece, and the number of its elements.
        squares: For each piece, the sum of its elements' squared distances from its mean.

    Returns:
        The deviation; None without elements, or if it is more than a float holds.
    """
    count = sum(size for _, size in means)
    if not count:
        return None
    mean = math.fsum(each * (size / count) for each, size in means)
    try:
        between = math.fsum(size * (each - mean) ** 2 for each, size in means)
        deviation = math.sqrt((math.fsum(squares) + between) / count)
    except (OverflowError, ValueError):
        return None
    return deviation if math.isfinite(deviation) else None


def statistics_of(array: Array) -> Statistics:
    """Return the statistics of an array of NumPy's own dtypes, with float64 accuracy for floats."""
    tally = Tally()
    for piece in pieces(array):
        if piece.dtype.kind == "f":
            tally.add_floats(piece)
        else:
            tally.add(piece)
    return tally.statistics


def limits_of(statistics: Iterable[Statistics | None]) -> tuple[float, float]:
    """Return the smallest and largest finite element of several values; zeros without any."""
    known = [item for item in statistics if item is not None]
    lows = [float(item.minimum) for item in known if item.minimum is not None]
    highs = [float(item.maximum) for item in known if item.maximum is not None]
    return min(lows, default=0.0), max(highs, default=0.0)


def array_summary(array: Array) -> tuple[Statistics, tuple[int, ...]]:
    """Return the statistics and a checksum of an array, without copying it.

    Args:
        array: Numbers in C order, of NumPy's dtypes or bfloat16.

    Returns:
        The statistics, and a checksum. The checksum is equal for arrays whose elements are equal,
        NaN included, and almost certainly different for other arrays.
    """
    tally = Tally()
    checksum = _Checksum()
    for raw in pieces(array):
        piece = decoded(raw)
        before = tally.nans
        tally.add(piece)
        checksum.add(piece, nans=tally.nans > before)
    return tally.statistics, tuple(checksum.sums)


def pieces(array: Array) -> Iterator[Array]:
    """Yield an array's elements in C order, a flat piece at a time."""
    flat = array.reshape(-1)
    for begin in range(0, flat.size, PIECE):
        yield flat[begin : begin + PIECE]


def sample_of(array: Array, lengths: Sequence[int], steps: Sequence[int]) -> Array:
    """Return a sample of an array, as far as possible without a copy.

    Args:
        array: An array of any shape.
        lengths: The shape to see the array in. If it has fewer elements than the array, the
            array's first elements are taken.
        steps: The distance between two kept elements along each of these axes.
    """
    flat = array.reshape(-1)[: math.prod(lengths)]
    return flat.reshape(lengths)[tuple(slice(None, None, step) for step in steps)]


def decoded(piece: Array) -> Array:
    """Return a piece in a dtype that NumPy computes with quickly."""
    if piece.dtype.name == "bfloat16":
        # A bfloat16 is the upper half of a float32. This is much faster than the dtype's own
        # conversion.
        bits = piece.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return np.asarray(bits.view(np.float32))
    if piece.dtype.kind == "f" and piece.dtype.itemsize < 4:
        return piece.astype(np.float32)
    return piece


def _total(piece: Array) -> float | int:
    """Return the sum of a piece of elements, exact for integers of 32 bits."""
    kind, width = piece.dtype.kind, piece.dtype.itemsize
    if kind == "b":
        return int(np.count_nonzero(piece))
    if kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            return float(piece.sum())
    if width == 8:
        return float(piece.sum(dtype=np.float64))
    # Converting first is many times faster than a sum that converts each element.
    wide = {1: np.int32, 2: np.int64, 4: np.int64}[width]
    return int(piece.astype(wide).sum(dtype=wide))


class _Checksum:
    """A sum of the bits of each piece, in buffers that are allocated once."""

    def __init__(self) -> None:
        self._canonical, self._mixed, self._high = np.empty((3, PIECE), np.uint64)
        self.sums: list[int] = []

    def add(self, piece: Array, *, nans: bool) -> None:
        """Add a sum that depends on the positions of bits; arithmetic wraps around."""
        if piece.dtype.kind == "f":
            buffer = self._canonical.view(piece.dtype)[: piece.size]
            # Adding zero turns -0.0 into 0.0, so that equal elements get the same bits.
            piece = np.add(piece, piece.dtype.type(0), out=buffer)
            if nans:
                piece[np.isnan(piece)] = np.nan
        data: npt.NDArray[np.uint8] = np.ascontiguousarray(piece).view(np.uint8)
        if padding := -data.size % 8:
            data = np.concatenate([data, np.zeros(padding, np.uint8)])
        words = data.view(np.uint64)
        mixed, high = self._mixed[: words.size], self._high[: words.size]
        np.add(words, _keys(PIECE)[: words.size], out=mixed)
        np.right_shift(mixed, _HALF, out=high)
        # The halves of a word multiply, as in UMAC's hash, so that flipped signs cannot cancel out.
        self.sums.append(int(np.dot(mixed, high)))


@functools.cache
def _keys(count: int) -> npt.NDArray[np.uint64]:
    """Return random words, always the same."""
    return np.random.default_rng(0).integers(0, 2**64, count, dtype=np.uint64)
