"""The TPU type whose devices JAX has, the default of `tpunb.compile`, and their live arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from tpunb.tpu.types import Accelerator
from tpunb.virtual.jax.memory import LiveArray, names_of

_current: list[Accelerator] = []
_live: list[tuple[Any, Callable[[Collection[int]], list[LiveArray]]]] = []


def remember(
    tpu: Accelerator, client: Any, live_arrays: Callable[[Collection[int]], list[LiveArray]]
) -> None:
    """Note that JAX has the devices of a type.

    Args:
        tpu: The type.
        client: The client of the devices.
        live_arrays: Returns the arrays in their memory, without those of some ids.
    """
    _current[:] = [tpu]
    _live[:] = [(client, live_arrays)]


def live_arrays_without(values: Mapping[str, Any]) -> list[LiveArray]:
    """Return the live arrays that no value contains, the largest first."""
    if not _live:
        return []
    client, live_arrays = _live[0]
    return live_arrays(names_of(client.live_arrays(), values).keys())


def forget() -> None:
    """Note that JAX has its own devices."""
    _current.clear()
    _live.clear()


def get() -> Accelerator | None:
    """Return the type, or None."""
    return _current[0] if _current else None
