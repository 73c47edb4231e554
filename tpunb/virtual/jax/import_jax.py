"""The import of JAX by tpunb."""

from __future__ import annotations

import importlib
import sys

from tpunb.errors import ConnectError
from tpunb.machine.tensorflow_releases import release
from tpunb.virtual.jax.private_names import OLDEST


def import_jax() -> None:
    """Import JAX.

    Raises:
        ConnectError: JAX is not installed, or it is too old.
    """
    try:
        jax = sys.modules.get("jax") or importlib.import_module("jax")
    except ImportError as error:
        raise ConnectError("JAX is not installed here.", fix="Run %pip install jax.") from error
    if release(jax.__version__) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConnectError(
            f"A virtual TPU needs JAX {oldest} or later, and this is JAX {jax.__version__}.",
            fix=f'Run %pip install "jax>={oldest}" and restart the kernel.',
        )
