"""TPUs in a notebook, with or without a TPU.

In a notebook::

    %load_ext tpunb
    %tpu_connect --simulate v3-8

and without IPython::

    connection = tpunb.connect(simulate="v3-8")

Importing this package does not import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tpunb.version import __version__

if TYPE_CHECKING:
    from tpunb.accelerators import Accelerator, accelerator, accelerator_types
    from tpunb.checking import CheckReport, check
    from tpunb.checkup import DoctorReport, doctor
    from tpunb.connecting import TPUStrategy, connect
    from tpunb.connection import Connection
    from tpunb.diagnosis import Explanation, explain
    from tpunb.displays import show
    from tpunb.errors import TpunbError
    from tpunb.histories import History

    history: History | None
    """What the last run has measured, by `%%tpu_run`, `Connection.run` or `LiveCurves`."""
    from tpunb.keras import LiveCurves
    from tpunb.widgets import CurvesWidget, ReplicasWidget, TopologyWidget

__all__ = [
    "Accelerator",
    "CheckReport",
    "Connection",
    "CurvesWidget",
    "DoctorReport",
    "Explanation",
    "History",
    "LiveCurves",
    "ReplicasWidget",
    "TPUStrategy",
    "TopologyWidget",
    "TpunbError",
    "__version__",
    "accelerator",
    "accelerator_types",
    "check",
    "connect",
    "doctor",
    "explain",
    "history",
    "load_ipython_extension",
    "show",
    "unload_ipython_extension",
]

_HOMES = {
    "Accelerator": "accelerators",
    "CheckReport": "checking",
    "Connection": "connection",
    "CurvesWidget": "widgets",
    "DoctorReport": "checkup",
    "Explanation": "diagnosis",
    "History": "histories",
    "LiveCurves": "keras",
    "ReplicasWidget": "widgets",
    "TPUStrategy": "connecting",
    "TopologyWidget": "widgets",
    "TpunbError": "errors",
    "accelerator": "accelerators",
    "accelerator_types": "accelerators",
    "check": "checking",
    "connect": "connecting",
    "doctor": "checkup",
    "explain": "diagnosis",
    "show": "displays",
}


def __getattr__(name: str) -> Any:
    if name == "history":  # of the last run, whichever that is by now
        return importlib.import_module(f"{__name__}.histories").latest()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext tpunb`."""
    from tpunb.extension import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Called by `%unload_ext tpunb`."""
    from tpunb.extension import unload

    unload(shell)
