"""What to draw of an array: all of it, a curve, a grid or images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tpunb.display.describe.statistics import Statistics

__all__ = [
    "SMALL",
    "Preview",
    "PreviewMaker",
    "Sampler",
    "computable",
    "is_picture",
    "preview_of",
    "preview_of_numbers",
    "sample_of",
]

SMALL = 64
"""Values of at most this many elements are kept in full."""

_PICTURE_SIDE = 96
_CURVE_POINTS = 512
_IMAGES = 9

Array = npt.NDArray[Any]
PreviewKind = Literal["values", "curve", "grid", "images"]


@dataclass(frozen=True, slots=True)
class Preview:
    """Elements to draw, as a buffer that can be compared, hashed and sent.

    Attributes:
        kind: `"values"` for all elements in their own shape, `"curve"` for
            points of one axis, `"grid"` for a matrix (leading axes folded into
            rows), `"images"` for `[images, height, width, channels]` of uint8.
        shape: The shape of the buffer.
        dtype: NumPy's name of the buffer's dtype.
        data: The elements in C order.
        steps: The stride of the sample along each axis.
    """

    kind: PreviewKind
    shape: tuple[int, ...]
    dtype: str
    data: bytes
    steps: tuple[int, ...] = ()

    def array(self) -> Array:
        """The elements as a read-only NumPy array."""
        return np.frombuffer(self.data, dtype=self.dtype).reshape(self.shape)

    @property
    def sampled(self) -> bool:
        """Whether elements were left out along an axis."""
        return any(step > 1 for step in self.steps)


Sampler = Callable[[Sequence[int], Sequence[int]], Array]
"""Gives a sample of an array seen in a shape, with a step along each axis."""

PreviewMaker = Callable[[tuple[int, ...], str, Statistics, Sampler], Preview]
"""Chooses what to draw of an array by its shape, dtype and statistics."""


def preview_of(
    shape: tuple[int, ...], dtype: str, statistics: Statistics, sample: Sampler
) -> Preview:
    """What to draw of an array; `sample` gets it, from wherever it is."""
    images = math.prod(shape) > SMALL and _image_shape(shape, dtype, statistics)
    if images:
        return _images(images, dtype, sample)
    return preview_of_numbers(shape, dtype, statistics, sample)


def preview_of_numbers(
    shape: tuple[int, ...], dtype: str, statistics: Statistics, sample: Sampler
) -> Preview:
    """What to draw of an array that is no picture, or stands beside one that is none."""
    del dtype, statistics
    size = math.prod(shape)
    if size <= SMALL:
        return _packed("values", sample(shape, (1,) * len(shape)), (1,) * len(shape))
    # An axis of length one adds nothing to a picture.
    sides = [side for side in shape if side > 1]
    if len(sides) == 1:
        step = _step(size, _CURVE_POINTS)
        return _packed("curve", sample((size,), (step,)), (step,))
    rows, columns = size // sides[-1], sides[-1]
    steps = (_step(rows, _PICTURE_SIDE), _step(columns, _PICTURE_SIDE))
    return _packed("grid", sample((rows, columns), steps), steps)


def sample_of(array: Array, lengths: Sequence[int], steps: Sequence[int]) -> Array:
    """A sample of an array, as far as possible without a copy.

    Args:
        array: Of any shape.
        lengths: The shape to see it in; as many elements as the array has, or
            fewer, which takes the first ones.
        steps: Keep every so many elements along each of these axes.
    """
    flat = array.reshape(-1)[: math.prod(lengths)]
    return flat.reshape(lengths)[tuple(slice(None, None, step) for step in steps)]


def _step(length: int, most: int) -> int:
    return max(1, math.ceil(length / most))


def is_picture(shape: tuple[int | None, ...] | None, dtype: str, statistics: Statistics) -> bool:
    """Whether an array looks like pictures."""
    sides = [side for side in shape or () if side is not None]
    return bool(_image_shape(tuple(sides), dtype, statistics))


def _image_shape(
    shape: tuple[int, ...], dtype: str, statistics: Statistics
) -> tuple[int, int, int, int] | None:
    """`[images, height, width, channels]` if an array looks like pictures."""
    if len(shape) not in (3, 4) or shape[-1] not in (1, 3, 4) or min(shape[-3:-1]) < 8:
        return None
    low, high = statistics.minimum, statistics.maximum
    if low is None or high is None or statistics.nans or statistics.infs:
        return None
    unit = "float" in dtype and low >= 0 and high <= 1
    if dtype != "uint8" and not unit:
        return None
    height, width, channels = shape[-3:]
    return (shape[0] if len(shape) == 4 else 1, height, width, channels)


def _images(
    shape: tuple[int, int, int, int],
    dtype: str,
    sample: Sampler,
) -> Preview:
    """The first images of a batch, reduced to a small size."""
    count, height, width, channels = shape
    step = _step(max(height, width), _PICTURE_SIDE)
    steps = (1, step, step, 1)
    pixels = sample((min(count, _IMAGES), height, width, channels), steps)
    if dtype != "uint8":
        pixels = np.rint(np.asarray(pixels, np.float32) * 255)
    return _packed("images", pixels.astype(np.uint8), steps)


def _packed(kind: PreviewKind, array: Array, steps: tuple[int, ...]) -> Preview:
    numbers = computable(array)
    # Half precision is no dtype that a browser or Python's struct would know.
    if numbers is None or (numbers.dtype.kind == "f" and numbers.dtype.itemsize < 4):
        numbers = np.asarray(array, np.float32)
    little = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    data = np.ascontiguousarray(little).tobytes()
    return Preview(kind, tuple(array.shape), little.dtype.str, data, steps)


def computable(array: Array) -> Array | None:
    """The elements in a dtype of NumPy's own; `None` if they are not numbers."""
    if array.dtype.kind in "biu":
        return array
    if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
        return array
    # bfloat16, float8 and int4 are additions to NumPy, of kind "V" or "f".
    if array.dtype.names is None and array.dtype.name.startswith(("bfloat", "float")):
        return array.astype(np.float32 if array.dtype.itemsize <= 4 else np.float64)
    if array.dtype.name.startswith(("int", "uint")):
        return array.astype(np.int64)
    return None
