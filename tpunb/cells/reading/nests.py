"""Lists, tuples and dicts of values, taken apart and put together again.

`tf.nest` sorts the keys of a dict, which some keys do not allow. It also traverses a whole
structure before it can tell the structure's size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

_DEEPEST = 50


def is_nest(value: Any) -> bool:
    """Return whether a value is a list, a tuple or a dict."""
    return isinstance(value, (list, tuple, dict))


def leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the values inside a nest, in order; for any other value, yield the value itself.

    A value that is nested too deep for any sensible structure counts as a leaf, above all if the
    structure contains itself.
    """
    if not is_nest(value) or depth > _DEEPEST:
        yield value
        return
    for child in value.values() if isinstance(value, dict) else value:
        yield from leaves(child, depth + 1)


def parts_of(value: Any) -> tuple[Any, ...]:
    """Return the values of the replicas; for any other value, return the value itself."""
    parts = getattr(value, "values", None)
    return parts if isinstance(parts, tuple) else (value,)


def substitute(value: Any, replace: Callable[[Any], Any], depth: int = 0) -> Any:
    """Return the same nest with every leaf replaced; lists and dicts are new objects."""
    if not is_nest(value) or depth > _DEEPEST:
        return replace(value)
    if not isinstance(value, dict):
        children = [substitute(child, replace, depth + 1) for child in value]
        if isinstance(value, list):
            return children
        return type(value)(*children) if hasattr(value, "_fields") else tuple(children)
    plain = {key: substitute(child, replace, depth + 1) for key, child in value.items()}
    if type(value) is dict:
        return plain
    try:
        twin = copy.copy(value)  # keeps the default of a defaultdict
        twin.clear()
        twin.update(plain)
    except Exception:
        return plain
    return twin
