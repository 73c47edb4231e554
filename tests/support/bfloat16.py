"""NumPy's bfloat16, and numbers whose sums are exact, for the tests of a TPU's arithmetic."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def bf(values: np.ndarray) -> np.ndarray:
    """Round numbers to bfloat16, and return them as float32."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def whole_numbers(*shape: int, seed: int) -> np.ndarray:
    """Return whole numbers, most of which bfloat16 cannot hold.

    The sum of sixteen of their products is exact in float32, in any order.
    """
    return np.random.default_rng(seed).integers(-600, 600, shape).astype(np.float32)
