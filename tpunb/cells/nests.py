"""Lists, tuples and dicts of values, taken apart and put together again.

`tf.nest` sorts the keys of a dict, which some keys do not allow. It also traverses a whole
structure before it can tell the structure's size.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import tensorflow as tf

from tpunb._util.attributes import attribute, has_attributes
from tpunb._util.functions import closed_over, wrapped

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


_MOST = 2000  # objects to visit: a search for mistakes, not a proof
_OPAQUE = (type, ModuleType, str, bytes, int, float, complex, type(None), tf.Module, tf.Variable)
_HELPERS = (tf.GradientTape, tf.TensorArray, tf.autodiff.ForwardAccumulator)


def is_composite(value: Any) -> bool:
    """Return whether a value consists of tensors that TensorFlow can take apart."""
    # tf.nest has a similar check, but it takes attrs classes and mappings apart as well.
    return isinstance(value, tf.__internal__.CompositeTensor)


def stays_inside(value: Any) -> bool:
    """Return whether a value is a helper of the trace that cannot leave it.

    Such helpers are tapes, tensor arrays, iterators (`zip`, `map`, generators), and functions that
    close over a tensor.
    """
    if isinstance(value, _HELPERS):
        return True
    if isinstance(value, (FunctionType, MethodType, functools.partial)):
        return holds_symbolic(value)
    kind = type(value)
    return hasattr(kind, "__next__") and hasattr(kind, "__iter__")


def holds_symbolic(value: Any) -> bool:
    """Return whether a tensor of a graph can be reached from a value."""
    waiting, seen = [value], {id(value)}
    alive: list[Any] = []  # kept alive, so that no id is used twice during the search
    while waiting and len(alive) < _MOST:
        current = waiting.pop()
        alive.append(current)
        if tf.is_symbolic_tensor(current):
            return True
        for inner in _inside(current):
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
