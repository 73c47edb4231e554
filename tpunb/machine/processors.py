"""How many processors this process may use."""

from __future__ import annotations

import os

__all__ = ["processors"]


def processors() -> int:
    """Those that it may run on, which in a container can be fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
