"""The releases of the software that traces and compiles programs, and the time, for a record."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping

from tpunb.tpu.compiled_program import Release
from tpunb.version import __version__

_FRAMEWORKS = ("tensorflow", "keras", "tf_keras", "jax", "flax", "equinox")


def software() -> dict[str, str]:
    """Return the releases of tpunb and of the frameworks that this process has imported."""
    versions = {"tpunb": __version__}
    for name in _FRAMEWORKS:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            versions[name] = version
    return versions


def now() -> str:
    """Return the time in UTC: `"2026-11-26T23:50:00Z"`."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def releases(versions: Mapping[str, str]) -> tuple[Release, ...]:
    """Return packages and their releases as records, libtpu first."""
    ordered = sorted(versions.items(), key=lambda release: release[0] != "libtpu")
    return tuple(Release(name, version) for name, version in ordered)
