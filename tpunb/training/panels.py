"""Which metrics are drawn together, and which of their values an axis can show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tpunb.training.columns import Floats
from tpunb.training.metrics import panel_of

__all__ = ["MAX_PANELS", "PanelLine", "panels_of", "within_reach"]

MAX_PANELS = 12
"""Panels that are drawn; a picture of a thousand takes minutes and is unreadable."""

# Matplotlib's axes compute with ranges and their multiples: near the ends of what a float
# holds these overflow. What is beyond is drawn at the edge; the legend has the value itself.
_LARGEST = 1e300
_LARGEST_LOG = 1e130  # such an axis goes on by whole strides of its ticks


class PanelLine(NamedTuple):
    """One metric's line on its panel.

    Attributes:
        metric: The metric's full name.
        role: `train` or `validation` where the panel has both, else the metric's name.
        validation: Whether it is a validation metric.
    """

    metric: str
    role: str
    validation: bool


def panels_of(names: Iterable[str]) -> dict[str, list[PanelLine]]:
    """The panels on which metrics are drawn, in the order in which they come.

    Args:
        names: The metrics' names; a repeated one has one line.

    Returns:
        Each panel's lines, by its title.
    """
    names = list(dict.fromkeys(names))
    shared = {panel_of(name)[0] for name in names if panel_of(name)[1]}
    panels: dict[str, list[PanelLine]] = {}
    for name in names:
        title, validation = panel_of(name)
        role = ("validation" if validation else "train") if title in shared else name
        panels.setdefault(title, []).append(PanelLine(name, role, validation))
    return panels


def within_reach(values: Floats, *, log: bool = False) -> Floats:
    """Values that an axis can be made for, NaN for what is not drawn.

    Args:
        values: Any values.
        log: Whether the axis is logarithmic.
    """
    shown = np.isfinite(values) & ((values > 0) | (not log))
    low, high = (1 / _LARGEST_LOG, _LARGEST_LOG) if log else (-_LARGEST, _LARGEST)
    return np.where(shown, np.clip(values, low, high), np.nan)
