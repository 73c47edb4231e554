"""Distributed values without TensorFlow, and columns as a page reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tpunb.display.describe import tensorflow_values


class PerReplica:
    """Stands for TensorFlow's distributed values."""

    def __init__(self, *values: Any) -> None:
        self.values = values


def know_per_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets displays take the class above for a distributed value."""
    monkeypatch.setattr(
        tensorflow_values,
        "distributed_components",
        lambda value: value.values if isinstance(value, PerReplica) else None,
    )


def columns(layout: dict[str, Any], data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """The packed columns of a message, by name."""
    return {
        name: np.frombuffer(data, kind.removesuffix("Array").lower(), count, offset)
        for name, (kind, offset, count) in layout.items()
    }
