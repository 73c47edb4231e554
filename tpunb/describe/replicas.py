"""What the values on each replica look like."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from tpunb.describe import _tensors

__all__ = [
    "MAX_PREVIEWS",
    "SMALL",
    "Preview",
    "ReplicaValue",
    "ReplicaValuesDescription",
    "Section",
    "Statistics",
    "describe_replica_values",
    "only_replicas",
]

SMALL = 64
"""Values of at most so many elements are kept whole."""

MAX_PREVIEWS = 64
"""Replicas whose values get a preview; the others have statistics only."""

MAX_SECTIONS = 64
"""Leaves of a nested structure that are described."""

_MAX_DEPTH = 16
_MAX_TEXT = 200
_PICTURE_SIDE = 96
_CURVE_POINTS = 512
_IMAGES = 9
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

Array = npt.NDArray[Any]
_T = TypeVar("_T")
PreviewKind = Literal["values", "curve", "grid", "images"]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Numbers about the elements of one value.

    Attributes:
        minimum: Of the finite elements; `None` when there are none.
        mean: The same.
        maximum: The same.
        nans: How many elements are not a number.
        infs: How many elements are infinite.
    """

    minimum: float | int | None
    mean: float | None
    maximum: float | int | None
    nans: int = 0
    infs: int = 0


@dataclass(frozen=True, slots=True)
class Preview:
    """Elements to draw, as a buffer that compares, hashes and can be sent.

    Attributes:
        kind: `"values"` for all elements in their own shape, `"curve"` for
            points of one axis, `"grid"` for a matrix (leading axes folded into
            rows), `"images"` for `[images, height, width, channels]` of uint8.
        shape: The shape of the buffer.
        dtype: NumPy's name of the buffer's dtype.
        data: The elements in C order.
        steps: Every so many elements were kept along each axis.
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


@dataclass(frozen=True, slots=True)
class ReplicaValue:
    """One leaf on one replica.

    Attributes:
        kind: `"numeric"`, `"string"`, `"ragged"`, `"sparse"`, `"slices"`,
            `"none"` or `"object"` (anything else, shown by its repr).
        dtype: Such as `"bfloat16"`; the type's name for an object.
        shape: The shape, `None` for an axis of unequal lengths; `None` where
            there is no shape.
        statistics: Of a numeric value, or of the values of a composite one.
        preview: Elements to draw, if they are numbers.
        texts: Elements as text, for strings, composites and objects. It is the
            data's own text: escape it.
        omitted: How many texts were left out.
        fingerprint: Equal for equal values; not for display.
    """

    kind: Literal["numeric", "string", "ragged", "sparse", "slices", "none", "object"]
    dtype: str
    shape: tuple[int | None, ...] | None = None
    statistics: Statistics | None = None
    preview: Preview | None = None
    texts: tuple[str, ...] = ()
    omitted: int = 0
    fingerprint: tuple[Any, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Section:
    """One leaf of the structure on all replicas.

    Attributes:
        path: Where the leaf is, such as `"['loss'][0]"`; empty for the whole.
        type_name: The class that holds the replicas' values, `"PerReplica"` or
            `"MirroredVariable"`, or that of a value that is not distributed.
        distributed: Whether there is a value per replica.
        values: The value on each replica; one for a value that is not
            distributed.
        differs: For each replica whether its value differs from the first one's,
            where NaN equals NaN.
        chosen: The ids of the replicas, where only some have been chosen.
    """

    path: str
    type_name: str
    distributed: bool
    values: tuple[ReplicaValue, ...]
    differs: tuple[bool, ...]
    chosen: tuple[int, ...] = ()

    def replica(self, place: int) -> int:
        """The id of the replica whose value stands at a place."""
        return self.chosen[place] if self.chosen else place

    @property
    def all_equal(self) -> bool:
        """Whether several replicas hold the same."""
        return len(self.values) > 1 and not any(self.differs)


@dataclass(frozen=True, slots=True)
class ReplicaValuesDescription:
    """A distributed value, or a nested structure with such values.

    Attributes:
        type_name: The class of the whole, such as `"PerReplica"` or `"dict"`.
        num_replicas: The most replicas that a part of it has; 0 if no part is
            distributed.
        sections: Its leaves.
        omitted: How many leaves were left out, at least.
    """

    type_name: str
    num_replicas: int
    sections: tuple[Section, ...]
    omitted: int = 0


def describe_replica_values(value: Any) -> ReplicaValuesDescription:
    """Describes what each replica holds.

    Large tensors are summarised on their device: of these, only scalars and a
    sample of the elements are pulled.

    Args:
        value: A `PerReplica`, `Mirrored` or other value of `tf.distribute`, a
            distributed variable, a plain value, or tuples, lists and mappings of
            these.

    Returns:
        The description. Whatever cannot be described is there by its repr: this
        never raises on a value's account.
    """
    leaves: list[tuple[str, Any]] = []
    _flatten("", value, leaves, depth=0)
    sections = tuple(section for path, leaf in leaves for section in _sections(path, leaf))
    shown = sections[:MAX_SECTIONS]
    return ReplicaValuesDescription(
        type_name=type(value).__name__,
        num_replicas=max((len(part.values) for part in shown if part.distributed), default=0),
        sections=shown,
        omitted=len(sections) - len(shown) + max(0, len(leaves) - MAX_SECTIONS),
    )


def only_replicas(
    description: ReplicaValuesDescription, targets: Sequence[slice]
) -> ReplicaValuesDescription:
    """The description of some of the replicas.

    Args:
        description: Of all replicas.
        targets: Which replicas, as slices of their ids.

    Raises:
        IndexError: None of the replicas exists.
    """
    ids = [
        replica
        for target in targets
        for replica in range(*target.indices(description.num_replicas))
    ]
    if description.num_replicas and not ids:
        raise IndexError(f"There are replicas 0 to {description.num_replicas - 1}.")
    chosen = tuple(dict.fromkeys(ids))
    sections = tuple(
        _only(section, chosen) if section.distributed else section
        for section in description.sections
    )
    return replace(description, num_replicas=len(chosen), sections=sections)


def _only(section: Section, chosen: tuple[int, ...]) -> Section:
    values = tuple(section.values[replica] for replica in chosen)
    differs = tuple(value.fingerprint != values[0].fingerprint for value in values)
    return replace(section, values=values, differs=differs, chosen=chosen)


def _sections(path: str, leaf: Any) -> list[Section]:
    """The sections of a leaf, which may hold a structure on each replica."""
    components = _guarded(lambda: _tensors.distributed_components(leaf), None)
    if components is None:
        return [_section(path, leaf, (leaf,), distributed=False)]
    structures: list[list[tuple[str, Any]]] = []
    for component in components:
        inner: list[tuple[str, Any]] = []
        _flatten(path, component, inner, depth=0)
        structures.append(inner)
    paths = [[where for where, _ in inner] for inner in structures]
    if not paths or any(other != paths[0] for other in paths):
        return [_section(path, leaf, components, distributed=True)]
    return [
        _section(where, leaf, tuple(inner[number][1] for inner in structures), distributed=True)
        for number, where in enumerate(paths[0])
    ]


def _section(path: str, holder: Any, parts: tuple[Any, ...], *, distributed: bool) -> Section:
    values = tuple(
        _replica_value(part, preview=number < MAX_PREVIEWS) for number, part in enumerate(parts)
    )
    return Section(
        path=path,
        type_name=type(holder).__name__,
        distributed=distributed,
        values=values,
        differs=tuple(value.fingerprint != values[0].fingerprint for value in values),
    )


def _flatten(path: str, value: Any, leaves: list[tuple[str, Any]], depth: int) -> None:
    """Appends the leaves of nested tuples, lists and mappings."""
    # One leaf more than is shown, to know that there are more.
    items = _guarded(lambda: _items(value), None) if depth < _MAX_DEPTH else None
    if items is None:
        leaves.append((path, value))
        return
    for key, item in items:
        if len(leaves) > MAX_SECTIONS:
            return
        _flatten(path + key, item, leaves, depth + 1)


def _items(value: Any) -> list[tuple[str, Any]] | None:
    """Steps and items of a structure; `None` for a leaf."""
    if isinstance(value, Mapping) and value:
        return [(f"[{_repr(key)}]", item) for key, item in value.items()]
    # Composite tensors of TensorFlow's are named tuples: SparseTensorValue and the like.
    if not isinstance(value, tuple | list) or not value or _is_plain(value):
        return None
    names = getattr(value, "_fields", None)
    if names:
        return [(f".{name}", item) for name, item in zip(names, value, strict=True)]
    return [(f"[{number}]", item) for number, item in enumerate(value)]


def _is_plain(value: Sequence[Any]) -> bool:
    """Whether a sequence holds only Python's numbers and strings: one leaf."""
    return all(isinstance(item, int | float | complex | str | bytes) for item in value)


def _replica_value(value: Any, *, preview: bool) -> ReplicaValue:
    """Describes one leaf on one replica; odd ones by their repr."""
    return _guarded(lambda: _described(value, preview=preview), None) or _object(value)


def _described(value: Any, *, preview: bool) -> ReplicaValue | None:
    if value is None:
        return ReplicaValue("none", "None", texts=("None",), fingerprint=("none",))
    if kind := _tensors.composite_kind(value):
        return _composite(kind, value, preview=preview)
    tensor = _tensors.as_tensor(value)
    if tensor is not None:
        return _tensor(tensor, preview=preview)
    if isinstance(value, str | bytes):
        return _strings(np.asarray(value, dtype=object), type(value).__name__)
    if isinstance(value, np.ndarray | np.generic):
        return _array(np.asarray(value), np.asarray(value).dtype.name, preview=preview)
    if isinstance(value, bool | int | float | complex):
        return _array(np.asarray(value), type(value).__name__, preview=preview)
    return None


def _tensor(tensor: Any, *, preview: bool) -> ReplicaValue | None:
    dtype = _tensors.tensor_dtype(tensor)
    if _tensors.is_symbolic(tensor):
        shape = tuple(tensor.shape) if tensor.shape.rank is not None else None
        text = "a symbolic tensor, without a value yet"
        return ReplicaValue("object", dtype, shape, texts=(text,), fingerprint=(id(tensor),))
    if not _tensors.is_large(tensor):
        return _array(_tensors.as_array(tensor), dtype, preview=preview)
    shape = tuple(int(size) for size in tensor.shape)
    if dtype == "string":
        head = _tensors.strided(tensor, (SMALL,), (1,))
        return _strings(head, dtype, shape=shape)
    if dtype.startswith("complex"):
        text = "complex numbers, too many to show"
        return ReplicaValue("object", dtype, shape, texts=(text,), fingerprint=(id(tensor),))
    summary = _tensors.device_summary(tensor)
    statistics = Statistics(
        summary.minimum, summary.mean, summary.maximum, summary.nans, summary.infs
    )

    def sample(lengths: Sequence[int], steps: Sequence[int]) -> Array:
        return _tensors.strided(tensor, lengths, steps)

    return ReplicaValue(
        "numeric",
        dtype,
        shape,
        statistics,
        _preview(shape, dtype, statistics, sample) if preview else None,
        fingerprint=(dtype, shape, summary.checksum),
    )


def _array(array: Array, dtype: str, *, preview: bool) -> ReplicaValue | None:
    """Describes an array in the host's memory."""
    if array.dtype.kind in "SU" or dtype == "string":
        return _strings(array, dtype)
    if array.dtype.kind == "c":
        return _complex(array, dtype)
    numbers = _computable(array)
    if numbers is None:
        return None
    statistics = _statistics(numbers)

    def sample(lengths: Sequence[int], steps: Sequence[int]) -> Array:
        flat = numbers.reshape(-1)[: math.prod(lengths)]
        return flat.reshape(lengths)[tuple(slice(None, None, step) for step in steps)]

    return ReplicaValue(
        "numeric",
        dtype,
        array.shape,
        statistics,
        _preview(array.shape, dtype, statistics, sample) if preview else None,
        fingerprint=(dtype, array.shape, _checksum(numbers)),
    )


def _computable(array: Array) -> Array | None:
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


def _checksum(numbers: Array) -> bytes:
    """A checksum that is equal for equal elements, NaN included."""
    if numbers.dtype.kind == "f":
        # Adding zero turns -0.0 into 0.0, which is equal to it.
        numbers = np.where(np.isnan(numbers), np.nan, numbers + 0.0).astype(numbers.dtype)
    return _digest(np.ascontiguousarray(numbers).tobytes())


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _statistics(numbers: Array) -> Statistics:
    if numbers.size == 0:
        return Statistics(None, None, None)
    if numbers.dtype.kind != "f":
        return Statistics(
            int(numbers.min()),
            float(numbers.mean(dtype=np.float64)),
            int(numbers.max()),
        )
    nans = int(np.isnan(numbers).sum())
    finite = numbers[np.isfinite(numbers)]
    infs = numbers.size - nans - finite.size
    if finite.size == 0:
        return Statistics(None, None, None, nans, infs)
    # Dividing first keeps the sum of very large numbers finite.
    mean = float(np.sum(finite.astype(np.float64) / finite.size))
    return Statistics(float(finite.min()), mean, float(finite.max()), nans, infs)


def _preview(
    shape: tuple[int, ...],
    dtype: str,
    statistics: Statistics,
    sample: Callable[[Sequence[int], Sequence[int]], Array],
) -> Preview:
    """What to draw of an array; `sample` gets it, from wherever it is."""
    size = math.prod(shape)
    if size <= SMALL:
        return _packed("values", sample(shape, (1,) * len(shape)), (1,) * len(shape))
    if images := _image_shape(shape, dtype, statistics):
        return _images(images, dtype, sample)
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
    sample: Callable[[Sequence[int], Sequence[int]], Array],
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
    numbers = _computable(array)
    # Half precision is no dtype that a browser or Python's struct would know.
    if numbers is None or (numbers.dtype.kind == "f" and numbers.dtype.itemsize < 4):
        numbers = np.asarray(array, np.float32)
    little = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    data = np.ascontiguousarray(little).tobytes()
    return Preview(kind, tuple(array.shape), little.dtype.str, data, steps)


def _strings(array: Array, dtype: str, shape: tuple[int, ...] | None = None) -> ReplicaValue:
    """Describes text or bytes; `array` may be the head of what has the shape."""
    shape = array.shape if shape is None else shape
    items = array.reshape(-1).tolist()
    texts = tuple(_string(item) for item in items[:SMALL])
    return ReplicaValue(
        "string",
        dtype,
        shape,
        texts=texts,
        omitted=math.prod(shape) - len(texts),
        fingerprint=(dtype, shape, _digest(repr(items).encode("utf-8", "backslashreplace"))),
    )


def _string(item: Any) -> str:
    """A string's repr, which has no control characters left in it."""
    if isinstance(item, bytes):
        item = item[: 4 * _MAX_TEXT].decode("utf-8", "backslashreplace")
    return _shortened(repr(str(item)))


def _complex(array: Array, dtype: str) -> ReplicaValue:
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


def _composite(kind: str, value: Any, *, preview: bool) -> ReplicaValue | None:
    """Describes a ragged or sparse tensor or indexed slices by their values."""
    names = {"ragged": "flat_values", "sparse": "values", "slices": "values"}
    inner = _tensor(_tensors.as_tensor(getattr(value, names[kind])), preview=preview)
    if inner is None:
        return None
    if kind == "ragged":
        sides = tuple(None if side is None else int(side) for side in value.shape)
        places = tuple(_fingerprint(splits) for splits in value.nested_row_splits)
        return _with_values("ragged", inner, sides, _ragged_rows(value, inner), places)
    dense = getattr(value, "dense_shape", None)
    shape = None if dense is None else tuple(int(side) for side in _tensors.as_array(dense))
    count = inner.shape[0] if inner.shape else 0
    texts = (f"{count} values set" if kind == "sparse" else f"{count} slices",)
    return _with_values(
        "sparse" if kind == "sparse" else "slices",
        inner,
        shape,
        texts,
        (_fingerprint(value.indices),),
    )


def _with_values(
    kind: Literal["ragged", "sparse", "slices"],
    inner: ReplicaValue,
    shape: tuple[int | None, ...] | None,
    texts: tuple[str, ...],
    places: tuple[Any, ...],
) -> ReplicaValue:
    return ReplicaValue(
        kind,
        inner.dtype,
        shape,
        inner.statistics,
        inner.preview,
        texts + (inner.texts if inner.kind == "string" else ()),
        inner.omitted,
        (kind, shape, inner.fingerprint, places),
    )


def _fingerprint(tensor: Any) -> tuple[Any, ...]:
    described = _tensor(tensor, preview=False)
    return described.fingerprint if described else ()


def _ragged_rows(value: Any, inner: ReplicaValue) -> tuple[str, ...]:
    """How many rows and values; row lengths of a small one."""
    count = inner.shape[0] if inner.shape else 0
    rows = int(value.nrows())
    text = f"{count} values in {rows} rows"
    if rows > 16 or value.ragged_rank != 1:
        return (text,)
    lengths = _tensors.as_array(value.row_lengths()).tolist()
    return (f"{text} of {', '.join(map(str, lengths))}" if lengths else text,)


def _object(value: Any) -> ReplicaValue:
    """The last resort: a type's name and an abridged repr."""
    name = type(value).__name__
    text = _repr(value)
    # An abridged repr does not tell whether two objects are equal.
    told = len(text) < _MAX_TEXT and not text.startswith("<")
    return ReplicaValue(
        "object", name, texts=(text,), fingerprint=(name, text if told else id(value))
    )


def _repr(value: Any) -> str:
    """A repr without addresses or control characters, that cannot fail."""
    text = _guarded(lambda: str(repr(value)), f"<{type(value).__name__}>")
    text = _ADDRESS.sub("", text)
    return _shortened("".join(char if char.isprintable() else " " for char in text))


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _guarded(call: Callable[[], _T], otherwise: _T) -> _T:
    """What a call returns, or something else if it fails.

    A display must show what it can: the values come from anywhere, and one that
    cannot be read (a deleted buffer, an uninitialised variable, a repr with a
    bug) must not hide the others.
    """
    try:
        return call()
    except Exception:
        return otherwise
