"""The place of an array that does not exist yet: its shape, a mesh and a spec are enough.

JAX is not needed. A spec is a `jax.sharding.PartitionSpec`, or a tuple with the same entries.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tpunb.display.describe import jax_values
from tpunb.display.describe.placement import (
    ArrayPlacement,
    Held,
    Holder,
    cut_over_mesh,
    is_abstract,
    not_equal,
    parts_with_holders,
)
from tpunb.errors import TpunbError, did_you_mean

_MOST_CORES = 1024
_AXES = 'Such as mesh={"data": 4, "model": 2}.'


def planned_placement(shape: Any, spec: Any, mesh: Any, dtype: Any = "float32") -> ArrayPlacement:
    """Describe how an array would be cut over a mesh.

    Args:
        shape: The shape of the array.
        spec: For each axis, the name of the mesh axis that cuts it, a tuple of names, or None.
        mesh: The size of each mesh axis by name, or a mesh of JAX.
        dtype: The type of the elements.

    Raises:
        TpunbError: The spec does not fit the mesh or the shape, or an argument is wrong.
    """
    sides, sizes = _shape(shape), _sizes(mesh)
    axes = _axes(spec, sides, sizes)
    counts = [math.prod(sizes[name] for name in names) for names in axes]
    itemsize, name = _type(dtype)
    return ArrayPlacement(
        sides,
        name,
        itemsize * math.prod(sides),
        parts_with_holders(_held(sides, axes, sizes, mesh), itemsize),
        tuple(sizes.items()),
        tuple(axes),
        notes=tuple(not_equal(sides, counts)),
    )


def spec_text(spec: Any) -> str:
    """Return a spec as code: `P('data', None)`."""
    entries = [repr(entry) for entry in _entries(spec)]
    return f"P({', '.join(entries)})"


def _held(
    shape: Sequence[int], axes: Sequence[tuple[str, ...]], sizes: Mapping[str, int], mesh: Any
) -> Iterator[Held]:
    devices = None
    if "jax" in sys.modules and not isinstance(mesh, Mapping) and not is_abstract(mesh):
        devices = mesh.devices
    for number, (position, ranges) in enumerate(cut_over_mesh(shape, axes, sizes)):
        name = f"core {number}"
        if devices is not None:
            name = jax_values.device_name(devices[position])
        yield number, Holder(name, position), ranges


def _shape(shape: Any) -> tuple[int, ...]:
    try:
        sides = tuple(int(side) for side in shape)
    except TypeError:
        sides = (-1,)
    if any(side < 1 for side in sides):
        raise TpunbError(f"{shape!r} is not the shape of an array.", fix="Such as (64, 128).")
    return sides


def _sizes(mesh: Any) -> dict[str, int]:
    shape = mesh if isinstance(mesh, Mapping) else getattr(mesh, "shape", None)
    if not isinstance(shape, Mapping) or not shape:
        raise TpunbError(f"{mesh!r} is not a mesh.", fix=_AXES)
    for name, size in shape.items():
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1:
            raise TpunbError(f"The mesh axis {name!r} has no size {size!r}.", fix=_AXES)
    if math.prod(shape.values()) > _MOST_CORES:
        raise TpunbError(
            f"The mesh has {math.prod(shape.values())} cores, and a picture shows at most "
            f"{_MOST_CORES}.",
            fix=_AXES,
        )
    return {str(name): int(size) for name, size in shape.items()}


def _entries(spec: Any) -> list[Any]:
    entries = getattr(spec, "partitions", spec)  # JAX 0.7 has no `partitions`
    if entries is None:
        return []
    return (
        list(entries)
        if isinstance(entries, Iterable) and not isinstance(entries, str)
        else [entries]
    )


def _axes(spec: Any, shape: Sequence[int], sizes: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Return the mesh axes that cut each axis of an array."""
    axes = [_names(entry, sizes) for entry in _entries(spec)]
    if len(axes) > len(shape):
        raise TpunbError(
            f"{spec_text(spec)} has {len(axes)} entries, and the array has {len(shape)} axes.",
            fix="Give an entry for each axis of the array, or fewer: the others stay whole.",
        )
    used = [name for names in axes for name in names]
    if twice := next((name for name in used if used.count(name) > 1), None):
        raise TpunbError(
            f"{spec_text(spec)} has the mesh axis {twice!r} more than once.",
            fix="A mesh axis cuts an array once. Leave one of them out, or put None there.",
        )
    return axes + [()] * (len(shape) - len(axes))


def _names(entry: Any, sizes: Mapping[str, int]) -> tuple[str, ...]:
    names = entry if isinstance(entry, tuple | list) else () if entry is None else (entry,)
    for name in names:
        if name not in sizes:
            raise TpunbError(
                f"The mesh has no axis {name!r}.",
                fix=did_you_mean(name, sizes, f"Its axes are {', '.join(map(repr, sizes))}.")
                if isinstance(name, str)
                else "An entry of a spec is the name of a mesh axis, a tuple of names, or None.",
            )
    return tuple(names)


def _type(dtype: Any) -> tuple[int, str]:
    """Return the bytes and the name of a type. NumPy alone has no `bfloat16`."""
    if str(dtype) in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return (2 if str(dtype) == "bfloat16" else 1), str(dtype)
    try:
        known = np.dtype(dtype)
    except TypeError:
        raise TpunbError(f"{dtype!r} is not a type.", fix='Such as dtype="float32".') from None
    return known.itemsize, str(known)
