"""The TPU type whose devices JAX has: the default of `tpunb.compile`."""

from __future__ import annotations

from tpunb.tpu.types import Accelerator

_current: list[Accelerator] = []


def remember(tpu: Accelerator) -> None:
    """Note that JAX has the devices of a type."""
    _current[:] = [tpu]


def forget() -> None:
    """Note that JAX has its own devices."""
    _current.clear()


def get() -> Accelerator | None:
    """Return the type, or None."""
    return _current[0] if _current else None
