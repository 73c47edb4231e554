"""The memory and the processors that this process may use.

Memory is also read from cgroups, which limit a container's; psutil ignores them.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from tpunb._util.units import byte_count
from tpunb.machine import chips
from tpunb.machine.chips import text_of
from tpunb.machine.problems import Problem

_LITTLE = 2**30  # TensorFlow alone takes about half of it
_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
_USES = ("sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory/memory.usage_in_bytes")


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes; None where unknown.

    Attributes:
        total: Of the machine or, if it is less, the limit of the container.
        available: What can be allocated now.
        shared: The size of `/dev/shm`.
    """

    total: int | None = None
    available: int | None = None
    shared: int | None = None

    def problems(self) -> list[Problem]:
        """A problem if little memory is available."""
        if self.available is None or self.available >= _LITTLE:
            return []
        return [
            Problem(
                "memory",
                f"Only {byte_count(self.available)} of memory is available.",
                "Shut down other kernels: a host that runs out of memory ends the TPU's worker.",
                stops=False,
            )
        ]


def measure(root: Path | None = None) -> Memory:
    """Measures the memory.

    Args:
        root: The directory with `proc`, `sys` and `dev`; by default `/`.
    """
    root = chips.ROOT if root is None else root
    known = _meminfo(root / "proc" / "meminfo")
    total, available = known.get("MemTotal"), known.get("MemAvailable")
    limit = _first_number(root, _LIMITS)
    if limit is not None and (total is None or limit < total):
        total = limit
        used = _first_number(root, _USES)
        if used is not None:
            left = max(0, limit - used)
            available = left if available is None else min(available, left)
    return Memory(total, available, _size(root / "dev" / "shm"))


def _meminfo(path: Path) -> dict[str, int]:
    """The values of `/proc/meminfo` in bytes."""
    found = {}
    for line in (text_of(path) or "").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdecimal():
            found[name.strip()] = int(number[0]) * 1024
    return found


def _first_number(root: Path, paths: tuple[str, ...]) -> int | None:
    texts = ((text_of(root / path) or "").strip() for path in paths)
    return next((int(text) for text in texts if text.isdecimal()), None)


def _size(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except (OSError, AttributeError):  # not there; not on Windows
        return None
    return found.f_blocks * found.f_frsize


def processors() -> int:
    """The number of processors that this process may use, which a container can limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
