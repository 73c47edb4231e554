"""The walk through everything that users' values reach, and its one limit."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import CellType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, TypeVar

from tpunb._util.attributes import attribute, attributes_of, has_attributes
from tpunb._util.code_names import find_globals, mentions
from tpunb._util.functions import function_of, read_closure, unwrap
from tpunb._util.user_code import is_users_class, is_users_code, is_users_module

PLAIN = (int, float, complex, bool, str, bytes, type(None), type(...), range)
"""The types of values that lead nowhere."""

CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)

_MOST = 20_000  # objects to visit; a larger container counts as one object

_CLOSED = frozenset({"IPython", "jax", "jaxlib", "numpy", "tensorflow", "tpunb"})
"""The packages whose objects are not searched."""

Mark = TypeVar("Mark")


def walk(
    waiting: collections.deque[tuple[Mark, Any]], most: int = _MOST
) -> Iterator[tuple[Mark, Any]]:
    """Yield the values of a queue, each object once, and none that is plain.

    The caller adds to the queue what each value leads to. So the nearest values come first.

    Args:
        waiting: The queue of values, each with a mark, such as its name.
        most: The most values to yield.
    """
    seen: dict[int, Any] = {}  # kept alive, so that no id is used twice during the walk
    while waiting and len(seen) < most:
        mark, value = waiting.popleft()
        if type(value) not in PLAIN and id(value) not in seen:
            seen[id(value)] = value
            yield mark, value


def reaches(value: Any, is_wanted: Callable[[Any], bool], opaque: tuple[type, ...] = ()) -> bool:
    """Return whether a value holds a wanted object, perhaps inside other objects.

    Args:
        value: The value.
        is_wanted: Whether an object is wanted.
        opaque: Classes whose objects are not searched.
    """
    waiting = collections.deque([("", value)])
    for _, each in walk(waiting):
        if is_wanted(each):
            return True
        is_closed = isinstance(each, (*opaque, type, ModuleType))
        if not is_closed and not has_attributes(each, "_keras_api_export_path"):
            waiting.extend(unpack("", each))
    return False


def items_of(owner: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what an object holds, with its key, its number or the name of its attribute."""
    if isinstance(owner, dict):
        yield from owner.items()
    elif isinstance(owner, CONTAINERS):
        yield from enumerate(owner)
    elif isinstance(owner, CellType):
        with contextlib.suppress(ValueError):  # not bound yet
            yield "", owner.cell_contents
    else:
        yield from tuple(attributes_of(owner).items())
        for kind in () if isinstance(owner, type) else type(owner).__mro__:
            for name, member in tuple(vars(kind).items()) if "__slots__" in vars(kind) else ():
                if isinstance(member, MemberDescriptorType) and has_attributes(owner, name):
                    yield name, attribute(owner, name)


def expression(path: str, owner: Any, key: Any) -> str:
    """Return the expression for what an object holds, given the object's own."""
    if isinstance(owner, CellType):
        return path
    if isinstance(owner, CONTAINERS):
        return f"{path}[{key!r}]"
    return str(key) if isinstance(owner, FunctionType) else f"{path}.{key}"


def unpack(
    path: str, value: Any, named: Callable[[str, Any, Any], str] = expression
) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds, with names: items, attributes, a function's closure and defaults.

    Args:
        path: The value's name.
        value: The value.
        named: Names what an object holds, given the object's name, the object and the key.
    """
    if isinstance(value, FunctionType):
        yield from ((named(path, value, n), each) for n, each in read_closure(value).items())
        yield from ((path, each) for each in value.__defaults__ or ())
        yield from ((path, each) for each in (value.__kwdefaults__ or {}).values())
        yield from ((path, each) for each in vars(value).values())
    elif inner := unwrap(value):
        yield from ((path, each) for each in inner)
    elif not isinstance(value, CONTAINERS) or len(value) <= _MOST:
        for key, each in items_of(value):
            if type(each) not in PLAIN:
                yield named(path, value, key), each


def read_globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function's code may read, with their names."""
    names = function.__globals__
    for name in find_globals(mentions(function.__code__), names):
        if name in names:
            yield name, names[name]


def is_searched(value: Any) -> bool:
    """Return whether a value's contents count: the user's, or those of a library for data."""
    if isinstance(value, ModuleType):
        return is_users_module(value)
    if isinstance(value, type):
        return is_users_class(value)
    return type(value).__module__.partition(".")[0] not in _CLOSED


def look_into(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds, its class, and the globals that the code of a function reads.

    Args:
        path: The expression for the value.
        value: The value.
    """
    if not is_searched(value):
        yield from ((path, each) for each in unwrap(value))
        return
    yield from unpack(path, value)
    if isinstance(value, FunctionType):
        if is_users_code(value.__code__):
            yield from read_globals(value)
        return
    kinds = value.__bases__ if isinstance(value, type) else (type(value),)
    yield from ((kind.__name__, kind) for kind in kinds if is_users_class(kind))


def collect_globals(function: Any, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the notebook's names that a function reads, directly or through others, with values.

    Functions of other modules are not examined.
    """
    values: dict[str, Any] = {}
    waiting = collections.deque([("", function)])
    for _, value in walk(waiting):
        if (current := function_of(value)) is None:
            continue
        waiting.extend(read_closure(current).items())  # functions that decorators keep
        if current.__globals__ is namespace:
            names = mentions(current.__code__).globals
            read = {name: namespace[name] for name in names if name in namespace}
            values.update(read)
            waiting.extend(read.items())
    return values
