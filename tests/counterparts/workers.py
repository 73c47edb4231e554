"""TensorFlow's own gRPC servers, and workers with a TPU's devices, as child processes.

with tensorflow_server() as worker:
    ...
    worker.freeze()
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

from support.patience import PATIENCE

__all__ = ["Served", "free_port", "tensorflow_server", "tpu_worker"]

_SCRIPT = Path(__file__).with_name("serving.py")


class Served:
    """A worker in its own process, until the end of its `with` block.

    Attributes:
        address: Its address, as `host:port`.
    """

    def __init__(self, *arguments: object) -> None:
        self._arguments = [str(argument) for argument in arguments]
        self._process = self._start()
        self.address = self._read_address()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def freeze(self) -> None:
        """Stop the process: its port still accepts connections, and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)  # its threads stop one after the other

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process, like a crash."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(PATIENCE)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def restart(self) -> None:
        """Start the worker again on the same port."""
        self.kill()
        self._arguments[1] = self.address.rpartition(":")[2]
        self._process = self._start()
        assert self._read_address() == self.address

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(_SCRIPT), *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def _read_address(self) -> str:
        out = self._process.stdout
        assert out is not None
        if not select.select([out], [], [], PATIENCE)[0]:
            self.kill()
            raise AssertionError("the worker does not start")
        return out.readline().strip()


def free_port() -> int:
    """Return a port on which nothing listens.

    It is below the range from which the system assigns ports.
    """
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def tensorflow_server(cpus: int = 2) -> Served:
    """Start a `tf.distribute.Server`, which has no TPU.

    Args:
        cpus: Its logical CPU devices.
    """
    return Served("tensorflow", free_port(), cpus)


def tpu_worker(cores: int = 8, *, statuses: int = 1 << 20) -> Served:
    """Start a worker that has a TPU's devices, and hangs at every call to run something.

    Args:
        cores: Its TPU cores.
        statuses: How many requests for its devices it answers; later requests hang.
    """
    return Served("tpu", 0, cores, statuses)
