"""The process that imports one user's file for `tpunb compile --serve`, and answers requests.

The user's code can print, exit, crash, fork or hang there without harm to the server's streams.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from tpunb.cli.compile_requests import arguments_of
from tpunb.cli.compiled_source import outcome_of
from tpunb.cli.python_source import SEPARATOR, import_file
from tpunb.errors.code_problems import is_library

_POLL = 0.2
"""Seconds after which the process is looked at: its forks may hold its pipe open."""

Stamps = dict[str, tuple[int, int, int]]
"""The inode, the size and the time of change of files, by path; zeros for a missing file."""


class WorkerLostError(Exception):
    """The process gave no answer. The message says how it ended, as the end of a sentence."""


def stamps_of(files: Iterable[str]) -> Stamps:
    """Return the stamps of files as they are now."""
    return {file: _stamp(file) for file in files}


def _stamp(file: str) -> tuple[int, int, int]:
    try:
        found = Path(file).stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


class Worker:
    """A forked process with one user's file.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._requests)
            os.close(self._answers)
            _work(path, requests, answers)
        os.close(requests)
        os.close(answers)
        with contextlib.suppress(OSError):  # also in the process itself; the first call counts
            os.setpgid(self._pid, self._pid)

    def ask(self, request: Mapping[str, Any], seconds: float) -> tuple[dict[str, Any], Stamps]:
        """Return the report on a program, and the stamps of the files that it came from.

        Args:
            request: The checked request.
            seconds: The time limit.

        Raises:
            WorkerLostError: The process ended or took longer. It must be closed.
        """
        try:
            _write(self._requests, json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise WorkerLostError(self._end()) from None
        line = self._line(time.monotonic() + seconds, seconds)
        try:
            answer = json.loads(line)
        except ValueError:  # the user's code has written into the pipe
            raise WorkerLostError("gave an answer that cannot be read") from None
        return answer["report"], {file: tuple(stamp) for file, stamp in answer["files"].items()}

    def close(self) -> None:
        """End the process, and all processes that the user's code has started in its group."""
        for descriptor in (self._requests, self._answers):
            os.close(descriptor)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _line(self, end: float, seconds: float) -> bytes:
        received = b""
        while not received.endswith(b"\n"):
            if time.monotonic() > end:
                raise WorkerLostError(f"took longer than {seconds:g} s")
            ready, _, _ = select.select([self._answers], [], [], _POLL)
            more = os.read(self._answers, 1 << 16) if ready else None
            if more == b"" or (more is None and self._has_ended()):
                raise WorkerLostError(self._end())
            received += more or b""
        return received

    def _has_ended(self) -> bool:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._pid, options) is not None

    def _end(self) -> str:
        """Return how the process ended."""
        found = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        if found is None or found.si_code == os.CLD_EXITED:
            return f"ended with exit code {0 if found is None else found.si_status}"
        return f"was ended by signal {found.si_status}"


def _work(path: str, requests: int, answers: int) -> NoReturn:
    """Answer requests until there are no more, and end without further code."""
    process = os.getpid()
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _without_standard_streams()
        # Python compares a module with its bytecode by whole seconds, and an edit may be faster.
        sys.dont_write_bytecode = True
        _answer_all(path, requests, answers, lambda: os.getpid() == process)
    finally:
        os._exit(0)


def _without_standard_streams() -> None:
    """Read nothing, and send what the user's code prints to standard error, also from C."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115  it stays open
    with contextlib.suppress(OSError):  # the process has no standard error
        os.dup2(2, 1)
    sys.stdout = sys.stderr


class _UserFile:
    """A user's file, which is imported once.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._folder = Path.cwd()
        self._modules: dict[Path, ModuleType] = {}
        self._files: Stamps = stamps_of([str(Path(path).resolve())])

    def report(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the report on a program in the file."""
        os.chdir(self._folder)  # the user's code may have changed it
        return outcome_of(arguments_of(request), self._imported).report

    def files(self) -> Stamps:
        """Return the stamps of the user's files, from before each was used."""
        self._files = {**stamps_of(_user_files()), **self._files}
        return self._files

    def _imported(self, path: Path) -> ModuleType:
        if path not in self._modules:
            self._modules[path] = import_file(path)
            self.files()  # compiling takes minutes, in which a file may change
        return self._modules[path]


def _answer_all(path: str, requests: int, answers: int, is_self: Callable[[], bool]) -> None:
    file = _UserFile(path)
    with os.fdopen(requests, "rb") as lines:
        for line in lines:
            report = file.report(json.loads(line))
            if not is_self():  # the user's code has forked, and its copy has come here too
                return
            text = json.dumps({"report": report, "files": file.files()}) + "\n"
            _write(answers, text.encode())


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _user_files() -> Iterator[str]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not is_library(file):
            yield file


def source_file(source: str) -> str:
    """Return the file of a source."""
    return source.partition(SEPARATOR)[0]
