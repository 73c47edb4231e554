"""Batches for a run of steps in JAX: read from any iterable, and divided over the devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tpunb.cells.batch import BATCH_PER_REPLICA, Batch, indivisible
from tpunb.errors import CellError
from tpunb.jax.cells.arguments import PARTS, flattened, is_cut, placed, substituted

_INFINITE = -1
"""`tf.data.INFINITE_CARDINALITY`, the size of a dataset that never ends."""


class Batches:
    """Data that is read batch by batch; each batch is divided along its first axis.

    Args:
        source: Arrays, or a tuple or dict of them; or any iterable of global batches of arrays or
            tensors: a list, a generator, a `DataLoader`, a `tf.data.Dataset`, a Grain dataset. An
            iterator continues from its position.
        mesh: The mesh of all devices.
        repeat: Whether arrays repeat.

    Attributes:
        left: The number of batches left; None if unknown, infinity if the data has no end.
        examples: The number of examples in the last batch; None if they cannot be counted.

    Raises:
        CellError: The source is none of these, or cannot be divided among the replicas.
    """

    def __init__(self, source: Any, mesh: jax.sharding.Mesh, *, repeat: bool) -> None:
        self._mesh = mesh
        self.examples: int | None = None
        self._iterator, self.left = _opened(source, mesh.size, repeat=repeat)
        self._peeked: Batch | None = None
        self._last: Any = None

    def peek(self) -> Batch | None:
        """Return the next batch, and let `next` return it again."""
        self._peeked = self._peeked or self.next()
        return self._peeked

    def next(self) -> Batch | None:
        """Return the next batch, or None at the end of the data."""
        if self._peeked is not None:
            peeked, self._peeked = self._peeked, None
            return peeked
        try:
            value = next(self._iterator)
        except StopIteration:
            return None
        if self.left is not None:
            self.left -= 1
        self._last = value = substituted(value, self._divided)
        leaves, _ = flattened(value)
        size = leaves[0].shape[0] if leaves else 0
        self.examples = size or None
        return Batch(value, (size // self._mesh.size,) * self._mesh.size)

    def described(self, names: Sequence[str] = ()) -> str:
        """Describe the last batch's dtypes and shapes, and how `--as` names a tuple's parts."""
        text = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in flattened(self._last)[0])
        if len(names) != 1 or not isinstance(self._last, tuple | list):
            return text
        letters = ",".join("xyz"[: len(self._last)])
        return f"({text}), a tuple: `--as {letters}` names its parts"

    def _divided(self, leaf: Any) -> jax.Array:
        """Divide an array of a global batch into equal parts along the first axis."""
        if isinstance(leaf, jax.Array) and is_cut(leaf, self._mesh):
            return leaf
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        if (
            not jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended)
            and array.dtype.kind in "OSU"
        ):
            raise CellError(
                f"A batch holds a value of type {type(leaf).__name__}, which is not an array of "
                "numbers.",
                fix="Yield arrays, or tuples and dicts of arrays.",
            )
        if array.ndim == 0:
            raise CellError(
                f"A single number cannot be divided among {self._mesh.size} replicas.",
                fix="Yield global batches, whose first axis has the examples.",
            )
        if array.shape[0] % self._mesh.size:
            raise indivisible(array.shape[0], self._mesh.size)
        return placed(array, self._mesh, PARTS)


def _opened(source: Any, replicas: int, *, repeat: bool) -> tuple[Iterator[Any], float | None]:
    """Return an iterator over global batches, and the number of batches it has left."""
    leaves, _ = flattened(source)
    are_arrays = leaves and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves)
    if are_arrays and not isinstance(source, list):
        return _batched(source, replicas, repeat=repeat)
    if isinstance(source, Iterator):
        return source, None
    is_batches = isinstance(source, Iterable) and not isinstance(source, str | bytes | Mapping)
    if not is_batches or hasattr(source, "to_numpy"):
        raise CellError(
            f"A {type(source).__name__} holds no batches.",
            fix="Give arrays, or an iterable of global batches.",
        )
    return iter(source), _size_of(source)


def _size_of(source: Any) -> float | None:
    """Return the number of batches of an iterable, if it tells."""
    if callable(cardinality := getattr(source, "cardinality", None)):  # a tf.data.Dataset
        count = int(cardinality())
        return math.inf if count == _INFINITE else count if count >= 0 else None
    try:
        return len(source)
    except TypeError:
        return None


def _batched(arrays: Any, replicas: int, *, repeat: bool) -> tuple[Iterator[Any], float]:
    """Return global batches of arrays, in their order."""
    shapes = [tuple(leaf.shape) for leaf in flattened(arrays)[0]]
    sizes = {shape[:1] for shape in shapes}
    if len(sizes) != 1 or () in sizes:
        raise CellError(
            f"Arrays that are fed together need one length along their first axis: "
            f"{', '.join(map(str, shapes))}.",
            fix="Give as many labels as examples.",
        )
    ((size,),) = sizes
    if size < replicas:
        raise CellError(
            f"{size} examples are too few for {replicas} replicas.",
            fix="Give at least one to each replica, or connect to fewer cores.",
        )
    if not repeat and size % replicas:
        raise indivisible(size, replicas)  # every example is read once
    batch = min(BATCH_PER_REPLICA * replicas, size // replicas * replicas)
    ends = range(batch, size + 1, batch) if repeat else [*range(batch, size, batch), size]
    on_host = substituted(arrays, np.asarray)

    def part(begin: int, end: int) -> Any:
        return substituted(on_host, lambda leaf: leaf[begin:end])

    bounds = list(itertools.pairwise([0, *ends]))
    chosen = itertools.cycle(bounds) if repeat else bounds
    return (part(*each) for each in chosen), math.inf if repeat else len(bounds)
