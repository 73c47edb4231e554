"""Freed memory that the C library keeps, given back; a block without Python's collector."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path

_MUCH = 64 * 2**20


@contextlib.contextmanager
def giving_back() -> Iterator[None]:
    """Returns to the system what a function has freed, where the C library can; a decorator.

    A large graph is in cycles of references until Python's collector has run, and glibc keeps
    its hundreds of megabytes after that. Where the process has not grown, nothing is done.
    """
    before = resident()
    try:
        yield
    finally:
        if resident() > before + _MUCH:
            gc.collect()
            with contextlib.suppress(OSError, AttributeError):  # not every C library can
                ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """A block in which Python looks for no cycles of references.

    For what makes many objects that stay. Each time their number has grown by a quarter Python
    goes over all that there are: 0.3 s with TensorFlow and Keras imported.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def resident() -> int:
    """The resident memory of the process, in bytes; 0 if the system does not report it."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
