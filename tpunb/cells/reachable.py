"""What traced code reaches beyond its own names: guards for everything it may read.

Followed by name: an attribute counts where some code that is reached mentions it, and
where an object that is reached has it. That needs no knowledge of which object an
expression stands for, so aliases, arguments and `self` are followed as well.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import os
import sys
import types
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any

import numpy as np

from tpunb._util.user_code import is_users_class, is_users_code, is_users_module

from .dependency_guards import (
    MISSING,
    ArrayGuard,
    Guard,
    ItemsGuard,
    NamesGuard,
    attributes_of,
    is_plain,
    items_entry,
    open_names,
    slots_of,
)
from .library_objects import layers_of, read_by_library
from .mentioned_names import Mentions, imported, mentions, users_modules

__all__ = ["reached"]

_MOST = 20_000  # objects to visit
_LARGE = 1000  # items: a larger container counts as one object
_LARGEST_ARRAY = 1 << 14  # bytes that are compared in no time
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_NESTS = (list, tuple, dict)
_FUNCTION = ("__code__", "__defaults__", "__kwdefaults__")


def reached(
    roots: Mapping[str, Any],
    code: types.CodeType,
    namespace: dict[str, Any],
    ignored: Collection[Hashable] = (),
) -> list[Guard]:
    """The guards for what a cell reaches.

    Args:
        roots: What it closes over, by name; these values themselves are not guarded.
        code: The cell's own.
        namespace: The notebook's.
        ignored: Entries that are not guarded, by `Change.entry`.
    """
    attributes, any_name = set(mentions(code).attributes), mentions(code).any_attribute
    while True:
        walk = _Walk(attributes, ignored, any_name=any_name)
        walk.start(roots, code, namespace)
        if walk.attributes == attributes and walk.any_name == any_name:
            return walk.guards
        # Of code that was reached: objects may have them, too.
        attributes, any_name = walk.attributes, walk.any_name


class _Walk:
    """One way through all that is reached, for one set of attributes."""

    def __init__(
        self, attributes: Collection[str], ignored: Collection[Hashable], *, any_name: bool
    ) -> None:
        self._ignored = ignored
        self._wants_any = self.any_name = any_name  # names that are computed may be any
        self._namespace: Mapping[str, Any] = {}
        self._wanted = frozenset(attributes)
        self.attributes = set(attributes)
        self.guards: list[Guard] = []
        self._seen: dict[int, Any] = {}  # held: no id is used twice while this runs
        self._waiting: collections.deque[tuple[str, Any]] = collections.deque()
        self._has_all_modules = False

    def start(
        self, roots: Mapping[str, Any], code: types.CodeType, namespace: dict[str, Any]
    ) -> None:
        for path, value in roots.items():
            if isinstance(value, _NESTS):  # known by its contents
                self._add_items(path, value)
            else:
                self._waiting.append((path, value))
        self._namespace = namespace
        found = mentions(code)
        self._globals("the cell", found.by_string + _any_global(found, namespace), namespace)
        self._add_imports(code, namespace)
        self._add_environment(code)
        while self._waiting and len(self._seen) < _MOST:
            path, value = self._waiting.popleft()  # what the cell names itself comes first
            if not is_plain(value) and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._visit(path, value)

    def _visit(self, path: str, value: Any) -> None:
        if isinstance(value, types.FunctionType):
            self._function(path, value)
        elif isinstance(value, types.ModuleType):
            if is_users_module(value):
                self._attributes(path, value, {"__getattr__"})
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, _CONTAINERS):
            self._container(path, value)
        elif isinstance(value, np.ndarray):
            self._array(path, value)
        elif isinstance(value, contextvars.ContextVar):
            self._guard(value, _value_of, lambda _: f"`{path}`", ("value",))
            self._waiting.append((path, value.get(None)))
        elif (inner := _wrapped(value)) is not None:
            self._waiting += [(path, each) for each in inner]
        elif not _is_traced_by_itself(value):
            self._instance(path, value)

    # Functions

    def _function(self, path: str, function: types.FunctionType) -> None:
        name = function.__name__
        closed = _closure(function)  # a library's too: what it wraps may be the user's
        self._waiting += closed.items()
        self._add_wrapped(name, function)
        if not is_users_code(function.__code__):
            return
        self._guard(
            function, _closure, lambda read: f"`{read}`, which `{name}` closes over,", tuple(closed)
        )
        self._guard(function, _function_parts, lambda part: _part(path, part), _FUNCTION)
        found = mentions(function.__code__)
        self.attributes |= found.attributes
        self.any_name |= found.any_attribute
        namespace = function.__globals__
        self._globals(f"`{name}`", found.globals + _any_global(found, namespace), namespace)
        self._waiting += [(f"{path}()", each) for each in function.__defaults__ or ()]
        self._waiting += [(f"{path}()", each) for each in (function.__kwdefaults__ or {}).values()]
        self._add_imports(function.__code__, namespace)
        self._add_environment(function.__code__)

    def _globals(self, reader: str, names: tuple[str, ...], namespace: dict[str, Any]) -> None:
        self._guard(namespace, _itself, lambda name: f"`{name}`, which {reader} reads,", names)
        self._waiting += [(name, namespace[name]) for name in names if name in namespace]

    def _add_wrapped(self, path: str, value: Any) -> None:
        """What a decorator keeps; TensorFlow's are objects rather than functions."""
        if (wrapped := attributes_of(value).get("__wrapped__")) is not None:
            self._waiting.append((path, wrapped))

    def _add_imports(self, code: types.CodeType, namespace: Mapping[str, Any]) -> None:
        self._waiting += imported(mentions(code), namespace)
        if mentions(code).any_module and not self._has_all_modules:
            self._has_all_modules = True
            self._waiting += users_modules()

    def _add_environment(self, code: types.CodeType) -> None:
        if {"environ", "getenv"} & {*mentions(code).attributes, *mentions(code).globals}:
            names = tuple(os.environ)
            self._guard(os.environ, _environment, lambda name: f"`os.environ[{name!r}]`", names,
                        wanted=mentions(code).attributes)  # fmt: skip

    # Objects

    def _attributes(self, path: str, owner: Any, more: Collection[str] = ()) -> None:
        """Guards attributes that an object, a class or a module has itself."""
        has = attributes_of(owner)
        wanted = self._wanted.union(more) if more else self._wanted
        any_name = self._wants_any and self._may_be_any(owner)
        found = has.keys() & wanted | (open_names(has) if any_name else set())
        names = tuple(sorted(found))
        self._guard(owner, attributes_of, lambda name: f"`{path}.{name}`", names,
                    wanted=wanted, any_name=any_name)  # fmt: skip
        self._waiting += [(f"{path}.{name}", has[name]) for name in names]

    def _may_be_any(self, owner: Any) -> bool:
        """Whether all attributes count where names are computed.

        Those of a notebook and of a library's objects change with everything that is done.
        """
        if isinstance(owner, (type, types.ModuleType)):
            return attributes_of(owner) is not self._namespace
        kind = type(owner)
        own = is_users_class(kind) or kind.__module__ in sys.stdlib_module_names
        return own and not hasattr(kind, "_flatten_layers")

    def _class(self, kind: type) -> None:
        if is_users_class(type(kind)):
            self._waiting.append((type(kind).__name__, type(kind)))
        for each in kind.__mro__:
            if is_users_class(each):
                self._attributes(each.__name__, each, _called_by_others(each))

    def _instance(self, path: str, value: Any) -> None:
        kind = type(value)
        if is_users_class(kind):
            self._guard(value, _kind_of, lambda _: f"the class of `{path}`", ("class",))
            self._waiting.append((kind.__name__, kind))
        slots = set(_slots(kind))
        if names := tuple(sorted(slots if self._wants_any else slots & self._wanted)):
            self._guard(value, slots_of(names), lambda name: f"`{path}.{name}`", names)
            has = slots_of(names)(value)
            self._waiting += [(f"{path}.{n}", has[n]) for n in names]
        self._attributes(path, value, read_by_library(value))
        self._add_wrapped(path, value)
        for number, layer in enumerate(layers_of(value)):
            self._waiting.append((f"{path}.layers[{number}]", layer))

    # Containers

    def _container(self, path: str, value: Any) -> None:
        if len(value) > _LARGE:
            return
        if not isinstance(value, (tuple, frozenset)):
            self._add(ItemsGuard(value, path))
        self._add_items(path, value)

    def _add_items(self, path: str, value: Any) -> None:
        if len(value) > _LARGE:
            return
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        self._waiting += [(f"{path}[{key!r}]", each) for key, each in pairs if not is_plain(each)]

    def _array(self, path: str, value: np.ndarray[Any, Any]) -> None:
        if value.nbytes <= _LARGEST_ARRAY and not value.dtype.hasobject:
            self._add(ArrayGuard(value, path))

    def _add(self, guard: ItemsGuard | ArrayGuard) -> None:
        if items_entry(guard.owner) not in self._ignored:
            self.guards.append(guard)

    def _guard(
        self,
        owner: Any,
        read: Callable[[Any], Mapping[str, Any]],
        describe: Callable[[str], str],
        names: tuple[str, ...],
        *,
        wanted: frozenset[str] | None = None,
        any_name: bool = False,
    ) -> None:
        names = tuple(name for name in names if (id(owner), name) not in self._ignored)
        if names or wanted is not None:
            self.guards.append(NamesGuard(owner, read, describe, names, wanted, any_name=any_name))


def _any_global(found: Mentions, namespace: Mapping[str, Any]) -> tuple[str, ...]:
    """The globals that code may read if it computes their names; not IPython's, nor its results."""
    if not found.any_global:
        return ()
    names = {name for name in namespace if not name.startswith("_")}
    return tuple(sorted(names - {"In", "Out"} - found.stored))


def _itself(namespace: Mapping[str, Any]) -> Mapping[str, Any]:
    return namespace


def _kind_of(value: Any) -> Mapping[str, Any]:
    return {"class": type(value)}


def _value_of(variable: contextvars.ContextVar[Any]) -> Mapping[str, Any]:
    return {"value": variable.get(MISSING)}


def _function_parts(function: types.FunctionType) -> Mapping[str, Any]:
    defaults = function.__kwdefaults__
    return {
        "__code__": function.__code__,
        "__defaults__": function.__defaults__,
        "__kwdefaults__": tuple(defaults.items()) if defaults else None,
    }


def _part(path: str, name: str) -> str:
    return f"`{path}`" if name == "__code__" else f"a default of `{path}`"


def _closure(function: types.FunctionType) -> dict[str, Any]:
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    return {name: _contents(cell) for name, cell in zip(names, cells, strict=True)}


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return MISSING


def _environment(environ: os._Environ[str]) -> Mapping[str, Any]:
    return environ.copy()


def _wrapped(value: Any) -> tuple[Any, ...] | None:
    """The function behind a wrapper; None for anything else."""
    if isinstance(value, types.MethodType):
        return (value.__func__, value.__self__)
    if isinstance(value, (functools.partial, functools.partialmethod)):
        return (value.func, value.args, value.keywords)
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    if isinstance(value, property):
        return (value.fget,)
    if isinstance(value, functools.cached_property):
        return (value.func,)
    if type(value).__module__ == "functools" and hasattr(value, "__wrapped__"):  # lru_cache
        return (value.__wrapped__,)
    return None


def _is_traced_by_itself(value: Any) -> bool:
    """Whether this is a `tf.function`, which keeps its own trace in an ordinary cell too."""
    kind = type(value)  # to ask the object might run the user's `__getattr__`
    return hasattr(kind, "python_function") and hasattr(kind, "get_concrete_function")


def _slots(kind: type) -> Iterator[str]:
    for each in kind.__mro__:
        for name, member in vars(each).items():
            if isinstance(member, types.MemberDescriptorType) and is_users_class(each):
                yield name


def _called_by_others(kind: type) -> set[str]:
    """The methods of a class that Python or a library calls without anybody's naming them."""
    library = {name for base in kind.__mro__ if not is_users_class(base) for name in vars(base)}
    return {
        name
        for name, value in vars(kind).items()
        if callable(value) and (name in library or name.startswith("__"))
    }
