"""Live displays: one Python module and one ES module each, on the descriptions.

Every widget has a static form beside it, which `tpunb.display.draw` draws from the same
description. A front end without widgets gets the static form. It also stays in the notebook when
the widget is frozen. The import of this package imports no widget.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpunb.display.widgets.curves import CurvesWidget
    from tpunb.display.widgets.programs import ProgramsWidget
    from tpunb.display.widgets.replicas import ReplicasWidget
    from tpunb.display.widgets.topology import TopologyWidget

__all__ = ["CurvesWidget", "ProgramsWidget", "ReplicasWidget", "TopologyWidget"]

_HOMES = {
    "CurvesWidget": "tpunb.display.widgets.curves",
    "ProgramsWidget": "tpunb.display.widgets.programs",
    "ReplicasWidget": "tpunb.display.widgets.replicas",
    "TopologyWidget": "tpunb.display.widgets.topology",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
