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
