"""The places of JAX arrays: the part on each device. Only metadata is read, never the elements."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpunb.display.describe import jax_values
from tpunb.virtual.per_replica import PerReplica

_OF_PMAP = "_internal_pmap_axis_name"

Range = tuple[int, int]
"""The first position on an axis, and the position after the last."""

Held = tuple[int, "Holder", tuple[Range, ...]]
"""A device's number, the device, and the positions of its part on each axis."""

DELETED = "It was deleted, or donated to a function. This shows where it was."
PLANNED = "This is the plan for an array that does not exist yet."


@dataclass(frozen=True, slots=True)
class Holder:
    """A device that holds a part of an array.

    Attributes:
        name: The device, such as `"TPU 3"`; `"core 3"` on a mesh without devices.
        position: Its coordinates in the mesh, one for each axis; empty without a mesh.
        process: The process that has the device, if it is another process; else None.
    """

    name: str
    position: tuple[int, ...] = ()
    process: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an array, which one device holds, or several have copies of.

    Attributes:
        ranges: The positions on each axis.
        bytes: The bytes of its elements.
        holders: The devices, in the order of their numbers.
    """

    ranges: tuple[Range, ...]
    bytes: int
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class ArrayPlacement:
    """An array that is cut over devices, or copied to them.

    Attributes:
        shape: The shape of the whole array.
        dtype: The name of its type.
        bytes: The bytes of its elements, without padding.
        parts: Its parts, in the order of their positions.
        mesh: The name and the size of each mesh axis; empty without a mesh.
        spec: For each axis of the array, the mesh axes that cut it; empty without a mesh.
        others: The number of further devices, which hold no part.
        memory: The kind of memory if it is not the devices' own, such as `"pinned_host"`.
        notes: Sentences that a reader needs.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    parts: tuple[Part, ...]
    mesh: tuple[tuple[str, int], ...] = ()
    spec: tuple[tuple[str, ...], ...] = ()
    others: int = 0
    memory: str = ""
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """The number of devices that hold a part."""
        return len({holder.name for part in self.parts for holder in part.holders})

    @property
    def copies(self) -> int:
        """The number of devices with each part; the largest number if they differ."""
        return max((len(part.holders) for part in self.parts), default=0)

    @property
    def ranges(self) -> tuple[tuple[Range, ...], ...]:
        """The different positions on each axis, in order: several if the axis is cut."""
        axes = zip(*(part.ranges for part in self.parts), strict=True)
        return tuple(tuple(sorted(set(axis))) for axis in axes)

    @property
    def copied_along(self) -> tuple[str, ...]:
        """The mesh axes along which every device has the same part."""
        cutting = {axis for axes in self.spec for axis in axes}
        return tuple(name for name, size in self.mesh if size > 1 and name not in cutting)


@dataclass(frozen=True, slots=True)
class LeafPlacement:
    """An array in a tree.

    Attributes:
        path: Its place in the tree, such as `"['dense']['kernel']"`.
        shape: Its shape.
        dtype: The name of its type.
        bytes: The bytes of the whole array.
        on_each: The bytes on each device that holds a part.
        parts: The number of its parts.
        copies: The number of devices with each part.
        spec: For each axis, the mesh axes that cut it, as JAX writes them; may be empty.
        where: The device, if it is a single device.
        everywhere: Whether every device of the tree holds all of it.
        note: What a reader needs to know, such as that it was deleted.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    on_each: int
    parts: int
    copies: int
    spec: str = ""
    where: str = ""
    everywhere: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class TreePlacement:
    """The arrays of a tree, such as a model's parameters.

    Attributes:
        leaves: The arrays, in the tree's order.
        devices: The number of devices that hold any of them.
        bytes: The bytes of all arrays, each counted once.
        on_each: The bytes on the device that holds the most.
        replicated: The bytes of the arrays that every device holds completely.
        idle: The number of further devices, which hold none of them.
        others: The number of leaves that are not JAX arrays.
    """

    leaves: tuple[LeafPlacement, ...]
    devices: int
    bytes: int
    on_each: int
    replicated: int
    idle: int = 0
    others: int = 0


Placement = ArrayPlacement | TreePlacement


def placement_of(value: Any) -> Placement | None:
    """Return where a JAX array is, or the arrays of a tree; None for other values.

    A `jax.ShapeDtypeStruct` with a sharding counts as an array. A Flax model counts as its state.
    """
    if (array := _placed(value)) is not None:
        return _of_array(array)
    leaves = jax_values.leaves_with_paths(value)
    if any(isinstance(leaf, PerReplica) for _, leaf in leaves):
        return None  # the values of replicas are shown, and not their places
    arrays = [(path, array) for path, leaf in leaves if (array := _placed(leaf)) is not None]
    return _of_tree(arrays, len(leaves) - len(arrays)) if arrays else None


def _placed(value: Any) -> Any:
    """Return the array of a value, a `jax.Ref`, or a plan with a sharding; else None."""
    array = jax_values.array_of(value)
    if array is not None:
        return array
    jax = sys.modules.get("jax")
    kinds = [getattr(jax, name, ()) for name in ("ShapeDtypeStruct", "Ref")]
    known = any(isinstance(value, kind) for kind in kinds)
    return value if known and getattr(value, "sharding", None) is not None else None


def _is_plan(array: Any) -> bool:
    return isinstance(array, sys.modules["jax"].ShapeDtypeStruct)


def _of_array(array: Any) -> ArrayPlacement:
    shape, sharding = tuple(array.shape), array.sharding
    mesh = _mesh(sharding)
    itemsize = array.dtype.itemsize
    return ArrayPlacement(
        shape,
        str(array.dtype),
        itemsize * math.prod(shape),
        parts_with_holders(_holders(sharding, shape), itemsize),
        () if mesh is None else tuple((_axis(name), size) for name, size in mesh.shape.items()),
        _spec(sharding, len(shape)),
        _idle(sharding),
        _memory(sharding),
        tuple(_notes(array)),
    )


def parts_with_holders(held: Iterable[Held], itemsize: int) -> tuple[Part, ...]:
    """Return the parts of an array, in the order of their positions, from the parts of devices."""
    found: dict[tuple[Range, ...], list[tuple[int, Holder]]] = {}
    for number, holder, ranges in held:
        found.setdefault(ranges, []).append((number, holder))
    return tuple(
        Part(
            ranges,
            itemsize * math.prod(end - begin for begin, end in ranges),
            tuple(holder for _, holder in sorted(found[ranges], key=lambda each: each[0])),
        )
        for ranges in sorted(found)
    )


def _holders(sharding: Any, shape: Sequence[int]) -> Iterable[Held]:
    """Yield the part of each device."""
    here = set() if is_abstract(_mesh(sharding)) else sharding.addressable_devices
    if hasattr(sharding, "spec"):
        parts = _named_parts(sharding, shape)
    else:
        indices = sharding.devices_indices_map(tuple(shape)).items()
        parts = ((device, (), tuple(map(_range, index, shape))) for device, index in indices)
    for device, position, ranges in parts:
        if isinstance(device, int):
            yield device, Holder(f"core {device}", position), ranges
        else:
            process = None if device in here else device.process_index
            yield device.id, Holder(jax_values.device_name(device), position, process), ranges


def _named_parts(
    sharding: Any, shape: Sequence[int]
) -> Iterable[tuple[Any, tuple[int, ...], tuple[Range, ...]]]:
    """Yield each device of a mesh, its position, and its part, as JAX cuts arrays: in equal parts.

    JAX refuses to list the parts of some arrays, such as partial sums. A mesh without devices has
    numbers.
    """
    mesh = sharding.mesh
    devices = None if is_abstract(mesh) else mesh.devices
    parts = cut_over_mesh(shape, _axes_of_spec(sharding, len(shape)), dict(mesh.shape))
    for number, (position, ranges) in enumerate(parts):
        yield (number if devices is None else devices[position]), position, ranges


def cut_over_mesh(
    shape: Sequence[int], spec: Sequence[Sequence[str]], sizes: Mapping[str, int]
) -> Iterator[tuple[tuple[int, ...], tuple[Range, ...]]]:
    """Yield each position in a mesh, and the part of an array there.

    Args:
        shape: The shape of the array.
        spec: For each axis of the array, the mesh axes that cut it.
        sizes: The size of each mesh axis.
    """
    for position in itertools.product(*map(range, sizes.values())):
        at = dict(zip(sizes, position, strict=True))
        ranges = []
        for axes, size in zip(spec, shape, strict=True):
            count, place = 1, 0
            for axis in axes:
                count, place = count * sizes[axis], place * sizes[axis] + at[axis]
            length = -(-size // count)
            begin = min(place * length, size)
            ranges.append((begin, min(begin + length, size)))
        yield position, tuple(ranges)


def _part_shape(sharding: Any, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the largest part."""
    if not hasattr(sharding, "spec"):
        return tuple(sharding.shard_shape(tuple(shape)))
    return tuple(map(_parted, shape, _counts(sharding, len(shape))))


def _parted(size: int, count: int) -> int:
    return -(-size // count)


def _counts(sharding: Any, rank: int) -> list[int]:
    """Return the number of parts along each axis of an array, by its spec."""
    sizes = dict(sharding.mesh.shape)
    return [math.prod(sizes[axis] for axis in axes) for axes in _axes_of_spec(sharding, rank)]


def _range(index: Any, size: int) -> Range:
    if not isinstance(index, slice):  # of an axis that `jax.pmap` has removed
        return int(index), int(index) + 1
    begin, end, _ = index.indices(size)
    return begin, end


def _mesh(sharding: Any) -> Any:
    """Return the mesh of a sharding, or None."""
    return getattr(sharding, "mesh", None)


def is_abstract(mesh: Any) -> bool:
    """Return whether a mesh of JAX has no devices."""
    return isinstance(mesh, getattr(sys.modules["jax"].sharding, "AbstractMesh", ()))


def _spec(sharding: Any, rank: int) -> tuple[tuple[str, ...], ...]:
    """Return the mesh axes that cut each axis of an array; empty without names."""
    if not hasattr(sharding, "spec"):
        return ()
    return tuple(tuple(map(_axis, axes)) for axes in _axes_of_spec(sharding, rank))


def _axes_of_spec(sharding: Any, rank: int) -> list[tuple[str, ...]]:
    axes = [_names(entry) for entry in jax_values.spec_of(sharding)]
    return axes + [()] * (rank - len(axes))


def _names(entry: Any) -> tuple[str, ...]:
    axes = entry if isinstance(entry, tuple) else (entry,)
    return tuple(axis for axis in axes if isinstance(axis, str))


def _axis(name: str) -> str:
    """Return the name of a mesh axis for a reader. `jax.pmap` makes an axis of its own."""
    return "pmap" if name == _OF_PMAP else str(name)


def _idle(sharding: Any) -> int:
    """Return the number of devices that hold no part; 0 if it is not known."""
    if is_abstract(_mesh(sharding)):
        return 0
    devices = sharding.device_set
    client = getattr(next(iter(devices), None), "client", None)
    return max(int(getattr(client, "device_count", lambda: 0)()) - len(devices), 0)


def _memory(sharding: Any) -> str:
    kind = getattr(sharding, "memory_kind", None) or ""
    return kind if kind.endswith("_host") and kind != "unpinned_host" else ""


def _notes(array: Any) -> Iterable[str]:
    if _is_plan(array):
        yield PLANNED
        yield from _undivided(array)
    elif _is_deleted(array):
        yield DELETED
    if unreduced := getattr(getattr(array.sharding, "spec", None), "unreduced", None):
        yield f"Its parts are partial sums, still to be added over {', '.join(sorted(unreduced))}."


def _undivided(plan: Any) -> Iterable[str]:
    """Yield a sentence for each axis that JAX will not cut, because its parts are not equal."""
    if hasattr(plan.sharding, "spec"):
        yield from not_equal(plan.shape, _counts(plan.sharding, len(plan.shape)))


def not_equal(shape: Sequence[int], counts: Sequence[int]) -> Iterator[str]:
    """Yield a sentence for each axis of a shape that cannot be cut into a number of equal parts."""
    for axis, (size, count) in enumerate(zip(shape, counts, strict=True)):
        if size % count:
            why = f"axis {axis} of {size} cannot be cut into {count} equal parts"
            yield f"JAX will refuse it: {why}."


def _of_tree(arrays: Sequence[tuple[str, Any]], others: int) -> TreePlacement:
    """Describe the arrays of a tree. An array that is in several places counts once."""
    held: Counter[Any] = Counter()
    first: dict[int, str] = {}
    for path, array in arrays:
        if id(array) not in first and not _is_deleted(array):
            each = _on_each(array)
            held.update(dict.fromkeys(_devices(array.sharding), each))
        first.setdefault(id(array), path)
    devices = len(held)
    leaves = tuple(_leaf(path, array, devices, first[id(array)]) for path, array in arrays)
    counted = [leaf for leaf in leaves if not leaf.note]
    return TreePlacement(
        leaves,
        devices,
        sum(leaf.bytes for leaf in counted),
        max(held.values(), default=0),
        sum(leaf.bytes for leaf in counted if leaf.everywhere),
        max(_idle(arrays[0][1].sharding) + len(_devices(arrays[0][1].sharding)) - devices, 0),
        others,
    )


def _leaf(path: str, array: Any, devices: int, first: str) -> LeafPlacement:
    shape, sharding = tuple(array.shape), array.sharding
    holders, part = _devices(sharding), _part_shape(sharding, shape)
    parts = math.prod(
        -(-size // length) if length else 1 for size, length in zip(shape, part, strict=True)
    )
    note = "deleted, or donated" if _is_deleted(array) else ""
    return LeafPlacement(
        path,
        shape,
        str(array.dtype),
        array.dtype.itemsize * math.prod(shape),
        _on_each(array),
        parts,
        max(len(holders) // parts, 1),
        _spec_text(sharding),
        str(holders[0]) if len(holders) == 1 else "",
        parts == 1 and len(holders) == devices > 1,
        note or ("" if first == path else f"the same array as {first}"),
    )


def _spec_text(sharding: Any) -> str:
    """Return a spec as code: `P('data', None)`."""
    if not hasattr(sharding, "spec"):
        return ""
    entries = ", ".join(map(repr, jax_values.spec_of(sharding)))
    return f"P({entries})".replace(_OF_PMAP, "pmap")


def _devices(sharding: Any) -> list[str]:
    """Return the names of the devices that hold a part."""
    mesh = _mesh(sharding)
    if is_abstract(mesh):
        return [f"core {number}" for number in range(math.prod(mesh.shape.values()))]
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    return [jax_values.device_name(device) for device in devices]


def _on_each(array: Any) -> int:
    part = _part_shape(array.sharding, array.shape)
    return int(array.dtype.itemsize * math.prod(part))


def _is_deleted(array: Any) -> bool:
    return hasattr(array, "is_deleted") and bool(array.is_deleted())
