"""XLA in a process of its own, which may crash without ending the notebook's.

The process lives on between functions. One that has crashed or takes too long is
replaced when the next function comes: starting it takes half a second.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from typing import cast

from tpunb._util.deadline import bounded
from tpunb.virtual.strict.compiler_process import Answer, Request

__all__ = ["Compiler", "CompilerLostError", "ask"]

SECONDS = 60.0
"""How long a function may take; whole models take a few seconds."""

_CODE = """\
import sys
sys.path[:] = {path!r}
from tpunb.virtual.strict.compiler_process import serve
serve()
"""
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # Accelerators are the notebook's.
    "CUDA_VISIBLE_DEVICES": "-1",
    "TPU_LOAD_LIBRARY": "0",
}


class CompilerLostError(Exception):
    """The process gave no answer; the message says why, as the end of a sentence."""


class Compiler:
    """A process that compiles.

    Args:
        seconds: How long one function may take.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self, request: Request) -> Answer:
        """Compiles a function.

        Raises:
            CompilerLostError: The process ended, or took too long.
        """
        with self._lock:
            process = self._running()
            answered = False
            try:
                answer = bounded(
                    lambda: _exchange(process, request), time.monotonic() + self._seconds
                )
                answered = True
            except TimeoutError:
                raise CompilerLostError(f"took longer than {self._seconds:.0f} seconds") from None
            except (EOFError, OSError, pickle.UnpicklingError):
                raise CompilerLostError(f"crashed ({_end(process)})") from None
            finally:
                # After an interrupt too: the answer to this would be taken for the next one's.
                if not answered:
                    self._drop()
            return answer

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
            self._process = _start()
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


def _start() -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _CODE.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT},
            # An interrupt is the notebook's.
            start_new_session=os.name == "posix",
        )
    except OSError as error:
        raise CompilerLostError(f"cannot be started ({error})") from error


def _exchange(process: subprocess.Popen[bytes], request: Request) -> Answer:
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump(request, process.stdin)
    process.stdin.flush()
    return cast(Answer, pickle.load(process.stdout))


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


_compiler = Compiler()
ask = _compiler.ask
atexit.register(_compiler.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compiler.forget)
