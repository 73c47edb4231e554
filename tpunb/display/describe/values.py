"""The value on one replica: its facts, and the elements to draw."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from tpunb._util.plain_text import shortened
from tpunb._util.units import counted
from tpunb.display.describe import jax_values, tensorflow_values
from tpunb.display.describe.statistics import (
    Statistics,
    array_summary,
    sample_of,
    statistics_of,
)

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
        """Return the elements as a read-only NumPy array."""
        return np.frombuffer(self.data, dtype=self.dtype).reshape(self.shape)

    @property
    def sampled(self) -> bool:
        """True if elements were left out along an axis."""
        return any(step > 1 for step in self.steps)


Sampler = Callable[[Sequence[int], Sequence[int]], Array]
"""Returns a sample of an array seen in a shape, with a step along each axis."""

PreviewMaker = Callable[[tuple[int, ...], str, Statistics, Sampler], Preview]
"""Chooses the preview of an array by its shape, dtype and statistics."""


def preview_of(
    shape: tuple[int, ...],
    dtype: str,
    statistics: Statistics,
    sample: Sampler,
    limits: tuple[float, float] | None = None,
) -> Preview:
    """Choose the preview of an array; `sample` reads the array on its device.

    Args:
        shape: The array's shape.
        dtype: The name of its type.
        statistics: Its statistics.
        sample: Reads a sample of its elements.
        limits: The numbers that are black and white in images; by default `limits_of_pixels`.
    """
    images = _image_shape(shape, dtype, statistics) if math.prod(shape) > SMALL else None
    if images is None:
        return preview_of_numbers(shape, dtype, statistics, sample)
    # The first images of a batch, reduced to a small size.
    count, height, width, channels = images
    step = _step(max(height, width), _PICTURE_SIDE)
    steps = (1, step, step, 1)
    pixels = sample((min(count, _IMAGES), height, width, channels), steps)
    if dtype != "uint8":
        low, high = limits or limits_of_pixels(statistics)
        pixels = np.rint((np.asarray(pixels, np.float32) - low) * (255 / (high - low)))
    return _packed("images", pixels.astype(np.uint8), steps)


def preview_of_numbers(
    shape: tuple[int, ...], dtype: str, statistics: Statistics, sample: Sampler
) -> Preview:
    """Choose the preview of an array that is drawn as numbers, not as a picture."""
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


def _step(length: int, most: int) -> int:
    return max(1, math.ceil(length / most))


def is_picture(shape: tuple[int | None, ...] | None, dtype: str, statistics: Statistics) -> bool:
    """Return whether an array looks like pictures."""
    sides = [side for side in shape or () if side is not None]
    return bool(_image_shape(tuple(sides), dtype, statistics))


def _image_shape(
    shape: tuple[int, ...], dtype: str, statistics: Statistics
) -> tuple[int, int, int, int] | None:
    """Return `[images, height, width, channels]` if an array looks like pictures, else None."""
    if len(shape) not in (3, 4) or shape[-1] not in (1, 3, 4) or min(shape[-3:-1]) < 8:
        return None
    low, high = statistics.minimum, statistics.maximum
    if low is None or high is None or statistics.nans or statistics.infs:
        return None
    # Only a batch of images has this form whatever its numbers are: rescaled, or centred on zero.
    is_batch = len(shape) == 4 and shape[-1] in (1, 3) and low < high
    unit = low >= 0 and high <= 1
    if dtype != "uint8" and not ("float" in dtype and (unit or is_batch)):
        return None
    height, width, channels = shape[-3:]
    return (shape[0] if len(shape) == 4 else 1, height, width, channels)


def limits_of_pixels(statistics: Statistics) -> tuple[float, float]:
    """Return the numbers that are drawn as black and as white: a power of two, or 0 and 1."""
    low, high = statistics.minimum or 0.0, statistics.maximum or 0.0
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    limit = 2.0 ** math.ceil(math.log2(max(-low, high)))
    return (-limit if low < 0 else 0.0), limit


def _packed(kind: PreviewKind, array: Array, steps: tuple[int, ...]) -> Preview:
    numbers = computable(array)
    # Browsers and Python's struct do not know half precision.
    if numbers is None or (numbers.dtype.kind == "f" and numbers.dtype.itemsize < 4):
        numbers = np.asarray(array, np.float32)
    little = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    data = np.ascontiguousarray(little).tobytes()
    return Preview(kind, tuple(array.shape), little.dtype.str, data, steps)


def computable(array: Array) -> Array | None:
    """Return the elements in a dtype of NumPy's own; `None` if they are not numbers."""
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


_MAX_TEXT = 200
_LOST = "cannot be read: its connection is closed, or lost"
_DELETED = "cannot be read: it was deleted, or donated to a function"
_QUICK = ("float32", "float64", "float16", "bfloat16")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ReplicaValue:
    """One leaf on one replica.

    Attributes:
        kind: `"numeric"`, `"string"`, `"ragged"`, `"sparse"`, `"slices"`,
            `"none"` or `"object"` (any other value, shown by its repr).
        dtype: The dtype, such as `"bfloat16"`; the type's name for an object.
        shape: The shape, `None` for an axis of unequal lengths; `None` for a value
            without a shape.
        statistics: The statistics of a numeric value, or of the values of a composite value.
        preview: Elements to draw, if they are numbers.
        texts: Elements as text, for strings, composites and objects. The texts are the
            data's own: escape them.
        omitted: The number of texts that were left out.
        rows: The lengths of a small ragged value's rows, for each of its axes of
            unequal lengths; empty for other values.
        fingerprint: Equal for equal values; not for display.
    """

    kind: Literal["numeric", "string", "ragged", "sparse", "slices", "none", "object"]
    dtype: str
    shape: tuple[int | None, ...] | None = None
    statistics: Statistics | None = None
    preview: Preview | None = None
    texts: tuple[str, ...] = ()
    omitted: int = 0
    rows: tuple[tuple[int, ...], ...] = ()
    fingerprint: tuple[Any, ...] = field(default=(), repr=False)


def replica_value(value: Any, *, preview: PreviewMaker | None) -> ReplicaValue:
    """Describe one leaf on one replica; describe unknown types by their repr.

    Args:
        value: The leaf.
        preview: Makes the leaf's preview; None for no preview.
    """
    description = guarded(lambda: _described(value, preview=preview), None)
    return description or guarded(lambda: _unreadable(value), None) or _object(value)


def _unreadable(value: Any) -> ReplicaValue | None:
    """Describe a tensor, variable or array with a known shape but unreadable numbers."""
    lost = _LOST
    known = tensorflow_values.type_and_shape(value)
    if known is None:
        lost, known = _DELETED, jax_values.type_and_shape(value)
    if known is None:
        return None
    return ReplicaValue("object", *known, texts=(lost,), fingerprint=("lost", id(value)))


def _described(value: Any, *, preview: PreviewMaker | None) -> ReplicaValue | None:
    if value is None:
        return ReplicaValue("none", "None", texts=("None",), fingerprint=("none",))
    if kind := tensorflow_values.composite_kind(value):
        return _composite(kind, value, preview=preview)
    tensor = tensorflow_values.as_tensor(value)
    if tensor is not None:
        return _tensor(tensor, preview=preview)
    if isinstance(value, str | bytes):
        return _strings(np.asarray(value, dtype=object), type(value).__name__)
    if isinstance(value, np.ndarray | np.generic):
        return _array(np.asarray(value), np.asarray(value).dtype.name, preview=preview)
    if isinstance(value, bool | int | float | complex):
        return _array(np.asarray(value), type(value).__name__, preview=preview)
    return None


def _tensor(tensor: Any, *, preview: PreviewMaker | None) -> ReplicaValue | None:
    dtype = tensorflow_values.tensor_dtype(tensor)
    if tensorflow_values.is_symbolic(tensor):
        shape = tuple(tensor.shape) if tensor.shape.rank is not None else None
        text = "a symbolic tensor, without a value yet"
        return ReplicaValue("object", dtype, shape, texts=(text,), fingerprint=(id(tensor),))
    if not tensorflow_values.is_large(tensor):
        return _array(tensorflow_values.as_array(tensor), dtype, preview=preview)
    shape = tuple(int(size) for size in tensor.shape)
    if dtype == "string":
        head = tensorflow_values.strided(tensor, (SMALL,), (1,))
        return _strings(head, dtype, shape=shape)
    if dtype.startswith("complex"):
        text = "complex numbers, too many to show"
        return ReplicaValue("object", dtype, shape, texts=(text,), fingerprint=(id(tensor),))
    view = tensorflow_values.host_view(tensor)
    summary = tensorflow_values.device_summary(tensor) if view is None else array_summary(view)
    return _numeric(dtype, shape, *summary, preview, partial(tensorflow_values.strided, tensor))


def _numeric(
    dtype: str,
    shape: tuple[int, ...],
    statistics: Statistics,
    checksum: Any,
    preview: PreviewMaker | None,
    sample: Sampler,
) -> ReplicaValue:
    return ReplicaValue(
        "numeric",
        dtype,
        shape,
        statistics,
        preview(shape, dtype, statistics, sample) if preview else None,
        fingerprint=(dtype, shape, checksum),
    )


def _array(array: Array, dtype: str, *, preview: PreviewMaker | None) -> ReplicaValue | None:
    """Describe an array in the host's memory."""
    if array.dtype.kind in "SU" or dtype == "string":
        return _strings(array, dtype)
    if array.dtype.kind == "c":
        items = array.reshape(-1)
        texts = tuple(f"{item.real:.4g}{item.imag:+.4g}j" for item in items[:SMALL].tolist())
        return ReplicaValue(
            "numeric",
            dtype,
            array.shape,
            texts=texts,
            omitted=items.size - len(texts),
            fingerprint=(dtype, array.shape, _digest(np.ascontiguousarray(items).tobytes())),
        )
    quick = array.dtype.kind in "biu" or array.dtype.name in _QUICK
    if quick and array.nbytes > tensorflow_values.LARGE_BYTES and array.flags.c_contiguous:
        sample = partial(sample_of, array)
        return _numeric(dtype, array.shape, *array_summary(array), preview, sample)
    if (numbers := computable(array)) is None:
        return None
    canonical = numbers
    if numbers.dtype.kind == "f":
        # Adding zero turns -0.0 into 0.0, which is equal to it.
        canonical = np.where(np.isnan(numbers), np.nan, numbers + 0.0).astype(numbers.dtype)
    checksum = _digest(np.ascontiguousarray(canonical).tobytes())
    statistics, sample = statistics_of(numbers), partial(sample_of, numbers)
    return _numeric(dtype, array.shape, statistics, checksum, preview, sample)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _strings(array: Array, dtype: str, shape: tuple[int, ...] | None = None) -> ReplicaValue:
    """Describe text or bytes; `array` may be the first elements of an array of `shape`."""
    shape = array.shape if shape is None else shape
    items = array.reshape(-1).tolist()
    texts = []
    for item in items[:SMALL]:
        if isinstance(item, bytes):
            item = item[: 4 * _MAX_TEXT].decode("utf-8", "backslashreplace")
        # A string's repr has no control characters.
        texts.append(shortened(repr(str(item)), _MAX_TEXT))
    return ReplicaValue(
        "string",
        dtype,
        shape,
        texts=tuple(texts),
        omitted=math.prod(shape) - len(texts),
        fingerprint=(dtype, shape, _digest(repr(items).encode("utf-8", "backslashreplace"))),
    )


def _composite(
    kind: tensorflow_values.CompositeKind, value: Any, *, preview: PreviewMaker | None
) -> ReplicaValue | None:
    """Describe a ragged or sparse tensor or indexed slices by their values."""
    flat = value.flat_values if kind == "ragged" else value.values
    inner = _tensor(tensorflow_values.as_tensor(flat), preview=preview)
    if inner is None:
        return None
    count = (inner.shape[0] or 0) if inner.shape else 0
    shape: tuple[int | None, ...] | None = None
    rows: tuple[tuple[int, ...], ...] = ()
    if kind == "ragged":
        shape = tuple(None if side is None else int(side) for side in value.shape)
        places = tuple(map(_fingerprint, value.nested_row_splits))
        text = f"{counted(count, 'value')} in {counted(int(value.nrows()), 'row')}"
        parts = value.nested_row_lengths()
        lengths = [tuple(tensorflow_values.as_array(part).tolist()) for part in parts]
        whole = inner.preview.kind == "values" if inner.preview else inner.texts
        if whole and not inner.omitted and sum(map(len, lengths)) <= SMALL:
            rows = tuple(lengths)
    else:
        if (dense := getattr(value, "dense_shape", None)) is not None:
            shape = tuple(int(side) for side in tensorflow_values.as_array(dense))
        places = (_fingerprint(value.indices),)
        text = f"{counted(count, 'value')} set" if kind == "sparse" else counted(count, "slice")
    return ReplicaValue(
        kind,
        inner.dtype,
        shape,
        inner.statistics,
        inner.preview,
        (text, *(inner.texts if inner.kind == "string" else ())),
        inner.omitted,
        rows,
        fingerprint=(kind, shape, inner.fingerprint, places),
    )


def _fingerprint(tensor: Any) -> tuple[Any, ...]:
    described = _tensor(tensor, preview=None)
    return described.fingerprint if described else ()


def _object(value: Any) -> ReplicaValue:
    """Describe a value by its type's name and an abridged repr, as the last resort."""
    name = type(value).__name__
    text = short_repr(value)
    # Two objects with the same abridged repr may differ.
    complete = len(text) < _MAX_TEXT and not text.startswith("<")
    return ReplicaValue(
        "object", name, texts=(text,), fingerprint=(name, text if complete else id(value))
    )


def short_repr(value: Any) -> str:
    """Return a repr without addresses or control characters, which cannot fail."""

    def abridged() -> str:
        """Return a repr that begins like the whole value's repr, at least as far as it is shown."""
        head = value
        if type(value) in (str, bytes, list, tuple) and len(value) > 2 * _MAX_TEXT:
            head = value[: 2 * _MAX_TEXT]
        elif type(value) in (set, frozenset, dict) and len(value) > 2 * _MAX_TEXT:
            items = value.items() if isinstance(value, dict) else value
            head = type(value)(itertools.islice(items, 2 * _MAX_TEXT))
        return str(repr(head))

    text = _ADDRESS.sub("", guarded(abridged, f"<{type(value).__name__}>")[: 10 * _MAX_TEXT])
    return shortened("".join(char if char.isprintable() else " " for char in text), _MAX_TEXT)


def guarded(call: Callable[[], _T], otherwise: _T) -> _T:
    """Return the result of a call, or `otherwise` if it fails.

    A display shows all readable values. Values come from anywhere. A value that cannot be read (a
    deleted buffer, an uninitialised variable, a repr with a bug) must not hide the others.
    """
    try:
        return call()
    except Exception:
        return otherwise
