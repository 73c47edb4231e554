"""Everything that a cell reaches through the values that it reads, and that may change there."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable
from types import CellType, FunctionType
from typing import Any

from tpunb._util.code_names import find_globals, mentions
from tpunb._util.functions import unwrap
from tpunb._util.reachable import expression, is_searched, items_of, look_into, walk
from tpunb._util.user_code import is_users_code


class Reached:
    """The functions and objects that a cell reaches.

    Args:
        values: The values that the cell reads, each with its name.
        namespace: The notebook's names.

    Attributes:
        read: By name of the notebook, a function that reads it as a global.
        written: By name of the notebook, a function that assigns it as a global.
        owners: The objects that may change in place, each with an expression for it.
    """

    def __init__(self, values: Iterable[tuple[str, Any]], namespace: dict[str, Any]) -> None:
        self.read: dict[str, str] = {}
        self.written: dict[str, str] = {}
        self.owners: list[tuple[str, Any]] = []
        self._namespace = namespace
        waiting = collections.deque(values)
        for path, value in walk(waiting):
            if isinstance(value, FunctionType):
                names = value.__code__.co_freevars
                self.owners += zip(names, value.__closure__ or (), strict=True)
                if is_users_code(value.__code__):
                    self._note_globals(value)
            elif _may_change(value):
                self.owners.append((path, value))
            waiting.extend(look_into(path, value))

    def _note_globals(self, function: FunctionType) -> None:
        mentioned, names = mentions(function.__code__), function.__globals__
        if names is self._namespace:
            shown = function.__qualname__.rpartition("<locals>.")[2]
            for name in find_globals(mentioned, names):
                self.read.setdefault(name, shown)
            for name in mentioned.written:
                self.written.setdefault(name, shown)
        elif mentioned.written:
            self.owners.append((f"{function.__module__}", names))


def _may_change(value: Any) -> bool:
    """Return whether what an object holds may change in place."""
    fixed = (tuple, frozenset, FunctionType)
    return is_searched(value) and not isinstance(value, fixed) and not unwrap(value)


class Contents:
    """What objects hold now, so that it can be put back.

    Args:
        owners: The objects, each with an expression for it.
        namespace: The notebook's names, which count as one more object.
    """

    def __init__(self, owners: list[tuple[str, Any]], namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._before = [(path, owner, dict(items_of(owner))) for path, owner in owners]
        self._before.append(("", namespace, dict(namespace)))

    def put_back(self, is_lost: Callable[[Any], bool]) -> list[str]:
        """Put back what objects held if they hold a lost value now.

        Args:
            is_lost: Whether a value is lost when the cell ends.

        Returns:
            An expression for each place that held a lost value.
        """
        lost = []
        for path, owner, before in self._before:
            changed = [
                key
                for key, value in tuple(items_of(owner))
                if (key not in before or before[key] is not value) and is_lost(value)
            ]
            if changed:
                _put(owner, before, changed)
            lost += [
                key if owner is self._namespace else expression(path, owner, key)
                for key in changed
                if not _is_cached(owner, key)
            ]
        return lost


def _put(owner: Any, before: dict[Any, Any], lost: list[Any]) -> None:
    """Let an object hold again what it held under the lost keys; of a list, all items."""
    if isinstance(owner, set):
        owner.clear()
        owner.update(before.values())
        return
    if isinstance(owner, list | collections.deque):
        owner.clear()
        owner.extend(before.values())
        return
    kind = type if isinstance(owner, type) else object
    for key in lost:
        is_new = key not in before
        if isinstance(owner, dict) and is_new:
            del owner[key]
        elif isinstance(owner, dict):
            owner[key] = before[key]
        elif isinstance(owner, CellType) and is_new:
            del owner.cell_contents
        elif isinstance(owner, CellType):
            owner.cell_contents = before[key]
        elif is_new:
            kind.__delattr__(owner, key)
        else:
            kind.__setattr__(owner, key, before[key])


def _is_cached(owner: Any, name: Any) -> bool:
    """Return whether an attribute is computed again when it is missing."""
    kinds = type(owner).__mro__
    return any(isinstance(vars(kind).get(name), functools.cached_property) for kind in kinds)
