"""A cell's source -> a function that runs on every replica.

Importing this package does not import TensorFlow; the first use of one of its
names does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .capture import CellNameError
    from .cell_errors import cell_lines
    from .runner import CellResult, CellRunner, Timings, bind
    from .settings import RunSettings
    from .steps import LoopTimings, Steps

__all__ = [
    "CellNameError",
    "CellResult",
    "CellRunner",
    "LoopTimings",
    "RunSettings",
    "Steps",
    "Timings",
    "bind",
    "cell_lines",
]

_HOMES = {
    "CellNameError": "capture",
    "CellResult": "runner",
    "CellRunner": "runner",
    "LoopTimings": "steps",
    "RunSettings": "settings",
    "Steps": "steps",
    "Timings": "runner",
    "bind": "runner",
    "cell_lines": "cell_errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tpunb.virtual.import_tensorflow import needing_tensorflow

    with needing_tensorflow():
        found = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = found  # each name comes this way once
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
