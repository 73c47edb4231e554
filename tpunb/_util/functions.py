"""Parts of functions: nested code, closed-over variables, and what methods and partials call."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from tpunb._util.attributes import attribute
from tpunb._util.user_code import is_users_class

_WRAPPED = "__wrapped__"


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code object and all code objects inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from nested_codes(const)


def read_closure(function: FunctionType) -> dict[str, Any]:
    """Return the variables that a function closes over, if they are bound."""
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return values


def unwrap(value: Any) -> tuple[Any, ...]:
    """Return the objects behind a method, partial function, property or the like; else nothing.

    The objects that libraries' decorators make, such as `jax.jit` and `tf.function`, count too.
    """
    kind = type(value)
    if isinstance(value, MethodType):
        return (value.__func__, value.__self__)
    if isinstance(value, (functools.partial, functools.partialmethod)):
        return (value.func, value.args, value.keywords)
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    if isinstance(value, property):
        return (value.fget,)
    if isinstance(value, functools.cached_property):
        return (value.func,)
    if isinstance(value, (FunctionType, ModuleType, type)) or is_users_class(kind):
        return ()
    inner = attribute(value, "python_function" if hasattr(kind, "python_function") else _WRAPPED)
    return () if inner is None else (inner,)


def function_of(value: Any) -> FunctionType | None:
    """Return the plain function that a call of `value` would run, if it is cheap to find."""
    while isinstance(value, functools.partial | MethodType):
        value = unwrap(value)[0]
    return value if isinstance(value, FunctionType) else None
