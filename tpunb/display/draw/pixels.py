"""Tensors as pixels: matrices as heat maps on one scale, images side by side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb.display.describe.replicas import ReplicaValue

__all__ = [
    "INF_COLOUR",
    "NAN_COLOUR",
    "Array",
    "Pixels",
    "colour_map",
    "coloured",
    "is_signed",
    "preview_of",
    "scale_of",
    "scaled",
    "tiled",
]

NAN_COLOUR = (255, 47, 164)
INF_COLOUR = (255, 176, 0)

Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]


def preview_of(value: ReplicaValue) -> Array:
    """What is drawn of a value."""
    assert value.preview is not None
    return value.preview.array()


def is_signed(limits: tuple[float, float]) -> bool:
    """Whether a scale has zero in its middle."""
    return limits[0] < 0 < limits[1]


def scaled(array: Array, limits: tuple[float, float]) -> Array:
    """Elements between limits as 0 to 1, others as they come.

    Halved first, as the range may exceed the largest number: matplotlib's own norm would
    overflow.
    """
    low, high = limits
    span = high / 2 - low / 2
    halves = np.asarray(array, np.float64) / 2 - low / 2
    if span == 0:
        return np.where(np.isfinite(halves), 0.5, halves)
    with np.errstate(all="ignore"):
        return np.asarray(halves / span)


def scale_of(limits: tuple[float, float]) -> tuple[float, float]:
    """The ends of the colour scale: about zero where it is between the limits."""
    most = max(-limits[0], limits[1])
    return (-most, most) if is_signed(limits) else limits


def coloured(value: ReplicaValue, limits: tuple[float, float]) -> Pixels:
    """The heat map of a matrix, NaN and Inf in colours of their own."""
    array = preview_of(value)
    shares = scaled(array, scale_of(limits))
    pixels = colour_map(limits)(np.where(np.isfinite(shares), shares, 0), bytes=True)[..., :3]
    pixels = np.array(pixels, np.uint8)
    pixels[np.isnan(array)] = NAN_COLOUR
    pixels[np.isinf(array)] = INF_COLOUR
    return pixels


def colour_map(limits: tuple[float, float]) -> Any:
    """Matplotlib's colours for a scale."""
    import matplotlib as mpl

    return mpl.colormaps["RdBu_r" if is_signed(limits) else "viridis"]


def tiled(images: Array) -> Pixels:
    """A few images side by side as one, in red, green and blue."""
    count, height, width, channels = images.shape
    if channels == 1:
        images = np.repeat(images, 3, axis=3)
    if channels == 4:
        alpha = images[..., 3:].astype(np.float32) / 255
        images = np.rint(images[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    gap = 0 if count == 1 else 2
    page = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, 3), 255, np.uint8)
    for number, image in enumerate(images):
        top, left = number // columns * (height + gap), number % columns * (width + gap)
        page[top : top + height, left : left + width] = image
    return page
