"""A TPU made of virtual CPU cores: the real `TPUStrategy`, no TPU needed."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "TPUStrategy": "tensorflow.tensorflow_strategies",
    "TPUStrategyV2": "tensorflow.tensorflow_strategies",
    "VirtualTPUClusterResolver": "tensorflow.resolver",
    "VirtualTPUStrategy": "tensorflow.strategy",
    "install": "installer",
    "install_when_imported": "installer",
    "installed": "installer",
    "uninstall": "installer",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    # Imported late, because most of these modules import TensorFlow.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tpunb._util.import_statement import runs_for_import
    from tpunb.errors import ConnectError, TensorFlowMissingError
    from tpunb.virtual.tensorflow.import_tensorflow import needing_tensorflow

    error = ConnectError if runs_for_import() else TensorFlowMissingError
    with needing_tensorflow(error=error):
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
