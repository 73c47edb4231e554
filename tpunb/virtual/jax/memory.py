"""The arrays that are alive on virtual devices, and the memory that they take on each."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tpunb._util.units import byte_count
from tpunb.virtual.jax.per_replica import PerReplica

_MOST_VALUES = 10_000
"""The most values to search for the names of arrays."""

_MOST_LISTED = 5

_LARGE = 2**20
"""The least bytes of an argument whose copies in each call are reported."""

_ON_THE_HOST = frozenset({"pinned_host", "unpinned_host"})


@dataclasses.dataclass(frozen=True, slots=True)
class LiveArray:
    """An array that is alive on the devices.

    Attributes:
        name: Its name in the notebook; empty if it has none.
        text: Its type and shape: `"float32[1024,1024]"`.
        bytes: Its bytes on each device that has a part of it.
        devices: The numbers of these devices.
    """

    name: str
    text: str
    bytes: int
    devices: frozenset[int]

    @property
    def phrase(self) -> str:
        """The type and the size: `"float32[1024,1024], 4 MiB on each of 8 devices"`."""
        count = len(self.devices)
        where = f" on each of {count} devices" if count > 1 else ""
        return f"{self.text}, {byte_count(self.bytes)}{where}"


def live_arrays(
    client: Any, namespace: Mapping[str, Any], without: Collection[int] = ()
) -> list[LiveArray]:
    """Return the arrays in the memory of a client's devices, the largest first.

    Args:
        client: The client.
        namespace: The notebook's names.
        without: The ids of arrays that do not count.
    """
    arrays = _without_views([array for array in client.live_arrays() if _is_on_devices(array)])
    arrays = [array for array in arrays if id(array) not in without]
    names = names_of(arrays, namespace)
    listed = [_described(array, names.get(id(array), "")) for array in arrays]
    return sorted(listed, key=lambda array: array.bytes, reverse=True)


def moved_arrays(
    args: Collection[Any], devices: int, namespace: Mapping[str, Any]
) -> list[LiveArray]:
    """Return the large arguments on one device that each call copies to several, largest first.

    Args:
        args: The arguments of a call.
        devices: The number of devices that run the program.
        namespace: The notebook's names.
    """
    arrays = [arg for arg in args if devices > 1 and _is_alone(arg)]
    names = names_of(arrays, namespace) if arrays else {}
    found = [_described(array, names.get(id(array), "")) for array in arrays]
    return sorted(found, key=lambda array: array.bytes, reverse=True)


def _is_alone(arg: Any) -> bool:
    """Return whether an argument is a large array on one device."""
    sharding = getattr(arg, "sharding", None)
    return getattr(arg, "nbytes", 0) >= _LARGE and len(getattr(sharding, "device_set", ())) == 1


def listed(arrays: Sequence[LiveArray]) -> str:
    """Return a line for each of the first arrays, after a line break."""
    return "".join(
        f"\n  {array.name or 'an array without a name'}: {array.phrase}"
        for array in arrays[:_MOST_LISTED]
    )


def bytes_on(arrays: Collection[LiveArray], device: int) -> int:
    """Return the bytes that arrays take on a device. Padding is not counted."""
    return sum(array.bytes for array in arrays if device in array.devices)


def _is_on_devices(array: Any) -> bool:
    return not array.is_deleted() and array.sharding.memory_kind not in _ON_THE_HOST


def _without_views(arrays: list[Any]) -> list[Any]:
    """Leave out arrays of one device that share another array's memory, such as `shard.data`.

    JAX lists the newest array first, and an array is older than its views.
    """
    seen: set[int] = set()
    alone = [array for array in arrays if len(array.sharding.device_set) == 1]
    if not alone:
        return arrays
    counted = [array for array in arrays if len(array.sharding.device_set) > 1]
    for array in counted:
        seen.update(shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards)
    for array in reversed(alone):
        pointer = array.unsafe_buffer_pointer()
        if pointer not in seen:
            counted.append(array)
            seen.add(pointer)
    return counted


def _described(array: Any, name: str) -> LiveArray:
    part = array.sharding.shard_shape(array.shape)
    size = math.prod(part) * array.dtype.itemsize
    devices = frozenset(device.id for device in array.sharding.device_set)
    shape = ",".join(map(str, array.shape))
    return LiveArray(name, f"{array.dtype}[{shape}]", size, devices)


def names_of(arrays: Collection[Any], namespace: Mapping[str, Any]) -> dict[int, str]:
    """Return the names of arrays in a notebook, by id: `x`, `params['w']`, `model.kernel`.

    Args:
        arrays: The arrays.
        namespace: The notebook's names.
    """
    wanted = {id(array) for array in arrays}
    found: dict[int, str] = {}
    pending = [(value, name) for name, value in namespace.items() if not name.startswith("_")]
    visited: set[int] = set()
    for value, name in pending:  # it grows: breadth first, so that the shortest name wins
        if id(value) in wanted:
            found.setdefault(id(value), name)
        if id(value) in visited or len(pending) > _MOST_VALUES:
            continue
        visited.add(id(value))
        if isinstance(value, PerReplica):
            pending.append((value.array, name))
        elif isinstance(value, dict):
            pending += [(item, f"{name}[{key!r}]") for key, item in value.items()]
        elif isinstance(value, list | tuple):
            pending += [(item, f"{name}[{place}]") for place, item in enumerate(value)]
        elif hasattr(value, "__dict__") and not _is_of_python(value):
            pending += [(item, f"{name}.{key}") for key, item in vars(value).items()]
    return found


def _is_of_python(value: Any) -> bool:
    """Return whether a value has attributes of code and not of data."""
    kinds = (type, type(sys), type(_is_of_python))
    return isinstance(value, kinds) or type(value).__module__.partition(".")[0] in {"jax", "jaxlib"}
