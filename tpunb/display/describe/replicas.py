"""The values of the replicas: the leaves of a structure, and each leaf on every replica."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tpunb.display.describe import jax_values, tensorflow_values
from tpunb.display.describe.placement import Placement, placement_of
from tpunb.display.describe.values import (
    PreviewMaker,
    ReplicaValue,
    guarded,
    is_picture,
    limits_of_pixels,
    preview_of,
    preview_of_numbers,
    replica_value,
    short_repr,
)

MAX_SECTIONS = 64
"""The largest number of a nested structure's leaves that are described."""

MAX_VALUES = 8192
"""The largest number of described values of all leaves and replicas, in whole leaves."""

_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a structure before it is described.

    Attributes:
        path: The leaf's place in the structure.
        type_name: The class that holds the replicas' values.
        parts: The value on each replica.
        distributed: Whether there is a part per replica.
        chosen: The ids of the replicas, if only some were chosen.
        is_cut: Whether the parts are pieces of one array, which need not be equal.
    """

    path: str
    type_name: str
    parts: tuple[Any, ...]
    distributed: bool
    chosen: tuple[int, ...] = ()
    is_cut: bool = False


def leaves_of(value: Any) -> tuple[list[Leaf], int]:
    """Return the leaves that are described, and the least number of further leaves."""
    if _why_unread(value):
        return [], 0
    items: list[tuple[str, Any]] = []
    more = _flatten("", value, items, depth=0)
    leaves: list[Leaf] = []

    def capacity(replicas: int) -> int:
        """Return how many leaves of so many replicas still fit; at least one in total."""
        values = sum(len(leaf.parts) for leaf in leaves)
        room = min(MAX_SECTIONS - len(leaves), (MAX_VALUES - values) // max(1, replicas))
        return max(room, 0 if leaves else 1)

    for path, item in items:
        if not capacity(1):
            more += 1
            continue
        parts, left_out = _leaves(path, item)
        room = capacity(len(parts[0].parts))
        more += left_out + max(0, len(parts) - room)
        leaves += parts[:room]
    return leaves, more


def _leaves(path: str, item: Any) -> tuple[list[Leaf], int]:
    """Return the leaves of an item, which may hold a nest on each replica, and how many more."""
    name = _class_of(item)
    components = guarded(lambda: jax_values.parts_of(item), None)
    if components and len(components) == 1:
        return [Leaf(path, name, components, distributed=False)], 0
    components = components or guarded(lambda: tensorflow_values.distributed_components(item), None)
    if not components:
        return [Leaf(path, name, (item,), distributed=False)], 0
    structures: list[list[tuple[str, Any]]] = []
    more = 0
    for component in components:
        inner: list[tuple[str, Any]] = []
        more += _flatten(path, component, inner, depth=0, counting=not structures)
        structures.append(inner)
    paths = [[where for where, _ in inner] for inner in structures]
    is_cut = guarded(lambda: not jax_values.array_of(item).sharding.is_fully_replicated, False)
    if not paths or any(other != paths[0] for other in paths):
        return [Leaf(path, name, components, distributed=True)], 0
    return [
        Leaf(where, name, tuple(inner[number][1] for inner in structures), True, is_cut=is_cut)
        for number, where in enumerate(paths[0])
    ], more


def _flatten(
    path: str, value: Any, leaves: list[tuple[str, Any]], depth: int, *, counting: bool = True
) -> int:
    """Append the leaves of nested tuples, lists and mappings; return how many more there are."""
    items = guarded(lambda: _items(value), None) if depth < _MAX_DEPTH else None
    if items is None:
        leaves.append((path, value))
        return 0
    more = 0
    for key, item in items:
        if len(leaves) < MAX_SECTIONS:
            more += _flatten(path + key(), item, leaves, depth + 1, counting=counting)
        elif counting:
            is_nest = isinstance(item, tuple | list | Mapping) and len(item) > 0
            nested = is_nest and not _is_plain(list(itertools.islice(item, 1)))
            more += len(item) if nested else 1
        else:
            break
    return more


def _items(value: Any) -> Iterable[tuple[Callable[[], str], Any]] | None:
    """Return path steps, computed on demand, and items of a structure; `None` for a leaf."""
    if isinstance(value, Mapping) and value:
        return ((partial(_step, key), item) for key, item in value.items())
    if not isinstance(value, tuple | list):
        known = jax_values.items_of(value)
        return None if known is None else [(partial(str, key), child) for key, child in known]
    # TensorFlow's composite tensors are named tuples: SparseTensorValue and the like.
    if not value or _is_plain(value):
        return None
    names = getattr(value, "_fields", None)
    if names:
        return [(f".{name}".__str__, item) for name, item in zip(names, value, strict=True)]
    return ((partial("[{}]".format, number), item) for number, item in enumerate(value))


def _step(key: Any) -> str:
    return f"[{short_repr(key)}]"


def _is_plain(value: Sequence[Any]) -> bool:
    """Return whether a sequence holds only Python's numbers and strings, so that it is a leaf."""
    return all(isinstance(item, int | float | complex | str | bytes) for item in value)


MAX_PREVIEWS = 64
"""The largest number of replicas whose values get a preview; others have only statistics."""


@dataclass(frozen=True, slots=True)
class Section:
    """One leaf of the structure on all replicas.

    Attributes:
        path: The leaf's place, such as `"['loss'][0]"`; empty for the whole.
        type_name: The class that holds the replicas' values, `"PerReplica"` or
            `"MirroredVariable"`, or the class of a value that is not distributed.
        distributed: Whether there is a value per replica.
        values: The value on each replica; a single value if it is not
            distributed.
        differs: For each replica whether its value differs from the first replica's,
            where NaN equals NaN. False for the pieces of one array.
        chosen: The ids of the replicas, if only some were chosen.
        name: The name of a variable; empty for other values.
        is_cut: Whether the values are unequal pieces of one array.
    """

    path: str
    type_name: str
    distributed: bool
    values: tuple[ReplicaValue, ...]
    differs: tuple[bool, ...]
    chosen: tuple[int, ...] = ()
    name: str = ""
    is_cut: bool = False

    def replica(self, place: int) -> int:
        """Return the id of the replica whose value is at a position."""
        return self.chosen[place] if self.chosen else place

    @property
    def all_equal(self) -> bool:
        """True if there are several replicas, and all hold equal values."""
        return len(self.values) > 1 and not self.is_cut and not any(self.differs)

    @property
    def num_differing(self) -> int:
        """The number of values that differ from the first value."""
        return sum(self.differs)

    @property
    def marks_differing(self) -> bool:
        """True if displays mark the values that differ; else equal values are rarer, and marked."""
        return self.num_differing <= len(self.values) // 2

    @property
    def drawn_values(self) -> tuple[ReplicaValue, ...]:
        """The values that are drawn: a single value if all are equal."""
        return self.values[: 1 if self.all_equal else MAX_PREVIEWS]


@dataclass(frozen=True, slots=True)
class ReplicaValuesDescription:
    """A distributed value, or a nested structure with such values.

    Attributes:
        type_name: The class of the whole, such as `"PerReplica"` or `"dict"`.
        num_replicas: The largest number of replicas of any part; 0 if no part is
            distributed.
        sections: The leaves.
        omitted: The least number of leaves that were left out.
        placement: Where a JAX array or the arrays of a tree are; None for other values.
        unread: Why there are no values; empty if there are.
    """

    type_name: str
    num_replicas: int
    sections: tuple[Section, ...]
    omitted: int = 0
    placement: Placement | None = None
    unread: str = ""


def describe_replica_values(value: Any) -> ReplicaValuesDescription:
    """Describe the value of each replica.

    Large tensors are summarised on their device. Only scalars and a sample of the elements are
    copied to the host.

    Args:
        value: A `PerReplica`, `Mirrored` or other value of `tf.distribute`, a
            distributed variable, a JAX array, a plain value, or tuples, lists and
            mappings of these, or any tree that JAX knows.

    Returns:
        The description. A value that cannot be described is shown by its repr:
        no value makes this function raise an error.
    """
    return describe_leaves(value, *leaves_of(value))


def describe_leaves(value: Any, leaves: Sequence[Leaf], omitted: int) -> ReplicaValuesDescription:
    """Describe a structure with known leaves, as `describe_replica_values` does.

    Args:
        value: The whole.
        leaves: The leaves.
        omitted: The least number of further leaves.
    """
    sections = tuple(_section(leaf) for leaf in leaves)
    return ReplicaValuesDescription(
        type_name=_class_of(value),
        num_replicas=max((len(part.values) for part in sections if part.distributed), default=0),
        sections=sections,
        omitted=omitted,
        placement=guarded(lambda: placement_of(value), None),
        unread=_why_unread(value),
    )


def _why_unread(value: Any) -> str:
    return guarded(lambda: jax_values.why_unread(value), "")


def chosen_ids(targets: Sequence[slice], count: int) -> tuple[int, ...]:
    """Return the ids of chosen replicas, each once.

    Args:
        targets: The replicas, as slices of their ids.
        count: The number of replicas.

    Raises:
        IndexError: No replica is in one of the slices.
    """
    for target in targets:
        if not range(*target.indices(count)):
            is_one = target.stop is not None and target.stop == target.start + 1
            end = "" if target.stop is None else target.stop
            name = str(target.start) if is_one else f"in {target.start}:{end}"
            choices = "0" if count == 1 else f"0 to {count - 1}"
            raise IndexError(f"There is no replica {name}: choose {choices}.")
    return tuple(dict.fromkeys(i for target in targets for i in range(*target.indices(count))))


def describe_chosen_replicas(value: Any, targets: Sequence[slice]) -> ReplicaValuesDescription:
    """Describe the values of some replicas, as `describe_replica_values` does.

    Args:
        value: A value as for all replicas.
        targets: The replicas, as slices of their ids.

    Raises:
        IndexError: No replica is in one of the slices.
    """
    leaves, omitted = leaves_of(value)
    count = max((len(leaf.parts) for leaf in leaves if leaf.distributed), default=0)
    chosen = chosen_ids(targets, count) if count else ()
    for number, leaf in enumerate(leaves):
        if leaf.distributed:
            parts = tuple(leaf.parts[replica] for replica in chosen)
            leaves[number] = replace(leaf, parts=parts, chosen=chosen)
    return describe_leaves(value, leaves, omitted)


def _class_of(value: Any) -> str:
    return guarded(lambda: jax_values.type_name(value), type(value).__name__)


def _limits_of_images(values: Sequence[ReplicaValue]) -> set[tuple[float, float]]:
    """Return the numbers that are drawn as black and as white in the replicas' images."""
    return {
        limits_of_pixels(value.statistics)
        for value in values
        if value.preview is not None
        and value.preview.kind == "images"
        and value.dtype != "uint8"
        and value.statistics is not None
    }


def _section(leaf: Leaf) -> Section:
    values = tuple(_values(leaf.parts, preview_of))
    pictures = {
        (value.dtype, value.shape)
        for value in values
        if value.preview is not None and value.preview.kind == "images"
    }
    # Values side by side must look alike. Do not draw some as pictures, and others of the same
    # shape as numbers.
    if any(
        (value.dtype, value.shape) in pictures
        and value.statistics is not None
        and not is_picture(value.shape, value.dtype, value.statistics)
        for value in values
    ):
        values = tuple(_values(leaf.parts, preview_of_numbers))
    elif len(limits := _limits_of_images(values)) > 1:
        common = min(low for low, _ in limits), max(high for _, high in limits)
        values = tuple(_values(leaf.parts, functools.partial(preview_of, limits=common)))
    differs = tuple(value.fingerprint != values[0].fingerprint for value in values)
    is_cut = leaf.is_cut and any(differs)
    return Section(
        path=leaf.path,
        type_name=leaf.type_name,
        distributed=leaf.distributed,
        values=values,
        differs=(False,) * len(values) if is_cut else differs,
        chosen=leaf.chosen,
        name=guarded(lambda: tensorflow_values.variable_name(leaf.parts[0]), ""),
        is_cut=is_cut,
    )


def _values(parts: tuple[Any, ...], preview: PreviewMaker) -> Iterable[ReplicaValue]:
    """Describe the replicas' values, and large arrays of the host in parallel."""
    # Read variables here, because another thread would not be in the strategy's scope.
    known = [tensorflow_values.read(part) for part in parts]

    def described(part: Any, place: int) -> ReplicaValue:
        return replica_value(part, preview=preview if place < MAX_PREVIEWS else None)

    if not any(guarded(partial(_waits_for_memory, part), False) for part in known):
        return map(described, known, range(len(known)))
    with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1)) as pool:
        return list(pool.map(described, known, range(len(known))))


def _waits_for_memory(part: Any) -> bool:
    """Return whether a part is a large array in the host's memory, read without TensorFlow."""
    if isinstance(part, np.ndarray):
        return part.nbytes > tensorflow_values.LARGE_BYTES
    tensor = tensorflow_values.as_tensor(part)
    return (
        tensor is not None
        and not tensorflow_values.is_symbolic(tensor)
        and tensorflow_values.is_large(tensor)
        and tensorflow_values.host_view(tensor) is not None
    )
