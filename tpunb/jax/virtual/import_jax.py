"""The import of JAX by tpunb."""

from __future__ import annotations

import importlib
import sys

from tpunb.errors import ConnectError
from tpunb.machine.jax_releases import too_old_jax


def import_jax() -> None:
    """Import JAX.

    Raises:
        ConnectError: JAX is not installed, or it is too old.
    """
    try:
        jax = sys.modules.get("jax") or importlib.import_module("jax")
    except ImportError as error:
        raise ConnectError("JAX is not installed here.", fix="Run %pip install jax.") from error
    if problem := too_old_jax(jax.__version__):
        raise ConnectError(problem.message, fix=problem.fix)
