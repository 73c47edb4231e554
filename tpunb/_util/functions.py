"""Parts of functions: nested code, closed-over variables, and what methods and partials call."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code object and all code objects inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from nested_codes(const)


def closed_over(function: FunctionType) -> dict[str, Any]:
    """Return the variables that a function closes over, if they are bound."""
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return values


def wrapped(value: Any) -> tuple[Any, ...]:
    """Return the objects behind a method, partial function, property or the like; else nothing."""
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
    if type(value).__module__ == "functools" and hasattr(value, "__wrapped__"):  # lru_cache
        return (value.__wrapped__,)
    return ()


def function_of(value: Any) -> FunctionType | None:
    """Return the plain function that a call of `value` would run, if it is cheap to find."""
    while isinstance(value, functools.partial | MethodType):
        value = wrapped(value)[0]
    return value if isinstance(value, FunctionType) else None
