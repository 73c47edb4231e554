"""Worker processes on this machine, which end with the process that started them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import IO, Any

from tpunb._util.deadline import Deadline, Running
from tpunb._util.logs import logger
from tpunb._util.search_path import path_for_child
from tpunb._util.units import counted
from tpunb.errors import ConnectError

_log = logger("connection")

_GRACE = 5.0
_LAST_LINES = 2


class LocalWorkers:
    """The worker processes of one Pod.

    They end on `close` and when this process exits. They end even if this process is killed,
    because each reads a pipe from it.

    Args:
        count: The number of workers.
        cores: The number of virtual cores of each worker.
        timeout: Seconds until all workers must be ready.
        say: Called with a description of each wait.

    Attributes:
        addresses: The workers' addresses on the loopback interface.

    Raises:
        ConnectError: A worker did not start, or not in time.
    """

    def __init__(
        self, count: int, cores: int, *, timeout: float, say: Callable[[str], None] | None = None
    ) -> None:
        self.addresses: tuple[str, ...] = ()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._outputs = [_Output() for _ in range(count)]
        self._lock = threading.Lock()
        atexit.register(self.close)
        try:
            for output in self._outputs:
                self._processes.append(_start(cores, self._log, output.handle))
            if say is not None:
                say(f"starting {counted(count, 'worker')} on this machine")
            _log.debug("started workers, process ids %s", self.process_ids)
            self.addresses = self._ready(Deadline(timeout))
            _log.debug("workers are ready: %s", self.addresses)
        except BaseException:
            self.close(grace=1.0)
            raise

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The workers' process ids."""
        return tuple(process.pid for process in self._processes)

    def ended(self) -> list[int]:
        """Return the indices of workers that have ended on their own."""
        return [k for k, process in enumerate(self._processes) if process.poll() is not None]

    def printed(self) -> list[str]:
        """Return the lines that the workers have printed since the last call."""
        return [line for output in self._outputs for line in output.lines()]

    def close(self, *, grace: float = _GRACE) -> None:
        """End the workers and wait for them.

        Args:
            grace: Seconds after which a worker that does not end by itself is killed.
        """
        with self._lock:
            processes, self._processes = self._processes, []
        atexit.unregister(self.close)
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()  # the signal to exit
        deadline = Deadline(grace)
        for process in processes:
            try:
                process.wait(deadline.left)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()
        for output in self._outputs:
            output.close()

    def _ready(self, deadline: Deadline) -> tuple[str, ...]:
        """Read the port that each worker prints when it is ready."""

        def first_line(process: subprocess.Popen[bytes]) -> bytes:
            assert process.stdout is not None
            with process.stdout as pipe:
                return pipe.readline()

        def refuse_failed() -> None:
            if any(line.wait(0) and not line.result(0).strip().isdigit() for line in lines):
                raise self._failure()

        # Read the pipes in threads, for a time limit on every platform.
        lines = [Running(functools.partial(first_line, process)) for process in self._processes]
        for line in lines:
            line.wait(deadline.end, refuse_failed)
        refuse_failed()
        count, ready = len(lines), sum(line.wait(0) for line in lines)
        if ready < count:
            raise ConnectError(
                f"{count - ready} of {count} local workers were not ready after "
                f"{deadline.seconds:g} s.",
                fix="Choose a longer --timeout, or start fewer workers.",
                tried=(f"{ready} of {count} workers were ready",),
            )
        return tuple(f"localhost:{int(line.result(0))}" for line in lines)

    def _failure(self) -> ConnectError:
        """Explain why a worker ended, with the last lines of its output."""
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)  # a worker that is ending prints the reason
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        reason = " ".join(line.strip() for line in lines[-_LAST_LINES:]) or "it printed nothing"
        return ConnectError(
            f"A local worker could not be started: {reason}",
            fix="Run `tpunb worker --port 0` in a terminal to see why.",
            tried=(f"{len(self._processes)} local workers: {reason}",),
        )


class _Output:
    """The output of a ready worker: an unnamed file, which ends with both processes.

    A file is better than a pipe: an operation's text can be read as soon as the operation ends.

    Attributes:
        handle: The file's number, for the worker.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        self.handle = self._file.fileno()
        if sys.platform != "win32":
            import fcntl

            # The file is emptied after each reading, so the worker must write at its new end.
            fcntl.fcntl(self.handle, fcntl.F_SETFL, os.O_APPEND)

    def lines(self) -> list[str]:
        """Return the new lines."""
        if self._file.closed:
            return []
        self._file.seek(0)
        text = self._file.read()
        end = text.rfind(b"\n") + 1
        if end:
            self._file.truncate(0)
        return text[:end].decode(errors="replace").splitlines()

    def close(self) -> None:
        self._file.close()


_CODE = """\
import sys
sys.path[:] = {path!r}
import runpy
runpy.run_module("tpunb.connection.cluster.worker", run_name="__main__")
"""
"""It lets the worker find the same package as this process."""


def _start(cores: int, log: IO[bytes], output: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _CODE.format(path=path_for_child()), str(cores)]
    options: dict[str, Any] = {}
    if sys.platform == "win32":
        options["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP
    else:
        # Keep the workers out of the kernel's process group, which the stop button interrupts.
        options["start_new_session"] = True
        options["pass_fds"] = (output,)
        command.append(str(output))
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        **options,
    )
