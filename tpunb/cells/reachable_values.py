"""Search for objects that can be reached from a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from tpunb._util.attributes import attribute, has_attributes
from tpunb._util.functions import closed_over, wrapped

_MOST = 2000  # objects to visit: a search for mistakes, not a proof
_OPAQUE = (type, ModuleType, str, bytes, int, float, complex, type(None))


def reaches(value: Any, is_wanted: Callable[[Any], bool], opaque: tuple[type, ...] = ()) -> bool:
    """Return whether a wanted object can be reached from a value.

    Args:
        value: The value.
        is_wanted: Whether an object is wanted.
        opaque: Classes whose objects are not searched.
    """
    waiting, seen = [value], {id(value)}
    alive: list[Any] = []  # kept alive, so that no id is used twice during the search
    while waiting and len(alive) < _MOST:
        current = waiting.pop()
        alive.append(current)
        if is_wanted(current):
            return True
        for inner in () if isinstance(current, opaque) else _inside(current):
            if id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)
    return False


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, _OPAQUE) or has_attributes(value, "_keras_api_export_path"):
        return
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif inner := wrapped(value):
        yield from inner
    elif isinstance(value, FunctionType):
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        yield from closed_over(value).values()
    else:
        yield from attribute(value, "__dict__", {}).values()
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if has_attributes(value, slot):
                    yield attribute(value, slot)
