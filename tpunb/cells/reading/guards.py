"""Guards: the conditions under which a trace still fits, with quick checks of these conditions."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

from tpunb._util.reachable import PLAIN

MISSING: Any = type("Missing", (), {"__repr__": lambda _: "missing"})()


@dataclass(frozen=True)
class Change:
    """A difference from the time of the trace.

    Attributes:
        subject: The changed thing, as text.
        before: The former value; `MISSING` if there was none.
        now: The present value.
        entry: Identifies the place that holds the value.
    """

    subject: str
    before: Any
    now: Any
    entry: Hashable


def is_plain(value: Any) -> bool:
    """Return whether values of this kind are compared by equality rather than by identity."""
    return type(value) in PLAIN


def _same(before: Any, now: Any) -> bool:
    """Return whether one value may replace another in a trace."""
    if before is now:
        return True
    kind = type(before)
    if kind is not type(now):
        return False
    if kind is float or kind is complex:
        return repr(before) == repr(now)  # as text, nan equals nan, and -0.0 differs from 0.0
    if kind in PLAIN:
        return bool(before == now)
    if kind is tuple:
        return len(before) == len(now) and all(map(_same, before, now))
    return (  # a reloaded module has defined the same function again
        kind is FunctionType
        and before.__globals__ is now.__globals__
        and before.__closure__ is None is now.__closure__
        and before.__kwdefaults__ is None is now.__kwdefaults__
        and _same(before.__defaults__, now.__defaults__)
        and before.__code__ == now.__code__
    )


class NamesGuard:
    """A guard of names: globals, attributes, or any names that `read` returns as a mapping.

    Args:
        owner: The object that has the names. It is kept alive, so that no other object gets its id.
        read: Returns the names of the owner with their values.
        describe: Describes a name.
        names: The names to guard, whether they exist or not.
        wanted: Names that must not be added; None if `names` lists all of them.
        any_name: Whether no name at all may be added.
    """

    def __init__(
        self,
        owner: Any,
        read: Callable[[Any], Mapping[str, Any]],
        describe: Callable[[str], str],
        names: tuple[str, ...],
        wanted: frozenset[str] | None = None,
        *,
        any_name: bool = False,
    ) -> None:
        self.owner = owner
        self.names = names
        self._any_name = any_name
        self._read = read
        self._describe = describe
        self._wanted = wanted
        self.renew()

    def renew(self) -> None:
        """Take the present values as the values that must not change."""
        has = self._read(self.owner)
        self._size = len(has)
        self._values = [has.get(name) for name in self.names]
        self._missing = frozenset(name for name in self.names if name not in has)

    def holds(self) -> bool:
        """Return whether certainly nothing has changed, by one comparison for each name."""
        has = self._read(self.owner)
        if self._wanted is not None and len(has) != self._size:
            return False
        return all(map(operator.is_, map(has.get, self.names), self._values))

    def changes(self) -> list[Change]:
        """Return the changes, if there are any."""
        has = self._read(self.owner)
        changes = []
        for name, value in zip(self.names, self._values, strict=True):
            before, now = MISSING if name in self._missing else value, has.get(name, MISSING)
            if not _same(before, now):
                changes.append(self._change(name, before, now))
        if self._wanted is not None and len(has) != self._size:
            more = open_names(has) if self._any_name else has.keys() & self._wanted
            new = sorted(more.difference(self.names))
            changes += [self._change(name, MISSING, has[name]) for name in new]
        return changes

    def _change(self, name: str, before: Any, now: Any) -> Change:
        return Change(self._describe(name), before, now, (id(self.owner), name))


def open_names(has: Mapping[str, Any]) -> set[str]:
    """Return the names that code may read by a computed name: all but Python's own."""
    return {name for name in has if isinstance(name, str) and not name.startswith("__")}


class ItemsGuard:
    """A guard of the items of a list, a dict, a set or a deque."""

    def __init__(self, owner: Any, path: str) -> None:
        self.owner = owner
        self._path = path
        self._has_keys = isinstance(owner, dict)
        self.renew()

    def renew(self) -> None:
        """Take the present items as the items that must not change."""
        self._items = tuple(self.owner.values() if self._has_keys else self.owner)
        self._keys = tuple(self.owner) if self._has_keys else ()

    def holds(self) -> bool:
        """Return whether certainly nothing has changed."""
        owner, items = self.owner, self._items
        if len(owner) != len(items):
            return False
        if not self._has_keys:
            return all(map(operator.is_, owner, items))
        return all(map(operator.is_, owner, self._keys)) and all(
            map(operator.is_, owner.values(), items)
        )

    def changes(self) -> list[Change]:
        """Return the changes, if there are any."""
        owner, keys, items = self.owner, self._keys, self._items
        if len(owner) != len(items) or not all(map(_same, keys, owner)):
            whole = dict(zip(keys, items, strict=True)) if self._has_keys else items
            return [Change(f"`{self._path}`", whole, owner, items_entry(owner))]
        values = owner.values() if self._has_keys else owner
        for number, (before, now) in enumerate(zip(items, values, strict=True)):
            if not _same(before, now):
                key = keys[number] if self._has_keys else number
                return [Change(f"`{self._path}[{key!r}]`", before, now, items_entry(owner))]
        return []


_SAMPLES = 1 << 12


class ArrayGuard:
    """A guard of an array's numbers, which can change in place, by their checksum.

    Attributes:
        owner: The array. It is kept alive, so that no other object gets its id.
        path: The expression by which the cell reaches the array.
        whole: Whether all numbers are compared, or only some thousands of them.
    """

    def __init__(self, owner: np.ndarray[Any, Any], path: str, *, whole: bool) -> None:
        self.owner = owner
        self.path = path
        self.whole = whole
        self.renew()

    def renew(self) -> None:
        """Take the present numbers as the numbers that must not change."""
        self._before = self._sum()

    def holds(self) -> bool:
        """Return whether nothing has changed."""
        return self._sum() == self._before

    def changes(self) -> list[Change]:
        """Return the changes, if there are any."""
        if self.holds():
            return []
        # The former numbers are not kept.
        return [Change(f"`{self.path}`", self.owner, self.owner, items_entry(self.owner))]

    def _sum(self) -> tuple[Hashable, ...]:
        array = self.owner
        if array.nbytes == 0:
            return array.shape, array.dtype, 0
        numbers = array if self.whole else array.flat[:: max(1, array.size // _SAMPLES)]
        data = np.ascontiguousarray(numbers).view(np.uint8)
        return array.shape, array.dtype, zlib.crc32(data.data)


def items_entry(owner: Any) -> Hashable:
    """Return an identifier of a container's contents among the things that can change."""
    return (id(owner), "[]")


Guard = NamesGuard | ItemsGuard | ArrayGuard
