"""One host of a virtual Pod: a process whose virtual cores others run on.

A worker is TensorFlow's own gRPC server with a logical CPU device for each core. It
listens on all network interfaces and asks nobody for a password, and what TensorFlow
can do, reading and writing files included, whoever reaches it can do as well.
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
from tpunb.virtual.import_tensorflow import prepared_import, require_tensorflow
from tpunb.virtual.tensorflow_runtime import server_runtime

MOST_CORES = 1024
_PREFIX = "tpunb_"
# As for virtual cores in one process: input pipelines must not wait for each other's threads.
_LEAST_THREADS = 16
_SECONDS_BETWEEN_LOOKS = 0.5


def cluster_name(version: str) -> str:
    """The name of a worker's cluster, which carries its version in the names of its devices.

    Args:
        version: A version of TensorFlow.
    """
    return _PREFIX + re.sub(r"\W", "_", version)


def version_of(device: str) -> str | None:
    """The version of TensorFlow in the name of a worker's device, its parts joined by `_`.

    Args:
        device: The full name of a device.

    Returns:
        The version; None if no `tpunb worker` named the device.
    """
    found = re.match(rf"/job:{_PREFIX}(\w+)/", device)
    return found[1] if found else None


def serve(cores: int, port: int, *, ready: Callable[[int], None]) -> None:
    """Runs a worker until a signal stops it; then the process has to exit.

    Args:
        cores: How many virtual cores it has.
        port: The port to listen on; 0 for a free one.
        ready: Called with the port once the worker answers.

    Raises:
        WorkerError: The port cannot be had.
    """
    # Not an event, whose lock the interrupted code may hold.
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        """Raises at the first signal, even while TensorFlow is being imported, and notes it.

        Python drops exceptions in some places. Later signals are ignored.
        """
        del frame
        if not received:
            received.append(number)
            raise _Stopped(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with contextlib.suppress(_Stopped):
        server = _server(cores, port)
        ready(int(server.target.rpartition(":")[2]))
        while not received:
            # A signal that one of TensorFlow's threads gets does not interrupt a long sleep.
            time.sleep(_SECONDS_BETWEEN_LOOKS)


class _Stopped(BaseException):
    """A signal has arrived."""


def _server(cores: int, port: int) -> Any:
    require_tensorflow()
    with prepared_import():
        tensorflow = server_runtime()  # a worker runs functions and makes none
    config = tensorflow.ConfigProto(
        device_count={"CPU": cores + 1},  # the first is the host's
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
            f"Port {port} cannot be listened on: {message}.",
            fix="Choose another with --port, or --port 0 for any free one.",
        ) from error


def _end_with(parent: int) -> None:
    """Exits when the parent process ends or closes the pipe, even during start-up.

    The closed pipe is seen at once. Where forked children of the parent keep it open, the
    parent's process id changes.
    """
    pipe = sys.stdin.fileno()
    while os.getppid() == parent:
        readable, _, _ = select.select([pipe], [], [], _SECONDS_BETWEEN_LOOKS)
        if readable and not os.read(pipe, 1024):
            break
    os._exit(0)


def _serve_parent(cores: int, output: int | None = None) -> None:
    """Runs a worker for the parent process, and prints its port for it.

    Args:
        cores: How many virtual cores it has.
        output: The open file that receives what its operations print.
    """

    def report(port: int) -> None:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        if output is not None:
            os.dup2(output, sys.stdout.fileno())

    threading.Thread(target=_end_with, args=(os.getppid(),), name="tpunb", daemon=True).start()
    serve(cores, 0, ready=report)
    os._exit(0)  # TensorFlow's server cannot be stopped


if __name__ == "__main__":
    _serve_parent(*map(int, sys.argv[1:]))
