"""Where the package tells `install` how to connect to a virtual TPU for JAX, with a judge.

The compiler judges the programs of a connection, and this room imports neither. `tpunb/__init__.py`
registers `tpunb.connection.connect`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

Connect = Callable[[], contextlib.AbstractContextManager[Any]]
"""Connects, and returns the connection, a context manager that closes it."""

_registered: Callable[..., Connect] | None = None


def register_jax_connector(connector: Callable[..., Connect]) -> None:
    """Set how to connect to a virtual TPU for JAX."""
    global _registered
    _registered = connector


def jax_connector(tpu: str, **options: Any) -> Connect:
    """Return a function that connects, once the options are checked.

    Args:
        tpu: The TPU type.
        options: Options of `tpunb.connect`.

    Raises:
        ConnectError: An option is not JAX's, or its value is not valid.
    """
    assert _registered is not None, "tpunb/__init__.py registers it"
    return _registered(tpu, **options)
