"""One attempt to connect: its deadline, its record of steps, and its progress reports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tpunb._util.deadline import Deadline
from tpunb._util.logs import logger
from tpunb._util.secret_masking import mask
from tpunb.errors import ConnectError
from tpunb.tpu.default_tpu import DEFAULT_TPU

SIMULATE = f"Without a TPU, simulate one: %tpu_connect --simulate {DEFAULT_TPU}."
"""The advice for users without a TPU."""

_log = logger("connection")


class Attempt:
    """An attempt to connect.

    Args:
        tpu: The TPU to connect to.
        timeout: Seconds for its workers to answer, and again for the TPU system to be
            initialised.
        progress: Called with a description of each step.

    Attributes:
        deadline: The time by which its workers must have answered.
        tried: Each step and its result, in order.
    """

    def __init__(
        self, tpu: str, timeout: float, progress: Callable[[str], None] | None = None
    ) -> None:
        self.tpu = tpu
        self.timeout = timeout
        self.tried: list[str] = []
        self._progress = progress
        self.deadline = Deadline(timeout)

    def say(self, step: str) -> None:
        """Report the current step."""
        _log.debug("%s", step)
        if self._progress is not None:
            self._progress(step)

    def note(self, step: str, *, say: bool = False) -> None:
        """Record a step and its result."""
        self.tried.append(step)
        if say:
            self.say(step)
        else:
            _log.debug("%s", step)

    def error(self, message: str, fix: str) -> ConnectError:
        """Return an error with the record of the attempt."""
        return ConnectError(message, fix=fix, tried=self.tried)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn any TensorFlow error within a block into a ConnectError with its first line."""
        try:
            yield
        except ConnectError:
            raise
        except Exception as error:
            lines = str(error).strip().split("\n")
            first = mask(lines[0])[:300] or type(error).__name__
            self.note(f"{type(error).__name__}: {first}")
            message = f"Connecting to the TPU {mask(self.tpu)!r} failed: {first}"
            raise self.error(message, SIMULATE) from error
