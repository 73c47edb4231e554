"""A process of tpunb that answers requests, and may crash without ending this process.

It stays alive between requests. If it has crashed or taken too long, the next request starts a new
process.
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
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tpunb._util.deadline import Deadline, Running
from tpunb._util.search_path import path_for_child
from tpunb._util.units import byte_count

_CHILD = str(Path(__file__).with_name("child_side.py"))

_COUNTS_OF_KILLS = (
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
    "/proc/vmstat",
)
"""The files in which Linux counts the processes it ended when memory ran out: `oom_kill 3`."""


_FROM_OUTSIDE = ("SIGHUP", "SIGINT", "SIGKILL", "SIGQUIT", "SIGTERM")
"""The signals that a process does not get by its own mistake."""


class ChildLostError(Exception):
    """The process gave no answer. The message says why, as the end of a sentence.

    Attributes:
        crashed: Whether the process ended by itself.
        out_of_memory: Whether the system ended it because memory ran out.
    """

    def __init__(self, message: str, *, crashed: bool = False, out_of_memory: bool = False) -> None:
        super().__init__(message)
        self.crashed = crashed
        self.out_of_memory = out_of_memory


Command = Callable[[str], Sequence[str]]
"""Returns the command that runs code in a Python."""


def this_python(code: str) -> list[str]:
    """Return the command that runs code in this Python, with this process's own search path."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = {path_for_child()!r}; {code}"]


def start_child(
    code: str,
    command: Command = this_python,
    environment: Mapping[str, str] | None = None,
    *,
    errors: IO[bytes] | int | None = subprocess.DEVNULL,
    own_group: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a process with pipes. On POSIX systems it ends with this process, however that ends.

    Args:
        code: The code to run: statements on one line.
        command: The command that runs code.
        environment: Variables to add to this process's own.
        errors: A file for its standard error, which is dropped by default; None for this process's.
        own_group: Whether interrupts of this process, as by the stop button, do not reach it.

    Raises:
        ChildLostError: The process cannot be started.
    """
    options: dict[str, Any] = {}
    with contextlib.ExitStack() as pipes:
        if os.name == "posix":
            pipe, held = os.pipe()
            pipes.callback(os.close, pipe)
            code = f"import runpy; runpy.run_path({_CHILD!r})['end_with_parent']({pipe}); {code}"
            options = {"pass_fds": (pipe,), "start_new_session": own_group}
        try:
            process = subprocess.Popen(
                list(command(code)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                **options,
            )
        except OSError as error:
            if options:
                os.close(held)
            raise ChildLostError(f"cannot be started ({error})") from error
        if options:
            weakref.finalize(process, os.close, held)
        return process


_NO_ANSWER = (
    *(EOFError, OSError, pickle.UnpicklingError),
    *(AttributeError, ImportError, IndexError, ValueError),  # of bytes that are not a pickle
)


class ChildProcess:
    """A process that answers pickled requests with pickled answers on its standard streams.

    The process ends with this process. A fork of this process starts its own.

    Args:
        start: Starts the process.
        seconds: The time limit for one request.
    """

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]], seconds: float) -> None:
        self._start = start
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        _children.add(self)

    def ask(self, request: Any, deadline: Deadline | None = None) -> Any:
        """Send a request and wait for its answer.

        Args:
            request: The request.
            deadline: The deadline for the answer.

        Raises:
            ChildLostError: The process ended, or took too long.
        """
        deadline = deadline or Deadline(self._seconds)
        too_slow = ChildLostError(f"took longer than {deadline.seconds:.0f} seconds")
        if not self._lock.acquire(timeout=deadline.left):  # other threads may be asking too
            raise too_slow
        try:
            process = self._running()
            memory, kills = _Memory(process.pid), _kills()
            answered = False

            def look() -> None:
                memory.look()
                if process.poll() is not None:  # its forks may hold its pipe open
                    raise EOFError

            try:
                running = Running(lambda: _exchange(process, request))
                answer = running.result(deadline.end, look)
                answered = True
            except TimeoutError:
                raise too_slow from None
            except _NO_ANSWER:
                raise _lost(process, memory, kills) from None
            finally:
                # Also after an interrupt: the next request would get this request's answer.
                if not answered:
                    self._drop()
            return answer
        finally:
            self._lock.release()

    def start(self) -> None:
        """Start the process, so that it gets ready while this process does other work.

        An error in starting it is raised by the next request.
        """
        with self._lock, contextlib.suppress(ChildLostError):
            self._running()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._drop()

    def forget(self) -> None:
        """Leave the process to the process that started it, because this is a fork."""
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
        if process.poll() is None:
            _kill_group(process)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # unwritten data has no reader any more
                    stream.close()


def _exchange(process: subprocess.Popen[bytes], request: Any) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump(request, process.stdin)
    process.stdin.flush()
    return pickle.load(process.stdout)


class _Memory:
    """The peak memory of a process, read now and then."""

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}/status")
        self.peak = 0
        self.look()

    def look(self) -> None:
        with contextlib.suppress(OSError):
            for line in self._path.read_text(encoding="ascii", errors="replace").splitlines():
                if line.startswith("VmHWM:"):
                    self.peak = 1024 * int(line.split()[1])


def _kills() -> list[int]:
    """Return the numbers of processes that the system ended when memory ran out, by file."""
    counts = []
    for path in _COUNTS_OF_KILLS:
        with contextlib.suppress(OSError):
            lines = Path(path).read_text(encoding="ascii", errors="replace").splitlines()
            counts += [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
    return counts


def _lost(
    process: subprocess.Popen[bytes], memory: _Memory, kills: Sequence[int]
) -> ChildLostError:
    """Return the error that explains why a process ended."""
    try:
        code = process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return ChildLostError("gave an answer that cannot be read", crashed=True)
    _kill_group(process)  # what it has started
    if os.name == "posix" and code == -signal.SIGKILL:
        now = _kills()
        if now != list(kills) or not now:
            likely = "" if now else "most likely "
            peak = f", at {byte_count(memory.peak)}" if memory.peak else ""
            message = f"was {likely}ended by the system for lack of memory{peak}"
            return ChildLostError(message, out_of_memory=True)
    if code >= 0:
        return ChildLostError(f"ended with exit code {code}", crashed=True)
    name = f"signal {-code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
    if name in _FROM_OUTSIDE:
        return ChildLostError(f"was ended by another process ({name})")
    return ChildLostError(f"crashed ({name})", crashed=True)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process, and all processes that it has started in its group."""
    if os.name != "posix":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


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
