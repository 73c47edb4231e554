"""What the values on each replica look like."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tpunb.display.describe import _tensors
from tpunb.display.describe.leaves import Leaf, leaves_of
from tpunb.display.describe.previews import (
    SMALL,
    Preview,
    PreviewMaker,
    is_picture,
    preview_of,
    preview_of_numbers,
)
from tpunb.display.describe.statistics import Statistics
from tpunb.display.describe.values import ReplicaValue, guarded, replica_value

__all__ = [
    "MAX_PREVIEWS",
    "SMALL",
    "Preview",
    "ReplicaValue",
    "ReplicaValuesDescription",
    "Section",
    "Statistics",
    "describe_chosen_replicas",
    "describe_leaves",
    "describe_replica_values",
]

MAX_PREVIEWS = 64
"""Replicas whose values get a preview; the others have statistics only."""


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
        chosen: The ids of the replicas, if only some were chosen.
        name: Of a variable; empty for other values.
    """

    path: str
    type_name: str
    distributed: bool
    values: tuple[ReplicaValue, ...]
    differs: tuple[bool, ...]
    chosen: tuple[int, ...] = ()
    name: str = ""

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
        The description. A value that cannot be described is shown by its repr: this
        never raises because of a value.
    """
    return describe_leaves(type(value).__name__, *leaves_of(value))


def describe_leaves(
    type_name: str, leaves: Sequence[Leaf], omitted: int
) -> ReplicaValuesDescription:
    """Describes a structure whose leaves are known already, as `describe_replica_values` does.

    Args:
        type_name: The class of the whole.
        leaves: Its leaves.
        omitted: How many more leaves it has, at least.
    """
    sections = tuple(_section(leaf) for leaf in leaves)
    return ReplicaValuesDescription(
        type_name=type_name,
        num_replicas=max((len(part.values) for part in sections if part.distributed), default=0),
        sections=sections,
        omitted=omitted,
    )


def describe_chosen_replicas(value: Any, targets: Sequence[slice]) -> ReplicaValuesDescription:
    """Describes what some of the replicas hold, as `describe_replica_values` does.

    Args:
        value: A value as for all replicas.
        targets: Which replicas, as slices of their ids.

    Raises:
        IndexError: One of the slices has no replica that exists.
    """
    leaves, omitted = leaves_of(value)
    count = max((len(leaf.parts) for leaf in leaves if leaf.distributed), default=0)
    found = [range(*target.indices(count)) for target in targets]
    if count and not all(found):
        raise IndexError(f"There are replicas 0 to {count - 1}.")
    ids = [replica for some in found for replica in some]
    chosen = tuple(dict.fromkeys(ids))
    described = describe_leaves(
        type(value).__name__, [_only(leaf, chosen) for leaf in leaves], omitted
    )
    sections = tuple(
        replace(section, chosen=chosen) if section.distributed else section
        for section in described.sections
    )
    return replace(described, sections=sections)


def _only(leaf: Leaf, chosen: tuple[int, ...]) -> Leaf:
    if not leaf.distributed:
        return leaf
    return replace(leaf, parts=tuple(leaf.parts[replica] for replica in chosen))


def _section(leaf: Leaf) -> Section:
    values = tuple(_values(leaf.parts, preview_of))
    if _are_pictures_in_part(values):
        values = tuple(_values(leaf.parts, preview_of_numbers))
    return Section(
        path=leaf.path,
        type_name=leaf.type_name,
        distributed=leaf.distributed,
        values=values,
        differs=tuple(value.fingerprint != values[0].fingerprint for value in values),
        name=guarded(lambda: _tensors.variable_name(leaf.parts[0]), ""),
    )


def _are_pictures_in_part(values: Sequence[ReplicaValue]) -> bool:
    """Whether some of the values look like pictures, and others of the same shape do not.

    Side by side they have to be drawn alike.
    """
    return any(
        value.preview is not None
        and value.preview.kind == "images"
        and any(
            (other.dtype, other.shape) == (value.dtype, value.shape)
            and other.statistics is not None
            and not is_picture(other.shape, other.dtype, other.statistics)
            for other in values
        )
        for value in values
    )


def _values(parts: tuple[Any, ...], preview: PreviewMaker) -> Iterable[ReplicaValue]:
    """Describes the replicas' values, large arrays of the host in parallel."""
    # Variables are read here: another thread would not be in the strategy's scope.
    known = [_read(part) for part in parts]

    def described(part: Any, place: int) -> ReplicaValue:
        return replica_value(part, preview=preview if place < MAX_PREVIEWS else None)

    if not any(map(_waits_for_memory, known)):
        return map(described, known, range(len(known)))
    with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1)) as pool:
        return list(pool.map(described, known, range(len(known))))


def _read(part: Any) -> Any:
    """The tensor of a tensor or variable; anything else as it is."""
    tensor = guarded(lambda: _tensors.as_tensor(part), None)
    return part if tensor is None else tensor


def _waits_for_memory(part: Any) -> bool:
    """Whether a part is an array that takes a while to read, without TensorFlow."""
    if isinstance(part, np.ndarray):
        return part.nbytes > _tensors.LARGE_BYTES
    return guarded(lambda: _is_large_here(part), False)


def _is_large_here(part: Any) -> bool:
    tensor = _tensors.as_tensor(part)
    if tensor is None or _tensors.is_symbolic(tensor) or not _tensors.is_large(tensor):
        return False
    return _tensors.host_view(tensor) is not None
