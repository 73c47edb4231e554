"""JAX's wing: its devices as a TPU's, its cells, its programs. It never imports TensorFlow."""

from __future__ import annotations

from typing import Any

__all__ = ["tune"]


def __getattr__(name: str) -> Any:
    if name != "tune":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tpunb.jax.compiler.tune import tune

    return tune
