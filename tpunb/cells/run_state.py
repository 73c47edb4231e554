"""The position of a run of many steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class RunState:
    """The position of a run.

    Attributes:
        done: The number of steps made.
        ended: Whether the data has ended.
        values: The values of the cell's names, and of its last expression, after the last step.
        batch: The last step's batch; None without data, or if it is not known.
    """

    done: int
    ended: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    batch: Any = None
