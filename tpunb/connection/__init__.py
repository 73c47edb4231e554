"""Connections to TPUs, real and virtual.

Importing this package does not import TensorFlow; the first use of one of its
names does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpunb.connection.connection import (
        Connection,
        RunResult,
        latest_connection,
        open_connections,
    )

__all__ = ["Connection", "RunResult", "latest_connection", "open_connections"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("tpunb.connection.connection"), name)
