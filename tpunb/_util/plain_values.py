"""Records read back from plain values: dicts, lists, numbers and texts, as JSON has them.

Every value is compared with the type that its record declares, so that nothing else gets in.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

_Record = TypeVar("_Record")

_LARGEST = 2**63
"""No size or time is as large."""


def record_from(kind: type[_Record], value: Any) -> _Record:
    """Return a record from the dict that `dataclasses.asdict` and JSON made of it.

    Fields that this release does not know are left out, and missing fields get their defaults, so
    that releases with more or fewer fields read each other's files.

    Args:
        kind: A dataclass. Its fields are texts, numbers, booleans, dataclasses, named tuples, None,
            or tuples and mappings of these. No text has a NUL, and numbers are finite and not
            negative.
        value: The dict.

    Raises:
        TypeError: A value has another type than its field, or a field without a default is missing.
        ValueError: A text or a number is not valid.
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
        return _read_tuple(parts, value, name)
    if origin is Mapping and isinstance(value, dict):
        return {
            _read(parts[0], key, name): _read(parts[1], each, name) for key, each in value.items()
        }
    if isinstance(hint, type) and issubclass(hint, tuple) and isinstance(value, list | tuple):
        parts = tuple(typing.get_type_hints(hint).values())
        return hint(*_read_tuple(parts, value[: len(parts)], name))
    if dataclasses.is_dataclass(hint):
        return record_from(typing.cast(Any, hint), value)
    if hint is float and type(value) is int:
        value = float(value)
    # A bool is an int too, so compare the types themselves.
    if type(value) is not hint:
        raise TypeError(f"{name} is {type(value).__name__}")
    if hint in (int, float) and not 0 <= value < _LARGEST:  # also false for NaN
        raise ValueError(f"{name} is {value}")
    if hint is str and "\0" in value:
        raise ValueError(f"{name} has a NUL")
    return value


def _read_tuple(parts: tuple[Any, ...], values: Sequence[Any], name: str) -> tuple[Any, ...]:
    """Return a tuple of any length, `tuple[int, ...]`, or of a declared length."""
    if parts[-1] is Ellipsis:
        return tuple(_read(parts[0], item, name) for item in values)
    if len(parts) != len(values):
        raise TypeError(f"{name} has {len(values)} values")
    return tuple(_read(part, item, name) for part, item in zip(parts, values, strict=True))
