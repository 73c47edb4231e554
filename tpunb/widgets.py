"""The live displays `TopologyWidget`, `ReplicasWidget` and `CurvesWidget`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpunb.display import widgets

if TYPE_CHECKING:
    from tpunb.display.widgets import CurvesWidget, ReplicasWidget, TopologyWidget

__all__ = ["CurvesWidget", "ReplicasWidget", "TopologyWidget"]


def __getattr__(name: str) -> Any:
    return getattr(widgets, name)
