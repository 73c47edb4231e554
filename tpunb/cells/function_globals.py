"""What a notebook's functions read from the notebook.

TensorFlow sees the globals of a function when it traces it and never again, so
a cell that calls a function depends on these as it does on its own names.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

__all__ = ["functions_of", "globals_read", "read_globals"]

_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})


@functools.lru_cache(maxsize=1024)
def read_globals(code: CodeType) -> tuple[str, ...]:
    """The global names that a code object and those inside it read."""
    names = {ins.argval: None for ins in dis.get_instructions(code) if ins.opname in _READS}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names.update(dict.fromkeys(read_globals(const)))
    return tuple(names)


def functions_of(value: Any) -> Iterator[FunctionType]:
    """The plain functions that calling `value` would run, as far as is cheap to find out."""
    if isinstance(value, functools.partial):
        yield from functions_of(value.func)
    elif isinstance(value, MethodType):
        yield from functions_of(value.__func__)
    elif isinstance(value, FunctionType):
        yield value


def globals_read(function: Any, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The notebook's names that a function reads, directly or through others.

    Args:
        function: A function, a method or a `functools.partial`.
        namespace: The notebook's namespace; functions of other modules are
            not looked into.

    Returns:
        The names that are bound, with their values.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    waiting = list(functions_of(function))
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        waiting.extend(_enclosed(current))
        if current.__globals__ is not namespace:
            continue
        for name in read_globals(current.__code__):
            if name in namespace and name not in found:
                found[name] = namespace[name]
                waiting.extend(functions_of(namespace[name]))
    return found


def _enclosed(function: FunctionType) -> Iterator[FunctionType]:
    """The functions in a function's closure: what decorators keep."""
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not bound yet
            continue
        yield from functions_of(value)
