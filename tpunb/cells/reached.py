"""Everything that a cell reaches through the values that it reads, and that may change there."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from types import CellType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from tpunb._util.attributes import attribute, has_attributes
from tpunb._util.functions import wrapped
from tpunb._util.user_code import is_users_class, is_users_code, is_users_module
from tpunb.cells.code_names import globals_named, mentions

_MOST = 20_000  # objects to visit
_PLAIN = (str, bytes, int, float, complex, type(None), range)
_LIBRARIES = frozenset({"IPython", "jax", "jaxlib", "numpy", "tensorflow", "tpunb"})
"""The packages whose objects are not searched."""

_CHANGING = (dict, list, set, collections.deque)


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
        self._waiting = collections.deque(values)
        seen: dict[int, Any] = {}  # kept alive, so that no id is used twice
        while self._waiting and len(seen) < _MOST:
            path, value = self._waiting.popleft()
            if not isinstance(value, _PLAIN) and id(value) not in seen:
                seen[id(value)] = value
                self._visit(path, value)

    def _visit(self, path: str, value: Any) -> None:
        if isinstance(value, FunctionType):
            self._function(path, value)
        elif isinstance(value, ModuleType):
            if is_users_module(value):
                self._object(path, value)
        elif isinstance(value, type):
            for base in filter(is_users_class, value.__mro__):
                self._object(base.__name__, base)
        elif isinstance(value, (*_CHANGING, tuple, frozenset, CellType)):
            if not isinstance(value, tuple | frozenset):
                self.owners.append((path, value))
            self._waiting += [(_item(path, value, key), each) for key, each in _items(value)]
        elif inner := wrapped(value) or _decorated(value):
            self._waiting += [(path, part) for part in inner]
        elif type(value).__module__.partition(".")[0] not in _LIBRARIES:
            if is_users_class(type(value)):
                self._waiting.append((type(value).__name__, type(value)))
            self._object(path, value)

    def _object(self, path: str, value: Any) -> None:
        self.owners.append((path, value))
        self._waiting += [(_item(path, value, name), each) for name, each in _items(value)]

    def _function(self, path: str, function: FunctionType) -> None:
        closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._waiting += closure
        self._waiting += [(path, each) for each in function.__defaults__ or ()]
        self._waiting += [(path, each) for each in (function.__kwdefaults__ or {}).values()]
        self._waiting += [(path, each) for each in vars(function).values()]
        if not is_users_code(function.__code__):
            return
        mentioned, names = mentions(function.__code__), function.__globals__
        read = globals_named(mentioned, names)
        if names is self._namespace:
            shown = function.__qualname__.rpartition("<locals>.")[2]
            self.read.update((name, shown) for name in read if name not in self.read)
            self.written.update((n, shown) for n in mentioned.written if n not in self.written)
        elif mentioned.written:
            self.owners.append((f"{function.__module__}", names))
        self._waiting += [(name, names[name]) for name in read if name in names]


def _decorated(value: Any) -> tuple[Any, ...]:
    """Return the function that a decorator's object, such as that of `jax.jit`, calls."""
    inner = attribute(value, "__wrapped__")
    return () if inner is None else (inner,)


def _items(owner: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what an object holds, with its key, its number or the name of its attribute."""
    if isinstance(owner, dict):
        yield from owner.items()
    elif isinstance(owner, (*_CHANGING, tuple, frozenset)):
        yield from enumerate(owner)
    elif isinstance(owner, CellType):
        with contextlib.suppress(ValueError):  # not bound yet
            yield "", owner.cell_contents
    else:
        yield from tuple(attribute(owner, "__dict__", {}).items())
        for kind in () if isinstance(owner, type) else type(owner).__mro__:
            for name, member in tuple(vars(kind).items()):
                if isinstance(member, MemberDescriptorType) and has_attributes(owner, name):
                    yield name, attribute(owner, name)


def _item(path: str, owner: Any, key: Any) -> str:
    """Return the expression for what an object holds."""
    if isinstance(owner, CellType):
        return path
    if isinstance(owner, (*_CHANGING, tuple, frozenset)):
        return f"{path}[{key!r}]"
    return f"{path}.{key}"


class Contents:
    """What objects hold now, so that it can be put back.

    Args:
        owners: The objects, each with an expression for it.
        namespace: The notebook's names, which count as one more object.
    """

    def __init__(self, owners: list[tuple[str, Any]], namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._before = [(path, owner, dict(_items(owner))) for path, owner in owners]
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
                for key, value in tuple(_items(owner))
                if (key not in before or before[key] is not value) and is_lost(value)
            ]
            if changed:
                _put(owner, before, changed)
            lost += [
                key if owner is self._namespace else _item(path, owner, key)
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
