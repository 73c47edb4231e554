"""One host of a virtual Pod: a process whose virtual cores other processes use.

A worker is TensorFlow's own gRPC server with a logical CPU device for each core. It
listens on all network interfaces without a password. Anyone who reaches it can use all
of TensorFlow, which includes reading and writing files.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from tpunb.errors import WorkerError
from tpunb.virtual.tensorflow.import_tensorflow import prepared_import, require_tensorflow
from tpunb.virtual.tensorflow.tensorflow_runtime import server_runtime

MOST_CORES = 1024
_PREFIX = "tpunb_"
# Input pipelines must not wait for each other's threads, as with virtual cores in one process.
_LEAST_THREADS = 16
_SECONDS_BETWEEN_LOOKS = 0.5


def cluster_name(version: str) -> str:
    """Return the name of a worker's cluster, which puts its version into its devices' names.

    Args:
        version: A version of TensorFlow.
    """
    return _PREFIX + re.sub(r"\W", "_", version)


def version_of(device: str) -> str | None:
    """Return the version of TensorFlow in a worker's device name, its parts joined by `_`.

    Args:
        device: The full name of a device.

    Returns:
        The version, or None if the device does not belong to a `tpunb worker`.
    """
    match = re.match(rf"/job:{_PREFIX}(\w+)/", device)
    return match[1] if match else None


def serve(cores: int, port: int, *, ready: Callable[[int], None]) -> None:
    """Run a worker until a signal stops it. The process must exit afterwards.

    Args:
        cores: The number of virtual cores.
        port: The port to listen on; 0 for a free port.
        ready: Called with the port once the worker answers.

    Raises:
        WorkerError: The port is not available.
    """
    # A list rather than an event, whose lock the interrupted code may hold.
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        """Record the first signal and raise, even while TensorFlow is being imported.

        The record is needed because Python drops exceptions in some places. Later signals are
        ignored.
        """
        del frame
        if not received:
            received.append(number)
            raise _Stopped(number)

    with contextlib.suppress(_Stopped):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        server = _server(cores, port)
        ready(int(server.target.rpartition(":")[2]))
        while not received:
            # A long sleep is not interrupted by a signal that reaches a thread of TensorFlow.
            time.sleep(_SECONDS_BETWEEN_LOOKS)


class _Stopped(BaseException):
    """A signal arrived."""


def _server(cores: int, port: int) -> Any:
    require_tensorflow()
    with prepared_import():
        tensorflow = server_runtime()  # a worker only runs functions and makes none
    config = tensorflow.ConfigProto(
        device_count={"CPU": cores + 1},  # the first is the host's device
        inter_op_parallelism_threads=max(_LEAST_THREADS, cores),
    )
    name = cluster_name(tensorflow.version)
    try:
        return tensorflow.Server(
            {name: [f"localhost:{port}"]}, job_name=name, task_index=0, config=config
        )
    except tensorflow.OpError as error:
        message = str(getattr(error, "message", error)).rstrip(".")
        raise WorkerError(
            f"The worker cannot listen on port {port}: {message}.",
            fix="Choose another port with --port, or use --port 0 for any free port.",
        ) from error


def _end_with(parent: int) -> None:
    """Exit when the parent process ends or closes the pipe, even during start-up.

    A closed pipe is noticed at once. If forked children of the parent keep the pipe open, the
    change of the parent's process id is noticed instead.
    """
    pipe = sys.stdin.fileno()
    while os.getppid() == parent:
        readable, _, _ = select.select([pipe], [], [], _SECONDS_BETWEEN_LOOKS)
        if readable and not os.read(pipe, 1024):
            break
    os._exit(0)


def _serve_parent(cores: int, output: int | None = None) -> None:
    """Run a worker for the parent process, and print its port for it.

    Args:
        cores: The number of virtual cores.
        output: The open file that receives the text that operations print.
    """

    def report(port: int) -> None:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        if output is not None:
            os.dup2(output, sys.stdout.fileno())

    threading.Thread(target=_end_with, args=(os.getppid(),), name="tpunb", daemon=True).start()
    serve(cores, 0, ready=report)
    # TensorFlow's server cannot be stopped: see tensorflow/tensorflow#23190, closed unmerged.
    os._exit(0)


if __name__ == "__main__":
    _serve_parent(*map(int, sys.argv[1:]))
