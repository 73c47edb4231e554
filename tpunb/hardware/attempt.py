"""One attempt to connect: its time limit, what was tried, and who is told."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from tpunb.errors import ConnectError
from tpunb.masking import mask

__all__ = ["SIMULATE", "Attempt"]

SIMULATE = "Without a TPU, simulate one: %tpu_connect --simulate v5e-8."


class Attempt:
    """An attempt to connect.

    Args:
        tpu: What to connect to.
        timeout: Seconds until its workers have to answer, and then until the TPU system
            has to be initialised.
        progress: Is told what is being done.

    Attributes:
        tried: What was tried and what answered, in order.
    """

    def __init__(
        self, tpu: str, timeout: float, progress: Callable[[str], None] | None = None
    ) -> None:
        self.tpu = tpu
        self.timeout = timeout
        self.tried: list[str] = []
        self._progress = progress
        self._deadline = time.monotonic() + timeout

    @property
    def left(self) -> float:
        """Seconds until its workers have to answer."""
        return max(0.05, self._deadline - time.monotonic())

    @contextlib.contextmanager
    def not_counted(self) -> Iterator[None]:
        """What is done in it takes nothing from the time limit."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._deadline += time.monotonic() - begin

    def say(self, what: str) -> None:
        """Tells what is being done."""
        if self._progress is not None:
            self._progress(what)

    def note(self, what: str, *, say: bool = False) -> None:
        """Remembers what was tried and what answered."""
        self.tried.append(what)
        if say:
            self.say(what)

    def error(self, message: str, mend: str) -> ConnectError:
        """An error that knows what was tried."""
        return ConnectError(message, mend=mend, tried=self.tried)

    @contextlib.contextmanager
    def explained(self, mend: str = SIMULATE) -> Iterator[None]:
        """Any failure of TensorFlow's as a ConnectError, with its first line."""
        try:
            yield
        except ConnectError:
            raise
        except Exception as error:
            lines = str(error).strip().split("\n")
            first = mask(lines[0])[:300] or type(error).__name__
            self.note(f"{type(error).__name__}: {first}")
            raise self.error(
                f"Connecting to the TPU {mask(self.tpu)!r} failed: {first}", mend
            ) from error
