"""A process of our own that answers requests, and may crash without ending this one.

It lives on between requests. One that has crashed, or takes too long, is replaced when
the next request comes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpunb._util.deadline import bounded

__all__ = ["ChildLostError", "ChildProcess", "started"]


class ChildLostError(Exception):
    """The process gave no answer; the message says why, as the end of a sentence.

    Attributes:
        too_slow: Whether it was ended because it took too long.
    """

    def __init__(self, message: str, *, too_slow: bool = False) -> None:
        super().__init__(message)
        self.too_slow = too_slow


def started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a process with pipes; what it writes to standard error is dropped.

    Args:
        command: What to start.
        environment: Is added to this process's own.

    Raises:
        ChildLostError: It cannot be started.
    """
    try:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
            # An interrupt is the notebook's.
            start_new_session=os.name == "posix",
        )
    except OSError as error:
        raise ChildLostError(f"cannot be started ({error})") from error


class ChildProcess:
    """A process that answers pickled requests with pickled answers on its standard streams.

    It is ended with this one; a fork of this one starts its own.

    Args:
        start: Starts it.
        seconds: How long one request may take.
    """

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]], seconds: float) -> None:
        self._start = start
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        _children.add(self)

    def ask(self, request: Any, seconds: float | None = None) -> Any:
        """Sends a request and waits for its answer.

        Args:
            request: What to send.
            seconds: How long it may take, from when others have their answers.

        Raises:
            ChildLostError: The process ended, or took too long.
        """
        limit = self._seconds if seconds is None else seconds
        with self._lock:
            process = self._running()
            answered = False
            try:
                answer = bounded(lambda: _exchange(process, request), time.monotonic() + limit)
                answered = True
            except TimeoutError:
                message = f"took longer than {limit:.0f} seconds"
                raise ChildLostError(message, too_slow=True) from None
            except (EOFError, OSError, pickle.UnpicklingError):
                raise ChildLostError(f"crashed ({_end(process)})") from None
            finally:
                # After an interrupt too: the answer to this would be taken for the next one's.
                if not answered:
                    self._drop()
            return answer

    def start(self) -> None:
        """Starts the process, which gets ready beside what is done here before it is asked.

        Where it cannot be started, whoever asks is told.
        """
        with self._lock, contextlib.suppress(ChildLostError):
            self._running()

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._drop()

    def forget(self) -> None:
        """Leaves the process to the one that started it: this one is a fork of that."""
        self._lock = threading.Lock()
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._drop()
            self._process = self._start()
        return self._process

    def _drop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not written yet has no reader
                    stream.close()


def _exchange(process: subprocess.Popen[bytes], request: Any) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump(request, process.stdin)
    process.stdin.flush()
    return pickle.load(process.stdout)


def _end(process: subprocess.Popen[bytes]) -> str:
    """How a process has ended."""
    try:
        code = process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return "without an answer"
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


_children: weakref.WeakSet[ChildProcess] = weakref.WeakSet()


def _close_all() -> None:
    for child in list(_children):
        child.close()


def _forget_all() -> None:
    for child in list(_children):
        child.forget()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
