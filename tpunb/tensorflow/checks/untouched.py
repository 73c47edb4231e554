"""Restoration of objects: everything that tracing built, cached or counted in them is undone.

Libraries build lazily: the first trace of a Keras step makes the variables of an optimizer and of
metrics, and functions that call them. If the trace is only examined, all of these belong to a graph
that will never run.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb._util.functions import nested_codes
from tpunb._util.reachable import walk
from tpunb._util.user_code import is_users_class
from tpunb.tensorflow.virtual.private_names import (
    Trackable,
    context,
    distribute_lib,
    distribute_values,
)

_HELD = (Trackable, weakref.WeakKeyDictionary, weakref.WeakSet, threading.local)
_VARIABLES = (tf.Variable, distribute_values.DistributedValues)
_NEVER = (type, types.ModuleType, distribute_lib.StrategyBase, tf.data.Dataset, *_VARIABLES)
_OF_FUNCTIONS = (
    "tensorflow.python.eager.polymorphic_function",
    "tensorflow.core.function.capture",
    "tensorflow.core.function.polymorphism",
)
_CONTAINERS = (collections.OrderedDict, dict, list, set, collections.deque)
_GLOBALS = {
    "keras.src.backend.common.global_state": ("GLOBAL_STATE_TRACKER",),
    "tf_keras.src.backend": ("PER_GRAPH_OBJECT_NAME_UIDS", "_SEED_GENERATOR"),
}
"""The global state in which the versions of Keras count names and seeds."""


@contextlib.contextmanager
def untouched(*roots: Any) -> Iterator[None]:
    """Restore the state of objects, and of all objects that they hold or use, after the block.

    Changes that functions' own code makes to its lists and names stay, unless these changes contain
    variables, models or the like.

    Args:
        roots: Functions, models, and their arguments.
    """
    restore = remember(*roots)
    try:
        yield
    finally:
        restore()


def remember(*roots: Any) -> Callable[[], None]:
    """Return a function that restores objects to their present state; see `untouched`."""
    counts = [
        getattr(sys.modules.get(module), name, None)
        for module, names in _GLOBALS.items()
        for name in names
    ]
    # TensorFlow's generator, which exists once it has a seed.
    seeds = getattr(context.context(), "_rng", None)
    state = _State([*((False, root) for root in roots), (True, (*counts, random._inst, seeds))])
    generator = np.random.get_state()

    def restore() -> None:
        for restorer in state.restorers:
            restorer()
        np.random.set_state(generator)

    return restore


class _State:
    """The values that objects held.

    Args:
        roots: Whether each object belongs to others and not to the user's code alone, and the
            object.

    Attributes:
        restorers: Functions that each restore the values of one object.
    """

    def __init__(self, roots: Iterable[tuple[bool, Any]]) -> None:
        self.restorers: list[Callable[[], None]] = []
        waiting = collections.deque(roots)
        for own, value in walk(waiting, sys.maxsize):
            waiting.extend(self._parts(value, own))

    def _parts(self, value: Any, own: bool) -> Iterator[tuple[bool, Any]]:
        if isinstance(value, dict) and not issubclass(type(value), dict):
            self._keep_mapping(vars(value))
            yield own, value.__wrapped__  # type: ignore[attr-defined]  # TensorFlow's stand-in for a dict
            return
        if isinstance(value, (tuple, frozenset)):
            yield from ((own, item) for item in value)
        elif isinstance(value, random.Random):
            self.restorers.append(functools.partial(value.setstate, value.getstate()))
        elif isinstance(value, types.MethodType):
            yield from ((own, value.__self__), (own, value.__func__))
        elif isinstance(value, types.FunctionType):
            yield from self._used(value)
        elif isinstance(value, _CONTAINERS):
            yield from self._contents(value, own)
        if _is_looked_into(value):
            attributes = getattr(value, "__dict__", {})
            self._keep_mapping(attributes)
            slots = [getattr(value, name, None) for name in getattr(value, "__slots__", ())]
            yield from ((True, item) for item in (*attributes.values(), *slots))
            methods = (
                attribute for kind in type(value).__mro__ for attribute in vars(kind).values()
            )
            yield from ((True, method) for method in methods if _is_of_functions(method))

    def _contents(self, value: Any, own: bool) -> Iterator[tuple[bool, Any]]:
        kind = next(container for container in _CONTAINERS if isinstance(value, container))
        before = kind(value)

        def restore() -> None:
            # Called on the base class, because a library's own methods may record each change.
            now = kind(value)
            added = now.values() if isinstance(now, dict) else now
            if not own and not any(map(_is_state, added)):
                return
            if len(now) == len(before) and kind is not set and _are_same(now, before):
                return
            kind.clear(value)
            getattr(kind, "update" if kind is set or isinstance(now, dict) else "extend")(
                value, before
            )

        self.restorers.append(restore)
        yield from (
            (own, item) for item in (before.values() if isinstance(before, dict) else before)
        )

    def _keep_mapping(self, mapping: dict[str, Any]) -> None:
        before = dict(mapping)

        def restore() -> None:
            if len(mapping) != len(before) or not _are_same(mapping, before):
                mapping.clear()
                mapping.update(before)

        self.restorers.append(restore)

    def _used(self, function: types.FunctionType) -> Iterator[tuple[bool, Any]]:
        """Yield a function's closure, and the globals that it and its inner functions name."""
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # the cell is empty
                yield False, cell.cell_contents
                self._keep_binding(
                    functools.partial(getattr, cell, "cell_contents"),
                    functools.partial(setattr, cell, "cell_contents"),
                )
        names = function.__globals__
        for code in nested_codes(function.__code__):
            for name in filter(names.__contains__, code.co_names):
                yield False, names[name]
                self._keep_binding(
                    functools.partial(names.get, name),
                    functools.partial(names.__setitem__, name),
                )
        yield from ((False, default) for default in function.__defaults__ or ())
        yield from ((False, attribute) for attribute in vars(function).values())

    def _keep_binding(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        before = read()

        def restore() -> None:
            if _is_state(read()):
                write(before)

        self.restorers.append(restore)


def _is_state(value: Any) -> bool:
    """Return whether a value is a variable, a model or the like."""
    return isinstance(value, (Trackable, distribute_values.DistributedValues)) or _is_of_keras(
        value
    )


def _are_same(now: Any, before: Any) -> bool:
    pairs = zip(now.items(), before.items(), strict=True) if isinstance(now, dict) else None
    if pairs is not None:
        return all(a is c and b is d for (a, b), (c, d) in pairs)
    return all(a is b for a, b in zip(now, before, strict=True))


def _is_looked_into(value: Any) -> bool:
    """Return whether an object may hold results of a trace."""
    if isinstance(value, _NEVER) or tf.is_tensor(value):
        return False
    if isinstance(value, _HELD) or _is_of_functions(value):
        return True
    if is_users_class(type(value)):
        return hasattr(value, "__dict__")
    return _is_of_keras(value)


def _is_of_keras(value: Any) -> bool:
    packages = {kind.__module__.partition(".")[0] for kind in type(value).__mro__}
    return bool(packages & {"keras", "tf_keras"})


def _is_of_functions(value: Any) -> bool:
    """Return whether a value is a `tf.function` or a part of it, such as its cache."""
    return type(value).__module__.startswith(_OF_FUNCTIONS)
