"""Attributes of users' objects, whose `__getattr__` may raise any error."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_MISSING = object()


def attribute(value: Any, name: str, default: Any = None) -> Any:
    """Return an attribute, or the default if reading it fails in any way."""
    try:
        return getattr(value, name, default)
    except Exception:  # a dict whose `__getattr__` is `__getitem__` raises KeyError
        return default


def has_attributes(value: Any, *names: str) -> bool:
    """Return whether an object has attributes of all these names."""
    return all(attribute(value, name, _MISSING) is not _MISSING for name in names)


def attributes_of(owner: Any) -> Mapping[str, Any]:
    """Return the attributes that an object, a class or a module has itself."""
    found = attribute(owner, "__dict__")
    return found if isinstance(found, dict | MappingProxyType) else {}
