"""Press the stop button at a certain moment."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class When:
    """Press the stop button once for each condition, when it holds."""

    def __init__(self, holds: Callable[[], bool], *then: Callable[[], bool]) -> None:
        self._conditions = (holds, *then)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> When:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        for holds in self._conditions:
            while not holds():
                if self._over.wait(0.01):
                    return
            press()


def counts(names: dict[str, Any]) -> Callable[[], bool]:
    """Return a condition: the loop of the cell has started."""
    return lambda: float(names["count"].values[0].numpy()) > 0
