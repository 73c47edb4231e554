"""The memory and the processors that this process may use.

Memory is also read from cgroups, which limit a container's memory, and from the limit of this
process's addresses. psutil ignores them.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shutil

from tpunb._util.units import byte_count, counted
from tpunb.machine import chips
from tpunb.machine.chips import text_of
from tpunb.machine.setup_problem import SetupProblem

_MEMINFO = re.compile(r"^(\w+):\s+(\d+)", re.MULTILINE)  # in KiB
_MODEL = re.compile(r"^model name\s*:\s*(.+)", re.MULTILINE)
_LITTLE = 2**30  # TensorFlow alone takes about half of it
_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
_USES = ("sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory/memory.usage_in_bytes")


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes; None where unknown.

    Attributes:
        total: The machine's memory, or the container's limit if that is smaller.
        available: The memory that can be allocated now.
        shared: The size of `/dev/shm`.
    """

    total: int | None = None
    available: int | None = None
    shared: int | None = None

    def problems(self) -> list[SetupProblem]:
        """Return a problem if little memory is available."""
        if self.available is None or self.available >= _LITTLE:
            return []
        return [
            SetupProblem(
                "memory",
                f"Only {byte_count(self.available)} of memory is available.",
                "Shut down other kernels. A host that runs out of memory ends the TPU's worker.",
                stops=False,
            )
        ]


def measure() -> Memory:
    """Measure the memory."""
    text = text_of(chips.ROOT / "proc" / "meminfo") or ""
    known = {name: int(size) * 1024 for name, size in _MEMINFO.findall(text)}
    total, available = known.get("MemTotal"), known.get("MemAvailable")
    limit = _first_number(_LIMITS)
    if limit is not None and (total is None or limit < total):
        total = limit
        used = _first_number(_USES)
        if used is not None:
            left = max(0, limit - used)
            available = left if available is None else min(available, left)
    addresses = _left_addresses()
    if addresses is not None:
        available = addresses if available is None else min(available, addresses)
    try:
        shared = shutil.disk_usage(chips.ROOT / "dev" / "shm").total
    except OSError:  # it does not exist
        shared = None
    return Memory(total, available, shared)


def _left_addresses() -> int | None:
    """Return the bytes that a limit of address space leaves this process (`ulimit -v`), if any."""
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = (text_of(chips.ROOT / "proc" / "self" / "statm") or "").split()
    if limit == resource.RLIM_INFINITY or not pages:
        return None
    return max(0, limit - int(pages[0]) * resource.getpagesize())


def _first_number(paths: tuple[str, ...]) -> int | None:
    texts = ((text_of(chips.ROOT / path) or "").strip() for path in paths)
    return next((int(text) for text in texts if text.isdecimal()), None)


def processors() -> int:
    """Return the number of processors that this process may use, which a container can limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_phrase() -> str:
    """Return the processors that this process may use: `"2 processors, Intel Xeon"`."""
    cpuinfo = text_of(chips.ROOT / "proc" / "cpuinfo") or ""
    model = _MODEL.search(cpuinfo)
    name = model[1].strip() if model else platform.machine()
    return ", ".join(filter(None, [counted(processors(), "processor"), name]))
