"""A TPU made of virtual CPU cores: the real `TPUStrategy`, no TPU needed."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "TPUStrategy": "tpunb.tensorflow.virtual.tensorflow_strategies",
    "TPUStrategyV2": "tpunb.tensorflow.virtual.tensorflow_strategies",
    "VirtualTPUClusterResolver": "tpunb.tensorflow.virtual.resolver",
    "VirtualTPUStrategy": "tpunb.tensorflow.virtual.strategy",
    "install": "tpunb.virtual.installer",
    "install_when_imported": "tpunb.virtual.installer",
    "installed": "tpunb.virtual.installer",
    "uninstall": "tpunb.virtual.installer",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    # Imported late, because most of these modules import TensorFlow.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tpunb._util.import_statement import runs_for_import
    from tpunb.errors import ConnectError, TensorFlowMissingError
    from tpunb.machine.import_tensorflow import needing_tensorflow

    error = ConnectError if runs_for_import() else TensorFlowMissingError
    with needing_tensorflow(error=error):
        return getattr(importlib.import_module(_HOMES[name]), name)
