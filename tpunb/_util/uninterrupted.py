"""Blocks that an interrupt cannot leave half done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_RAISING = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGALRM", "SIGTERM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]
"""The signals whose handlers raise: a key, the time limit of a test, the end of a kernel."""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay an interrupt to the end of a short block.

    This has an effect only in the main thread, and only if Python has a handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    formers: dict[int, Callable[[int, FrameType | None], object]] = {
        number: former for number in _RAISING if callable(former := signal.getsignal(number))
    }
    received: list[tuple[int, FrameType | None]] = []
    for number in formers:
        signal.signal(number, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        for number, former in formers.items():
            signal.signal(number, former)
    for number, frame in dict(received).items():
        formers[number](number, frame)
