"""The values that a cell for JAX reads, as arguments of a function over all devices."""

from __future__ import annotations

import builtins
import dataclasses
import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tpunb.cells.reading.source import PROVIDED, CellSource
from tpunb.cells.reading.undefined_names import undefined_name
from tpunb.errors import CellError
from tpunb.jax.cells.context import AXIS
from tpunb.virtual.per_replica import PerReplica

WHOLE = PartitionSpec()
PARTS = PartitionSpec(AXIS)


class Form(enum.Enum):
    """How a replica gets an array.

    Attributes:
        WHOLE: Each replica gets the whole array.
        PART: Each replica gets the part on its device. All parts are passed as one
            array, one after the other along the first axis.
        NUMBER: The same for parts that are single numbers, which have no axis of their own.
    """

    WHOLE = "whole"
    PART = "part"
    NUMBER = "number"


@dataclass(frozen=True)
class Slot:
    """A placeholder for the n-th argument, or for the n-th result of a form.

    Attributes:
        index: Its position.
        form: How the replica gets it.
        shape: The shape that it has on a replica.
        gathered: The name among whose results it is, if the name is concatenated.
    """

    index: int
    form: Form
    shape: tuple[int, ...]
    gathered: str = ""


@dataclass(frozen=True)
class _Cut:
    """The shape and the sharding of an array that was cut over the devices."""

    shape: tuple[int, ...]
    sharding: jax.sharding.Sharding

    def put(self, array: jax.Array) -> jax.Array | None:
        """Return an array of parts that follow each other, cut like this; nothing is copied.

        Return None if several devices have the same part of it, and their copies differ.
        """
        parts = {shard.device: shard.data for shard in array.addressable_shards}
        devices = self.sharding.addressable_devices_indices_map(self.shape)
        first: dict[str, jax.Array] = {}
        for device, index in devices.items():
            copy = first.setdefault(str(index), parts[device])
            if copy is not parts[device] and not _have_equal_bits(copy, parts[device]):
                return None
        return jax.make_array_from_single_device_arrays(
            self.shape, self.sharding, [parts[device] for device in devices]
        )


def _have_equal_bits(one: jax.Array, other: jax.Array) -> bool:
    """Return whether two arrays of one type and shape are the same, NaNs included."""
    if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    first, second = (np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (one, other))
    return np.array_equal(first, second)


_HOST = ("pinned_host", "unpinned_host")

_COMPARED = (Slot, bool, int, str, type(None))
"""Classes whose equal objects lead to the same trace; of others, only the same object does."""


@dataclass
class Arguments:
    """The arguments of a call, and where they belong.

    Attributes:
        arrays: The arrays, each over all devices.
        forms: How the replicas get each array.
        owners: For each array, the name whose value it belongs to.
        nests: By name, the value with slots instead of the arrays.
        before: For each array, the shape and the sharding of an array that was cut before.
    """

    arrays: list[jax.Array] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    nests: dict[str, Any] = field(default_factory=dict)
    before: list[_Cut | None] = field(default_factory=list)

    @property
    def layout(self) -> tuple[Any, ...]:
        """The slots, trees and other values on which a trace depends, besides the shapes."""
        return tuple((name, *_layout(nest)) for name, nest in self.nests.items())

    @property
    def cuts(self) -> dict[str, str]:
        """How sharded arrays are cut, in words, by name."""
        return {
            owner: f"{list(array.shape)} cut into {list(part_shape(array))} on each device"
            for owner, array in zip(self.owners, self.before, strict=True)
            if array is not None
        }

    @property
    def values(self) -> tuple[Any, ...]:
        """The arguments of the cell's function: for each name with arrays, their tree."""
        return tuple(self.by_name(self.arrays).values())

    def by_name(self, items: Sequence[Any]) -> dict[str, Any]:
        """Return an item for each array as trees, like the values of the names that have arrays."""
        trees = {}
        for name in dict.fromkeys(self.owners):
            leaves, tree = flattened(self.nests[name])
            chosen = [items[leaf.index] if isinstance(leaf, Slot) else None for leaf in leaves]
            trees[name] = tree.unflatten(chosen)
        return trees

    def copied(self, names: Collection[str]) -> Arguments:
        """Return the same arguments with copies of the arrays of some names."""
        owned = zip(self.owners, self.arrays, strict=True)
        return self.with_arrays([copied(a) if owner in names else a for owner, a in owned])

    def with_arrays(self, arrays: list[jax.Array]) -> Arguments:
        """Return the same arguments with other arrays."""
        return dataclasses.replace(self, arrays=arrays)

    def with_others(self, others: Arguments) -> Arguments:
        """Return these arguments, followed by others."""
        shift = len(self.arrays)

        def shifted(leaf: Any) -> Any:
            is_slot = isinstance(leaf, Slot)
            return dataclasses.replace(leaf, index=leaf.index + shift) if is_slot else leaf

        moved = {name: substituted(nest, shifted) for name, nest in others.nests.items()}
        return Arguments(
            [*self.arrays, *others.arrays],
            [*self.forms, *others.forms],
            [*self.owners, *others.owners],
            {**self.nests, **moved},
            [*self.before, *others.before],
        )


def _layout(nest: Any) -> tuple[Any, ...]:
    leaves, tree = flattened(nest)
    return tree, *(leaf if isinstance(leaf, _COMPARED) else id(leaf) for leaf in leaves)


def values_of(
    cell: CellSource, read: Collection[str], namespace: Mapping[str, Any], bound: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of the names that are read in a cell; `bound` hides the notebook's names.

    Raises:
        CellError: A name is not defined.
    """
    values = {}
    for name in dict.fromkeys((*cell.names.reads, *sorted(read))):
        if name in PROVIDED:
            continue
        if name in bound:
            values[name] = bound[name]
        elif name in namespace:
            values[name] = namespace[name]
        elif name in cell.names.certain and not hasattr(builtins, name):
            raise undefined_name(cell, name, namespace, bound)
    return values


def arguments_of(
    values: Mapping[str, Any], mesh: jax.sharding.Mesh, *, with_numbers: bool = False
) -> Arguments:
    """Return the arguments for the values of names.

    Args:
        values: The values by name.
        mesh: The cells' mesh.
        with_numbers: Whether Python's numbers are arguments too, because steps change them.
    """
    arguments = Arguments()
    for name, value in values.items():
        leaves, tree = flattened(value)
        for place, leaf in enumerate(map(_on_devices, leaves)):
            _refuse_deleted(name, leaf)
            if with_numbers:
                _refuse_large(name, leaf)
            placed = _placed(leaf, mesh, with_numbers=with_numbers)
            if placed is None:
                continue
            array, form = placed
            is_cut = isinstance(leaf, jax.Array) and form is Form.PART
            shape = part_shape(leaf) if is_cut else getattr(leaf, "shape", ())
            leaves[place] = Slot(len(arguments.arrays), form, shape)
            arguments.arrays.append(array)
            arguments.forms.append(form)
            arguments.owners.append(name)
            arguments.before.append(_Cut(leaf.shape, leaf.sharding) if is_cut else None)
        arguments.nests[name] = tree.unflatten(leaves)
    return arguments


def _refuse_deleted(name: str, leaf: Any) -> None:
    array = leaf.array if isinstance(leaf, PerReplica) else leaf
    if isinstance(array, jax.Array) and array.is_deleted():
        raise CellError(
            f"`{name}` has an array that was deleted, or donated to another call.",
            fix=f"Make it again, or keep a copy before the call: {name} = jax.tree.map(jnp.copy, "
            f"{name}).",
        )


def _refuse_large(name: str, leaf: Any) -> None:
    kind = jax.dtypes.canonicalize_dtype(np.int64)
    if type(leaf) is int and leaf.bit_length() >= 8 * kind.itemsize:
        raise CellError(
            f"`{name}` goes from step to step as {kind.name}, and {leaf} is too large for it.",
            fix=f"Give it a smaller number, or an array: {name} = jnp.float32({name}).",
        )


def flattened(value: Any) -> tuple[list[Any], Any]:
    """Return the leaves and the tree of a value; a value that JAX cannot flatten is a leaf."""
    if isinstance(value, Iterator):  # a future JAX will read it
        return [value], jax.tree.structure(0)
    try:
        leaves, tree = jax.tree.flatten(value)
    except (TypeError, ValueError):  # keys of a dict that cannot be sorted
        return [value], jax.tree.structure(0)
    return leaves, tree


def substituted(nest: Any, replace: Callable[[Any], Any]) -> Any:
    """Return a value with every leaf replaced."""
    leaves, tree = flattened(nest)
    return tree.unflatten([replace(leaf) for leaf in leaves])


def copied(arrays: Any) -> Any:
    """Return copies of arrays; the steps may overwrite the originals."""
    shardings = jax.tree.map(lambda array: array.sharding, arrays)
    return jax.device_put(arrays, shardings, may_alias=False)


def part_shape(array: jax.Array | _Cut) -> tuple[int, ...]:
    """Return the shape of an array's part on a device."""
    return tuple(array.sharding.shard_shape(array.shape))


def _on_devices(leaf: Any) -> Any:
    """Return an array that is in the hosts' memory on its devices; other values as they are."""
    kind = leaf.sharding.memory_kind if isinstance(leaf, jax.Array) else None
    if kind not in _HOST:
        return leaf
    return jax.device_put(leaf, leaf.sharding.with_memory_kind("device"))


def _placed(
    leaf: Any, mesh: jax.sharding.Mesh, *, with_numbers: bool
) -> tuple[jax.Array, Form] | None:
    """Return a leaf as an array over all devices; None if it is not an argument."""
    if isinstance(leaf, PerReplica):
        if leaf.is_whole:
            return placed(leaf.array, mesh, WHOLE), Form.WHOLE
        return placed(leaf.array, mesh, PARTS), Form.PART if leaf.shape else Form.NUMBER
    if isinstance(leaf, jax.Array):
        if leaf.sharding == NamedSharding(mesh, PARTS):  # a batch; the rest costs some time
            return leaf, Form.PART
        if is_cut(leaf, mesh):
            return joined(leaf, mesh), Form.PART
        return placed(leaf, mesh, WHOLE), Form.WHOLE
    if isinstance(leaf, np.ndarray | np.generic):
        is_number = np.issubdtype(leaf.dtype, np.number) or leaf.dtype == bool
        return (placed(leaf, mesh, WHOLE), Form.WHOLE) if is_number else None
    if with_numbers and type(leaf) in (int, float, complex):
        # An array of JAX's weak type, as a Python number that `jax.jit` gets.
        return placed(jax.numpy.asarray(leaf), mesh, WHOLE), Form.WHOLE
    return None


def is_cut(array: jax.Array, mesh: jax.sharding.Mesh) -> bool:
    """Return whether an array is on all devices of a mesh, and not whole on each."""
    return (
        array.ndim > 0
        and not array.sharding.is_fully_replicated
        and array.sharding.device_set == set(mesh.devices.flat)
    )


def placed(array: Any, mesh: jax.sharding.Mesh, spec: PartitionSpec) -> jax.Array:
    """Return an array over the devices of a mesh, cut by a spec."""
    sharding = NamedSharding(mesh, spec)
    if isinstance(array, jax.Array) and array.sharding == sharding:
        return array
    return jax.device_put(array, sharding)


def joined(array: jax.Array, mesh: jax.sharding.Mesh) -> jax.Array:
    """Return an array in which the parts on the devices follow each other; nothing is copied."""
    shards = {shard.device: shard.data for shard in array.addressable_shards}
    parts: Sequence[Any] = [shards[device] for device in mesh.devices.flat]
    first, *others = part_shape(array)
    shape = (first * len(parts), *others)
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, PARTS), parts)
