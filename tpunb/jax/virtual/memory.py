"""The arrays that are alive on virtual devices, and the memory that they take on each."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import operator
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tpunb._util.reachable import unpack, walk
from tpunb._util.units import byte_count
from tpunb.jax.virtual.uncomputed import MADE
from tpunb.virtual.per_replica import PerReplica

_MOST_LISTED = 5

_LARGE = 2**20
"""The least bytes of an argument whose copies in each call are reported."""

_MUCH_CODE = 1 / 100
"""The part of the memory in use from which a message names the code of programs."""

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


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """The part of an array on each of its devices.

    Attributes:
        kind: The array's type and sharding, whose ids stay their own as long as they are kept here.
        bytes: The bytes of a part, without padding; 0 in the memory of the host.
        devices: The numbers of the devices.
    """

    kind: tuple[Any, Any]
    bytes: int
    devices: frozenset[int]

    @classmethod
    def of(cls, array: Any) -> _Part:
        sharding, is_here = array.sharding, array.sharding.memory_kind not in _ON_THE_HOST
        size = math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize
        devices = frozenset(device.id for device in sharding.device_set)
        return cls((array.aval, sharding), size if is_here else 0, devices)


class DeviceMemory:
    """What live arrays and the code of compiled programs take on the virtual devices.

    Args:
        client: The client of the devices.
        namespace: The notebook's names.
        code: Returns the bytes of code on each device.
    """

    def __init__(
        self, client: Any, namespace: Mapping[str, Any], code: Callable[[], Sequence[int]]
    ) -> None:
        self._client, self._namespace, self._code = client, namespace, code
        self._parts: dict[tuple[int, int], _Part] = {}
        self._looked = self._bound = self.peak = [0] * client.device_count()
        self._newest: Callable[[], Any] = lambda: None

    def look(self) -> int:
        """Note the peak, and return the bytes on the fullest device, perhaps too many."""
        at_most = self._at_most(self._looked)
        if any(map(operator.gt, at_most, self._looked)):
            self._looked = list(map(max, at_most, self._looked))
            self.in_use()
        return max(at_most)

    def in_use(self, without: Collection[int] = ()) -> list[int]:
        """Return the bytes on each device.

        Args:
            without: The ids of arrays that do not count.
        """
        parts = ((self._part(array), 1) for array in self._counted(without))
        used = self._sum(parts, self._code())
        if not without:
            self.peak = list(map(max, used, self.peak))
        return used

    def arrays(self, device: int | None = None, without: Collection[int] = ()) -> list[LiveArray]:
        """Return the arrays on a device or on all devices with their names, the largest first.

        Args:
            device: The device; None for all.
            without: The ids of arrays that do not count.
        """
        arrays = self._counted(without)
        if device is not None:
            arrays = [array for array in arrays if device in self._part(array).devices]
        return _named(arrays, self._namespace)

    def beside(self, room: int, devices: Collection[int], without: Collection[int] = ()) -> str:
        """Return what takes more than some room on the fullest of some devices; empty if it fits.

        Args:
            room: The bytes that may be in use.
            devices: The devices that run a program.
            without: The ids of the program's own arrays.

        Returns:
            The end of a sentence, and a line for each of the largest arrays.
        """
        at_most = self._at_most([room] * len(self.peak))
        if all(at_most[device] <= room for device in devices):
            return ""
        used, code = self.in_use(without), self._code()
        fullest = max(devices, key=used.__getitem__)
        if used[fullest] <= room:
            return ""
        said = f"other arrays take {byte_count(used[fullest] - code[fullest])} of it"
        if code[fullest] >= _MUCH_CODE * used[fullest]:
            said += f" and the code of compiled programs {byte_count(code[fullest])}"
        return f"{said}:{listed(self.arrays(fullest, without))}"

    def _at_most(self, enough: Sequence[int]) -> list[int]:
        """Return the bytes on each device, perhaps too many. It takes milliseconds.

        JAX lists the newest array first. So what was counted before needs no other look, unless the
        count exceeds what is `enough` on a device.
        """
        arrays, newest = self._client.live_arrays(), self._newest()
        self._newest = weakref.ref(arrays[0]) if arrays else lambda: None
        code = self._code()
        new = list(itertools.takewhile(lambda array: array is not newest, arrays))
        if len(new) < len(arrays):
            self._bound = self._sum(((self._part(array), 1) for array in new), self._bound)
            used = list(map(operator.add, self._bound, code))
            if not any(map(operator.gt, used, enough)):
                return used
        self._bound = self._sum(self._kinds(arrays), [0] * len(code))
        return list(map(operator.add, self._bound, code))

    def _kinds(self, arrays: Sequence[Any]) -> list[tuple[_Part, int]]:
        """Return the different parts of arrays, and how many arrays have each.

        Memory that arrays share counts for each. Equal arrays are counted and not looked at.
        """

        def kinds() -> Iterator[tuple[int, int]]:
            avals, shardings = (
                map(operator.attrgetter(name), arrays) for name in ("aval", "sharding")
            )
            return zip(map(id, avals), map(id, shardings), strict=True)

        counts = collections.Counter(kinds())
        examples = (
            {} if counts.keys() <= self._parts.keys() else dict(zip(kinds(), arrays, strict=True))
        )
        parts = {kind: self._parts.get(kind) or self._part(examples[kind]) for kind in counts}
        self._parts = parts  # without those of arrays that are gone
        return [(parts[kind], count) for kind, count in counts.items()]

    def _part(self, array: Any) -> _Part:
        kind = id(array.aval), id(array.sharding)
        return self._parts.get(kind) or self._parts.setdefault(kind, _Part.of(array))

    def _sum(self, parts: Iterable[tuple[_Part, int]], before: Sequence[int]) -> list[int]:
        """Return the bytes on each device, with those of some parts, each some times."""
        sums: collections.Counter[frozenset[int]] = collections.Counter()
        for part, count in parts:
            sums[part.devices] += count * part.bytes
        used = list(before)
        for devices, size in sums.items():
            for device in devices:
                used[device] += size
        return used

    def _counted(self, without: Collection[int]) -> list[Any]:
        """Return the arrays in the memory of the devices, each memory once."""
        arrays = [array for array in self._client.live_arrays() if self._part(array).bytes]
        return [array for array in _without_views(arrays) if id(array) not in without]


def moved_arrays(
    args: Collection[Any], devices: int, namespace: Mapping[str, Any]
) -> list[LiveArray]:
    """Return the large arguments on one device that each call copies to several, largest first.

    Args:
        args: The arguments of a call.
        devices: The number of devices that run the program.
        namespace: The notebook's names.
    """
    return _named([arg for arg in args if devices > 1 and _is_alone(arg)], namespace)


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
        if pointer not in seen or hasattr(array, MADE):
            counted.append(array)
            seen.add(pointer)
    return counted


def _named(arrays: Collection[Any], namespace: Mapping[str, Any]) -> list[LiveArray]:
    """Return a description of each array with its name in a notebook, the largest first."""
    names = names_of(arrays, namespace) if arrays else {}
    described = []
    for array in arrays:
        part, shape = _Part.of(array), ",".join(map(str, array.shape))
        text = f"{array.dtype}[{shape}]"
        described.append(LiveArray(names.get(id(array), ""), text, part.bytes, part.devices))
    return sorted(described, key=lambda array: array.bytes, reverse=True)


def names_of(arrays: Collection[Any], namespace: Mapping[str, Any]) -> dict[int, str]:
    """Return the names of arrays in a notebook, by id: `x`, `params['w']`, `model.kernel`.

    Args:
        arrays: The arrays.
        namespace: The notebook's names.
    """
    wanted = {id(array) for array in arrays}
    found: dict[int, str] = {}
    named = ((name, value) for name, value in namespace.items() if not name.startswith("_"))
    waiting = collections.deque(named)
    for name, value in walk(waiting):
        if id(value) in wanted:
            found[id(value)] = name
        elif isinstance(value, PerReplica):
            waiting.append((name, value.array))
        elif not _has_no_names(value):
            waiting.extend(unpack(name, value))
    return found


def _has_no_names(value: Any) -> bool:
    """Return whether a value is code, or an object of JAX or tpunb, whose parts are private."""
    kinds = (type, type(sys), type(_has_no_names))
    of = type(value).__module__.partition(".")[0]
    return isinstance(value, kinds) or of in {"jax", "jaxlib", "tpunb"}
