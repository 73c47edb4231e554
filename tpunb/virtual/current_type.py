"""The TPU type whose devices JAX has, the default of `tpunb.compile`, and their memory."""

from __future__ import annotations

from typing import Any

from tpunb.tpu.types import Accelerator

_current: list[tuple[Accelerator, Any]] = []


def remember(tpu: Accelerator, memory: Any) -> None:
    """Note that JAX has the devices of a type."""
    _current[:] = [(tpu, memory)]


def forget() -> None:
    """Note that JAX has its own devices."""
    _current.clear()


def get() -> Accelerator | None:
    """Return the type, or None."""
    return _current[0][0] if _current else None


def memory() -> Any:
    """Return the `DeviceMemory` of the devices. JAX must have the devices of a type."""
    return _current[0][1]
