"""The curves of a run as text, for its checkpoints."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from tpunb.training.history import History


def saved_curves(history: History) -> dict[str, dict[str, str]]:
    """Return a history's columns, which are numbers of 8 bytes, as text by metric and column."""
    saved = {}
    for name in history.metrics:
        _, *arrays = history.columns(name)
        columns = zip(("steps", "values", "lows", "highs"), arrays, strict=True)
        saved[name] = {key: _text(array) for key, array in columns if array is not None}
    return saved


def _text(array: Any) -> str:
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def restore_curves(history: History, saved: Mapping[str, Mapping[str, str]]) -> None:
    """Add saved columns to a history without values: steps are whole numbers, others are not."""
    for name, texts in saved.items():
        columns = {
            key: np.frombuffer(base64.b64decode(text), "<i8" if key == "steps" else "<f8")
            for key, text in texts.items()
        }
        history.extend(name, **columns)
