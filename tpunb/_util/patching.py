"""Tools to replace parts of TensorFlow in place, and to restore them.

A name lives in many namespaces: `tf.*`, `tf.compat.*`, `tensorflow.python.*`, a notebook's `from
... import`. So functions and classes are not replaced in namespaces. They stay the same objects,
and their behavior changes. All code that holds such an object, from before or after the change,
gets the virtual TPU; `isinstance` and `is` work as before.

Each change is a context manager that undoes it, for an `ExitStack`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

_ABSENT = object()


@contextlib.contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of a class or a module, as its own and not an inherited attribute."""
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            # Taken from the dictionary, so that a property or a C descriptor comes back unchanged.
            setattr(owner, name, before)


class Replaced(contextlib.AbstractContextManager[None]):
    """A function of a module or a class that is replaced while any thread is inside.

    Args:
        owner: The module or class.
        name: The function's name.
        replacement: Called with the original function, then with the function's arguments.
    """

    def __init__(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        self._owner, self._name, self._replacement = owner, name, replacement
        self._lock = threading.Lock()
        self._inside = 0
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                original = getattr(self._owner, self._name)

                # A function, because a class binds functions as methods, and no other callables.
                @functools.wraps(original)
                def replacement(*args: Any, **kwargs: Any) -> Any:
                    __tracebackhide__ = True  # IPython leaves such frames out
                    return self._replacement(original, *args, **kwargs)

                self._undo.enter_context(attribute(self._owner, self._name, replacement))
            self._inside += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._undo.close()


@contextlib.contextmanager
def redirected(function: types.FunctionType, replacement: Callable[..., Any]) -> Iterator[None]:
    """Change the behavior of a function for all code that holds it.

    Args:
        function: A plain function without free variables.
        replacement: Called with the original function, then with the function's arguments.
    """
    before = (function.__code__, function.__kwdefaults__)
    original = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )
    original.__kwdefaults__ = function.__kwdefaults__
    signature = inspect.signature(function)
    # In this order another thread finds the old function or the new function, never a mixture.
    function.__kwdefaults__ = {
        **(function.__kwdefaults__ or {}),
        "tpunb_replacement": functools.partial(replacement, original),
    }
    function.__code__ = _forward.__code__
    function.__signature__ = signature  # type: ignore[attr-defined]
    try:
        yield
    finally:
        function.__code__, function.__kwdefaults__ = before
        del function.__signature__  # type: ignore[attr-defined]


def _forward(*args: Any, tpunb_replacement: Any, **kwargs: Any) -> Any:
    return tpunb_replacement(*args, **kwargs)


@contextlib.contextmanager
def construct_as_subclass(owner: type, stand_in: type, make: Callable[..., None]) -> Iterator[None]:
    """Turn new instances of a class into instances of a subclass.

    Args:
        owner: The class, which remains the same object.
        stand_in: A subclass that does not call the class's own `__init__`.
        make: Called with the instance and the arguments to initialise it.
    """
    original = vars(owner)["__init__"]

    @functools.wraps(original)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(self, stand_in):
            mine = type(self)
            # A notebook's own subclass keeps its methods, which come before the stand-in's.
            self.__class__ = (
                stand_in
                if mine is owner
                else type(mine.__name__, (mine, stand_in), {"__module__": mine.__module__})
            )
        make(self, *args, **kwargs)

    with attribute(owner, "__init__", initialise):
        yield


@contextlib.contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable that is not set yet."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        if os.environ.get(name) == value:
            del os.environ[name]


@contextlib.contextmanager
def contents(mapping: dict[Any, Any]) -> Iterator[None]:
    """Restore a dictionary's contents after the block."""
    before = dict(mapping)
    try:
        yield
    finally:
        mapping.clear()
        mapping.update(before)
