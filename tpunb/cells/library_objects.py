"""What traced code reads of Keras's layers and of configurations, which name nothing of it."""

from __future__ import annotations

import types
from typing import Any

from .dependency_guards import attributes_of, is_plain

__all__ = ["layers_of", "read_by_library"]


def layers_of(value: Any) -> list[Any]:
    """The layers of a Keras layer or model."""
    if not hasattr(type(value), "_flatten_layers"):
        return []
    try:
        return list(value._flatten_layers(include_self=False))
    except AttributeError:  # one whose `__init__` has not called Keras's
        return []


def read_by_library(value: Any) -> set[str]:
    """The attributes of an object that its library's own code reads: settings of layers."""
    kind, has = type(value), attributes_of(value)
    if hasattr(kind, "_flatten_layers"):
        if hasattr(kind, "fit"):  # whose other attributes hold the progress of `fit`
            return {"_trainable"}
        settings = {n for n, v in has.items() if n[0] != "_" and _is_setting(v)}
        return (settings | {"_trainable"}) - {"built", "name"}
    if hasattr(kind, "__getattr__") and hasattr(kind, "keys") and not hasattr(kind, "__array__"):
        return set(has)  # a configuration that is read as attributes, such as a ConfigDict
    return set()


def _is_setting(value: Any) -> bool:
    return is_plain(value) or isinstance(value, types.FunctionType)
