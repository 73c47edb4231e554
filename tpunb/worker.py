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
from tpunb.quiet import import_tensorflow

__all__ = ["DEFAULT_PORT", "MOST_CORES", "cluster_name", "serve", "version_of"]

DEFAULT_PORT = 8470
"""The port of a Cloud TPU's workers."""

MOST_CORES = 1024
_PREFIX = "tpunb_"
# As for virtual cores in one process: input pipelines must not wait for each other's threads.
_LEAST_THREADS = 16
_SECONDS_BETWEEN_LOOKS = 0.5


def cluster_name(version: str) -> str:
    """What a worker calls its own cluster: who asks it for its devices learns its version.

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


def serve(
    cores: int, port: int, *, ready: Callable[[int], None], with_parent: bool = False
) -> None:
    """Runs a worker until it is told to stop; then the process has to end.

    Args:
        cores: How many virtual cores it has.
        port: The port to listen on; 0 for a free one.
        ready: Is called with the port once the worker answers.
        with_parent: Whether the process ends when standard input closes or the parent
            process ends, whatever ends it.

    Raises:
        WorkerError: The port cannot be had.
    """
    if with_parent:
        threading.Thread(target=_end_with, args=(os.getppid(),), name="tpunb", daemon=True).start()
    told = _Told()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, told)
    with contextlib.suppress(_Stopped):
        server = _server(cores, port)
        ready(int(server.target.rpartition(":")[2]))
        while not told.to_stop:
            # A long sleep would go on where one of TensorFlow's threads gets the signal.
            time.sleep(_SECONDS_BETWEEN_LOOKS)


class _Stopped(BaseException):
    """A signal has come."""


class _Told:
    """Takes the signals that end a worker.

    The first is raised, wherever the process is: the end of importing TensorFlow is not waited
    for. It is noted too, as it may come where Python drops what is raised; and not in an
    `Event`, whose lock may be the very one that the process holds. Later ones say nothing new.

    Attributes:
        to_stop: Whether one has come.
    """

    def __init__(self) -> None:
        self.to_stop = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        del frame
        if not self.to_stop:
            self.to_stop = True
            raise _Stopped(number)


def _server(cores: int, port: int) -> Any:
    _leave_out_keras()
    import_tensorflow()
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": cores + 1},  # the first is the host's
        inter_op_parallelism_threads=max(_LEAST_THREADS, cores),
    )
    name = cluster_name(tf.__version__)
    try:
        return tf.distribute.Server(
            {name: [f"localhost:{port}"]}, job_name=name, task_index=0, config=config
        )
    except tf.errors.OpError as error:
        raise WorkerError(
            f"Port {port} cannot be listened on: {error.message.rstrip('.')}.",
            mend="Choose another with --port, or --port 0 for any free one.",
        ) from error


def _leave_out_keras() -> None:
    """Lets TensorFlow find no Keras: models are built in the notebook, not where they run.

    Keras, with all that it imports, is half of the time that a worker takes to start.
    """
    modules: dict[str, Any] = sys.modules
    for name in ("keras", "tf_keras"):
        modules.setdefault(name, None)  # Python's mark for what cannot be imported


def _end_with(parent: int) -> None:
    """Ends this process with the one that started it, or at its word, also while it starts.

    The pipe tells at once. Children that the parent forks hold it open, and then it is
    the number of the parent that changes.
    """
    pipe = sys.stdin.fileno()
    while os.getppid() == parent:
        readable, _, _ = select.select([pipe], [], [], _SECONDS_BETWEEN_LOOKS)
        if readable and not os.read(pipe, 1024):
            break
    os._exit(0)


def _serve_parent(cores: int) -> None:
    """A worker for the process that has started this one, to which it tells its port."""

    def tell(port: int) -> None:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()

    serve(cores, 0, ready=tell, with_parent=True)
    os._exit(0)  # TensorFlow's server has no end of its own


if __name__ == "__main__":
    _serve_parent(int(sys.argv[1]))
