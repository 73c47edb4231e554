"""The stop button, which a claim presses at the right moment."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from tpunb._util.interrupts import interrupt_main
from tpunb.verification.suite import NotRunError

_LOOK = 0.01
"""Seconds between two looks at the condition."""


@contextlib.contextmanager
def pressed_when(holds: Callable[[], bool]) -> Iterator[None]:
    """Press the stop button once, within a block, as soon as `holds` returns True."""
    if threading.current_thread() is not threading.main_thread():
        raise NotRunError("only the main thread receives interrupts, and this is another thread")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise NotRunError(
            "this process ignores interrupts, like a process in a script's background"
        )
    over = threading.Event()

    def watch() -> None:
        while not holds():
            if over.wait(_LOOK):
                return
        if not over.is_set():
            interrupt_main()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
