"""Lists, tuples and dicts of values, taken apart and put together again.

`tf.nest` sorts the keys of a dict, which not all keys allow, and does not say
how large a structure is before it has gone through all of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["is_nest", "leaves", "substitute"]

_DEEPEST = 50


def is_nest(value: Any) -> bool:
    """Whether a value is a list, a tuple or a dict."""
    return isinstance(value, (list, tuple, dict))


def leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """The values inside of a nest, in order; of anything else, itself.

    What is nested deeper than any sensible structure (one that contains
    itself, above all) counts as a leaf.
    """
    if not is_nest(value) or depth > _DEEPEST:
        yield value
        return
    for child in value.values() if isinstance(value, dict) else value:
        yield from leaves(child, depth + 1)


def substitute(value: Any, replace: Callable[[Any], Any], depth: int = 0) -> Any:
    """The same nest with every leaf replaced; lists and dicts are new objects."""
    if not is_nest(value) or depth > _DEEPEST:
        return replace(value)
    if isinstance(value, dict):
        return _dict_like(value, replace, depth + 1)
    children = [substitute(child, replace, depth + 1) for child in value]
    if isinstance(value, list):
        return children
    return type(value)(*children) if hasattr(value, "_fields") else tuple(children)


def _dict_like(value: dict[Any, Any], replace: Callable[[Any], Any], depth: int) -> Any:
    plain = {key: substitute(child, replace, depth) for key, child in value.items()}
    if type(value) is dict:
        return plain
    try:
        twin = copy.copy(value)  # keeps the default of a defaultdict
        twin.clear()
        twin.update(plain)
    except Exception:
        return plain
    return twin
