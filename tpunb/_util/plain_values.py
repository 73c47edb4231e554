"""Records read back from plain values: dicts, lists, numbers and texts, as JSON has them.

Every value is compared with the type that its record declares, so that nothing else gets in.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

_Record = TypeVar("_Record")


def record_from(kind: type[_Record], value: Any) -> _Record:
    """Return a record from the dict that `dataclasses.asdict` and JSON made of it.

    Fields that this release does not know are left out, and missing fields get their defaults, so
    that releases with more or fewer fields read each other's files.

    Args:
        kind: A dataclass. Its fields are texts, numbers, booleans, dataclasses, None, or tuples of
            these.
        value: The dict.

    Raises:
        TypeError: A value has another type than its field, or a field without a default is missing.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{kind.__name__} is {type(value).__name__}")
    declared = _fields(typing.cast(Any, kind))
    return kind(
        **{
            name: _read(hint, value[name], f"{kind.__name__}.{name}")
            for name, hint in declared.items()
            if name in value
        }
    )


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def _read(hint: Any, value: Any, name: str) -> Any:
    """Return a value of a declared type."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in parts:
            return None
        (hint,) = [part for part in parts if part is not type(None)]
        return _read(hint, value, name)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_read(parts[0], item, name) for item in value)
    if dataclasses.is_dataclass(hint):
        return record_from(typing.cast(Any, hint), value)
    if hint is float and type(value) is int:
        return float(value)
    # A bool is an int too, so compare the types themselves.
    if type(value) is not hint:
        raise TypeError(f"{name} is {type(value).__name__}")
    return value
