"""What the tests of a TPU's arithmetic share: NumPy's bfloat16, and numbers whose sums are exact."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def bf(values: np.ndarray) -> np.ndarray:
    """Numbers rounded to bfloat16, as float32."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def whole_numbers(*shape: int, seed: int) -> np.ndarray:
    """Whole numbers, most of which no bfloat16 holds.

    The sum of sixteen products of them is exact in float32, in whatever order it is made.
    """
    return np.random.default_rng(seed).integers(-600, 600, shape).astype(np.float32)


def convolution(images: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """A convolution of `[N, H, W, C]` with `[h, w, C, D]`, without padding."""
    windows = np.lib.stride_tricks.sliding_window_view(images, filters.shape[:2], axis=(1, 2))
    return np.einsum("nxychw,hwcd->nxyd", windows, filters)


def convolution_by_filters(images: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Its gradient by the filters: `[h, w, C, D]`."""
    size = gradient.shape[1:3]
    windows = np.lib.stride_tricks.sliding_window_view(images, size, axis=(1, 2))
    return np.einsum("nhwcxy,nxyd->hwcd", windows, gradient)


def convolution_by_images(filters: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Its gradient by the images: `[N, H, W, C]`."""
    height, width = (size - 1 for size in filters.shape[:2])
    padded = np.pad(gradient, ((0, 0), (height, height), (width, width), (0, 0)))
    turned = filters[::-1, ::-1].transpose(0, 1, 3, 2)
    return convolution(padded, turned)
