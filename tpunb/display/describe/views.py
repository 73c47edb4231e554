"""Other views of the replicas' values: slices, differences, reductions, counts.

A display holds samples of the elements. This module computes views that need all elements, on the
elements' device, and returns samples again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tpunb.display.describe import tensorflow_values
from tpunb.display.describe.replicas import Leaf
from tpunb.display.describe.statistics import (
    Statistics,
    Tally,
    decoded,
    limits_of,
    pieces,
    sample_of,
)
from tpunb.display.describe.values import (
    Preview,
    computable,
    preview_of,
    replica_value,
)

BINS = 48
"""The number of a histogram's bins."""

MODES = ("values", "difference", "mean", "sum")

Array = npt.NDArray[Any]
Mode = Literal["values", "difference", "mean", "sum"]


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """A request for a view.

    Attributes:
        mode: The values themselves, their difference to a replica's, or their
            mean or sum over all replicas.
        reference: The position of the replica to subtract.
        index: Indices on the first axes, which select the slice to view.
        places: The first replica's position, and the position after the last; None for all.
        counts: Whether to compute a histogram.
    """

    mode: Mode = "values"
    reference: int = 0
    index: tuple[int, ...] = ()
    places: tuple[int, int] | None = None
    counts: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """The answer to a request, for each replica or once for all.

    Attributes:
        values: The values to draw, with their statistics.
        counts: Elements in each of `BINS` equal ranges, for each of the values.
        limits: The beginning and end of the ranges.
    """

    values: tuple[tuple[Preview, Statistics], ...]
    counts: tuple[tuple[int, ...], ...] = ()
    limits: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _HostElements:
    """Elements that the host can read, each combined from the elements of some arrays."""

    arrays: tuple[Array, ...]
    combine: Callable[..., Array]
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.arrays[0].shape

    def pieces(self) -> Iterator[Array]:
        for parts in zip(*map(pieces, self.arrays), strict=True):
            yield self.combine(*map(decoded, parts))

    def sample(self, lengths: Sequence[int], steps: Sequence[int]) -> Array:
        parts = [np.ascontiguousarray(sample_of(array, lengths, steps)) for array in self.arrays]
        return self.combine(*map(decoded, parts))

    def described(self) -> tuple[Preview, Statistics]:
        tally = Tally()
        for piece in self.pieces():
            tally.add(piece)
        return preview_of(self.shape, self.dtype, tally.statistics, self.sample), tally.statistics

    def counts(self, limits: tuple[float, float]) -> Array:
        """Count the finite elements in equal ranges between limits."""
        low, high = limits
        span = high / 2 - low / 2  # halved, because the range may exceed the largest number
        total = np.zeros(BINS, np.int64)
        for piece in self.pieces():
            if piece.dtype.kind == "f" and not np.isfinite(piece).all():
                piece = piece[np.isfinite(piece)]
            exact = piece.dtype.itemsize > 2 and piece.dtype != np.float32
            wide = np.float64 if exact else np.float32
            shares = (piece.astype(wide) * wide(0.5) - wide(low / 2)) * wide(BINS / span)
            places = np.clip(shares, 0, BINS - 1).astype(np.intp)
            total += np.bincount(places, minlength=BINS)
        return total


@dataclass(frozen=True, slots=True)
class _DeviceElements:
    """Elements that stay on a device other than the host."""

    tensor: Any

    def described(self) -> tuple[Preview, Statistics]:
        value = replica_value(self.tensor, preview=preview_of)
        if value.preview is None or value.statistics is None:
            raise ValueError("Only numbers can be computed with.")
        return value.preview, value.statistics

    def counts(self, limits: tuple[float, float]) -> Array:
        return tensorflow_values.device_counts(self.tensor, limits, BINS)


def replica_view(leaf: Leaf, request: ViewRequest) -> ReplicaView:
    """Compute a view of a leaf.

    Args:
        leaf: The replicas' values, which must be numbers.
        request: The view to compute.

    Returns:
        The values to draw, as small as a description's previews.

    Raises:
        ValueError: The parts are not numbers, or their shapes do not agree.
        IndexError: A replica or a slice does not exist.
    """
    elements = list(_elements(leaf.parts, request))
    on_host = all(isinstance(item, _HostElements) for item in elements)
    with ThreadPoolExecutor((os.cpu_count() or 1) if on_host else 1) as pool:
        values = tuple(pool.map(lambda item: item.described(), elements))
        if not request.counts:
            return ReplicaView(values)
        low, high = limits_of(statistics for _, statistics in values)
        limits = (low, high) if high > low else (low - 0.5, high + 0.5)
        counts = pool.map(lambda item: tuple(item.counts(limits).tolist()), elements)
        return ReplicaView(values, tuple(counts), limits)


def _elements(
    parts: Sequence[Any], request: ViewRequest
) -> Iterator[_HostElements | _DeviceElements]:
    begin, end = request.places or (0, len(parts))
    if not 0 <= begin < end <= len(parts):
        raise IndexError(f"There are replicas 0 to {len(parts) - 1}.")
    if request.mode in ("mean", "sum"):
        yield _combined([_sliced(part, request.index) for part in parts], request.mode)
        return
    chosen = [_sliced(part, request.index) for part in parts[begin:end]]
    if request.mode == "values":
        for item in chosen:
            if isinstance(item, np.ndarray | np.generic):
                array = np.asarray(item)
                yield _HostElements((array,), lambda piece: piece, array.dtype.name)
            else:
                yield _DeviceElements(item)
        return
    if not 0 <= request.reference < len(parts):
        raise IndexError(f"There are replicas 0 to {len(parts) - 1}.")
    reference = _sliced(parts[request.reference], request.index)
    yield from (_combined([item, reference], "difference") for item in chosen)


def _sliced(part: Any, index: tuple[int, ...]) -> Any:
    """Return a slice of a part's elements: an array if readable here, else a tensor."""
    numbers = _numbers(part)
    if not index:
        return numbers
    if len(index) >= len(numbers.shape):
        raise IndexError(f"A slice of {len(index)} axes needs more axes than the value has.")
    for place, length in zip(index, numbers.shape, strict=False):
        if not 0 <= place < length:
            raise IndexError(f"There is no place {place} on an axis of length {length}.")
    return numbers[index]


def _numbers(part: Any) -> Any:
    tensor = tensorflow_values.as_tensor(part)
    if tensor is None:
        array: Any = np.asarray(part)
    elif tensorflow_values.is_symbolic(tensor):
        raise ValueError("A symbolic tensor has no elements yet.")
    else:
        array = tensorflow_values.host_view(tensor)
        if array is None and tensorflow_values.is_large(tensor):
            return tensor
        if array is None:
            array = tensorflow_values.as_array(tensor)
    if decoded(array[:0] if array.ndim else array.reshape(1)[:0]).dtype.kind in "biuf":
        return array
    known = computable(array)
    if known is None:
        raise ValueError("Only numbers can be computed with.")
    return known


def _combined(items: list[Any], mode: str) -> _HostElements | _DeviceElements:
    if any(tuple(item.shape) != tuple(items[0].shape) for item in items):
        raise ValueError("The replicas' values have different shapes.")
    if not all(isinstance(item, np.ndarray | np.generic) for item in items):
        return _DeviceElements(tensorflow_values.combined(items, mode))
    arrays = tuple(np.asarray(item) for item in items)
    # Without a dtype's name the result is never taken for an image.
    return _HostElements(arrays, _COMBINE[mode], "")


def _difference(first: Array, second: Array) -> Array:
    """Return the difference, which is zero if both are NaN or the same infinity."""
    if first.dtype.kind != "f":
        # Wrapping around keeps the result exact for all integers whose difference fits an int64.
        return first.astype(np.int64) - second.astype(np.int64)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = first - second
    if not np.isfinite(difference).all():
        difference[(first == second) | (np.isnan(first) & np.isnan(second))] = 0
    return difference


def _sum(*parts: Array) -> Array:
    total = parts[0].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        for part in parts[1:]:
            total += part
    return total


_COMBINE: dict[str, Callable[..., Array]] = {
    "difference": _difference,
    "sum": _sum,
    "mean": lambda *parts: np.asarray(_sum(*parts) / len(parts)),
}
