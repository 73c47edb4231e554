"""Distributed values without TensorFlow, and the packed columns that a page reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tpunb.display.describe import tensorflow_values


class PerReplica:
    """A stand-in for TensorFlow's distributed values."""

    def __init__(self, *values: Any) -> None:
        self.values = values


def know_per_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make displays accept `PerReplica` as a distributed value."""
    monkeypatch.setattr(
        tensorflow_values,
        "distributed_components",
        lambda value: value.values if isinstance(value, PerReplica) else None,
    )


def columns(layout: dict[str, Any], data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """Return the packed columns of a message, by name."""
    return {
        name: np.frombuffer(data, kind.removesuffix("Array").lower(), count, offset)
        for name, (kind, offset, count) in layout.items()
    }
