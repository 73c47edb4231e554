"""A cell's source -> a function that runs on every replica.

Importing this package does not import TensorFlow; the first use of one of its
names does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .capture import CellNameError
    from .lines import cell_lines
    from .runner import CellResult, CellRunner, bind
    from .steps import Steps
    from .timings import LoopTimings, Timings

__all__ = [
    "CellNameError",
    "CellResult",
    "CellRunner",
    "LoopTimings",
    "Steps",
    "Timings",
    "bind",
    "cell_lines",
]

_HOMES = {
    "CellNameError": "capture",
    "CellResult": "runner",
    "CellRunner": "runner",
    "LoopTimings": "timings",
    "Steps": "steps",
    "Timings": "timings",
    "bind": "runner",
    "cell_lines": "lines",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = found  # each name comes this way once
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
