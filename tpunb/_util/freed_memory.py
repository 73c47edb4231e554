"""Returning freed memory to the system, and blocks without Python's garbage collector."""

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
    """Return the memory that a block has freed to the system, if the C library can.

    A large graph has cycles of references, which stay until Python's collector runs. Even then
    glibc keeps their hundreds of megabytes. A process that has not grown keeps its memory. This is
    also a decorator.
    """
    before = resident()
    try:
        yield
    finally:
        if resident() > before + _MUCH:
            gc.collect()
            with contextlib.suppress(OSError, AttributeError):  # only glibc has the function
                ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def uncollected(*, lasting: bool = False) -> Iterator[None]:
    """Turn off Python's garbage collector within a block.

    This is for code that makes many objects that stay. Each time their number has grown by a
    quarter, Python's collector visits all objects: 0.3 s with TensorFlow and Keras imported.

    Args:
        lasting: Whether the objects last as long as the process, as modules do. Then the end of
            the block moves all objects to the oldest generation, which is seldom visited.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if lasting and not gc.get_freeze_count():  # else the user's objects would be thawed
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def resident() -> int:
    """Return the process's resident memory in bytes, or 0 if the system does not report it."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
