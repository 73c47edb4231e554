"""Where are we, and is there a TPU? Asked when connecting, never at import."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Mapping

__all__ = ["Search", "default_tpu", "find_tpu", "requires_tpu"]

_DEVICE_FILES = ("/dev/accel*", "/dev/vfio/[0-9]*")
_YES = frozenset({"1", "true", "yes", "on"})


@dataclasses.dataclass(frozen=True, slots=True)
class Search:
    """What looking for a TPU found.

    Attributes:
        tpu: What to connect to, `"local"`, a name or an address; None if there
            is no sign of a TPU.
        tried: What was looked at and what was there, in order.
    """

    tpu: str | None
    tried: tuple[str, ...]


def find_tpu(environment: Mapping[str, str] | None = None) -> Search:
    """Looks for signs of a TPU: device files, then names in the environment.

    Args:
        environment: Environment variables; by default the process's own.

    Returns:
        What to connect to, and what was tried.
    """
    environment = os.environ if environment is None else environment
    devices = sorted(path for pattern in _DEVICE_FILES for path in glob.glob(pattern))
    if devices:
        return Search("local", (f"found {', '.join(devices)}",))
    tried = ["no TPU device in /dev"]
    for variable, prefix in (("TPU_NAME", ""), ("COLAB_TPU_ADDR", "grpc://")):
        value = environment.get(variable, "").strip()
        if value:
            address = value if value.startswith(prefix) else prefix + value
            return Search(address, (*tried, f"{variable} is set to {value!r}"))
        tried.append(f"{variable} is not set")
    return Search(None, tuple(tried))


def default_tpu(environment: Mapping[str, str] | None = None) -> str | None:
    """What `TPUNB_TPU` says to connect to: a TPU type to simulate, or a TPU."""
    environment = os.environ if environment is None else environment
    return environment.get("TPUNB_TPU", "").strip() or None


def requires_tpu(environment: Mapping[str, str] | None = None) -> bool:
    """Whether `TPUNB_REQUIRE_TPU` forbids a virtual TPU."""
    environment = os.environ if environment is None else environment
    return environment.get("TPUNB_REQUIRE_TPU", "").strip().lower() in _YES
