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
    from tpunb.compiler.comparing import compare
    from tpunb.compiler.compile import compile
    from tpunb.compiler.fit.batch_sizes import largest_batch
    from tpunb.compiler.program import load_program
    from tpunb.compiler.searching import search
    from tpunb.connection.connect import TPUStrategy, connect
    from tpunb.connection.doctor import doctor
    from tpunb.display.tracked_loop import track
    from tpunb.errors import TpunbError
    from tpunb.errors.explain import explain
    from tpunb.keras import LiveCurves
    from tpunb.notebook.displays import show
    from tpunb.tensorflow.cells.pipeline.speed import input_speed
    from tpunb.tensorflow.cells.profiling import profile
    from tpunb.tensorflow.compiler.check import check
    from tpunb.tpu.types import accelerator
    from tpunb.training.history import History
    from tpunb.verification.run import verify

    history: History | None
    """The measurements of the last run of `%%tpu_run`, `Connection.run` or `LiveCurves`."""

__all__ = [
    "History",
    "LiveCurves",
    "TPUStrategy",
    "TpunbError",
    "__version__",
    "accelerator",
    "check",
    "compare",
    "compile",
    "connect",
    "doctor",
    "explain",
    "history",
    "input_speed",
    "largest_batch",
    "load_program",
    "profile",
    "search",
    "show",
    "track",
    "verify",
]

_HOMES = {
    "History": "tpunb.training.history",
    "LiveCurves": "tpunb.keras",
    "TPUStrategy": "tpunb.connection.connect",
    "TpunbError": "tpunb.errors",
    "accelerator": "tpunb.tpu.types",
    "check": "tpunb.tensorflow.compiler.check",
    "compare": "tpunb.compiler.comparing",
    "compile": "tpunb.compiler.compile",
    "connect": "tpunb.connection.connect",
    "doctor": "tpunb.connection.doctor",
    "explain": "tpunb.errors.explain",
    "input_speed": "tpunb.tensorflow.cells.pipeline.speed",
    "largest_batch": "tpunb.compiler.fit.batch_sizes",
    "load_program": "tpunb.compiler.program",
    "profile": "tpunb.tensorflow.cells.profiling",
    "search": "tpunb.compiler.searching",
    "show": "tpunb.notebook.displays",
    "track": "tpunb.display.tracked_loop",
    "verify": "tpunb.verification.run",
}

_PUBLIC_MODULES = (
    "course",
    "draw",
    "errors",
    "examples",
    "keras",
    "puzzles",
    "pytest_plugin",
    "virtual",
)


def __getattr__(name: str) -> Any:
    if name == "history":  # the last run's, so it changes
        return importlib.import_module(f"{__name__}.training.history").latest_history()
    if name not in _HOMES and name not in _PUBLIC_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tpunb._util.import_statement import runs_for_import
    from tpunb.errors import ConnectError, TensorFlowMissingError
    from tpunb.errors.jax_in_cells import FOR_JAX
    from tpunb.machine.import_tensorflow import needing_tensorflow, require_tensorflow

    error = ConnectError if runs_for_import() else TensorFlowMissingError
    door = f"tpunb.{name}"
    door = door if door in FOR_JAX else ""
    if _HOMES.get(name, "").startswith("tpunb.tensorflow."):
        require_tensorflow(door, error)
    with needing_tensorflow(door, error=error):
        if name in _PUBLIC_MODULES:
            return _public_module(name)
        return getattr(importlib.import_module(_HOMES[name]), name)


def _public_module(name: str) -> Any:
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as missing:
        if missing.name != "pytest":
            raise
        raise AttributeError(f"tpunb.{name} needs pytest, which is not installed") from missing


def __dir__() -> list[str]:
    """List the public names, for completion."""
    return sorted([*__all__, *_PUBLIC_MODULES])


def load_ipython_extension(shell: Any) -> None:
    """Load the extension, for `%load_ext tpunb`."""
    from tpunb.notebook.extension import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Unload the extension, for `%unload_ext tpunb`."""
    from tpunb.notebook.extension import unload

    unload(shell)
