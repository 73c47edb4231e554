"""A process of its own for a user's file, so that nothing but a verdict looks like one.

A file can end its process with any exit code, start threads that do not end, fork, and print when
Python exits. The process here ends without all that once it has its exit code, and reports the code
to the process that waits for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

_FORWARDED = (signal.SIGINT, signal.SIGTERM)


def in_a_process(run: Callable[[], int], ended: Callable[[str], int]) -> int:
    """Run a command in a forked process, and return its exit code.

    On systems that cannot fork, it runs in this process.

    Args:
        run: The command, which returns its exit code.
        ended: Called if the process ends before, with a phrase that says how. It returns the exit
            code.
    """
    if not hasattr(os, "fork"):
        return run()
    _flush()
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reader)
        _report(run, writer)
    os.close(writer)
    with forwarding_signals(process) as forwarded:
        _, status = os.waitpid(process, 0)
    os.set_blocking(reader, False)  # a process that the file has forked may hold the other end
    with contextlib.suppress(BlockingIOError), os.fdopen(reader, "rb") as report:
        if code := report.read(1):
            return code[0]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return 128 + number if number in forwarded else ended(f"was ended by signal {number}")
    return ended(f"ended with exit code {os.waitstatus_to_exitcode(status)}")


def _report(run: Callable[[], int], writer: int) -> NoReturn:
    """Run a command in this process, report its exit code, and end without further code."""
    process, code = os.getpid(), None
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # Ctrl-C reaches the waiting process, which forwards it
    try:
        code = run()
    finally:
        _flush()
        if code is not None and os.getpid() == process:
            os.write(writer, bytes([code]))
        os._exit(0)


@contextlib.contextmanager
def forwarding_signals(process: int) -> Iterator[set[int]]:
    """Within a block, pass signals on to a process. Yields the numbers of those that arrive."""
    forwarded: set[int] = set()

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        forwarded.add(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield forwarded
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
