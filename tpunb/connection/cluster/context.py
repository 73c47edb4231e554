"""TensorFlow's eager context and the cluster that it is connected to.

TensorFlow connects to workers in two ways. The public one, `experimental_connect_to_cluster`,
starts over: the devices of the previous cluster are gone, and a process that touches a
variable or tensor on one of them crashes. Updating the cluster keeps enough state for an
error instead, so it is used where there is a cluster already.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual import _tensorflow as private
from tpunb.virtual._tensorflow import context
from tpunb.virtual.devices import WORKER_JOB, prepare
from tpunb.virtual.patch.patch_tools import attribute
from tpunb.virtual.tensorflow_state import forget_cluster, has_started, restoring_as_one_task

# A call to a worker that is gone fails instead of waiting for it forever.
_FAIL_FAST = "GRPC_FAIL_FAST"
# Streamed operations to a worker that is gone vanish silently, while single calls fail. A TPU's
# worker is more likely to freeze, and closing the stream ends that wait.
_STREAMING = "TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE"
_LOCAL_JOB = "localhost"
# TensorFlow retries a worker that was away once a second.
_PATIENCE = 5.0
_PAUSE = 0.1


def started() -> bool:
    """Returns whether TensorFlow runs in this process without a cluster.

    Connecting then invalidates existing variables: TensorFlow recreates its own devices as
    well, and an assignment to a variable on an earlier one has no effect.
    """
    return has_started() and context.get_server_def() is None


_generation = 0
_joined = False  # whether TensorFlow has been connected to a cluster


def connect(addresses: Sequence[str], *, coordinated: bool = False) -> int:
    """Adds the devices of workers to TensorFlow; values on earlier workers are lost.

    TensorFlow waits forever for a worker that accepts connections and does not answer, so
    check all of them first.

    Args:
        addresses: The workers, as `host:port`.
        coordinated: Whether TensorFlow's coordination service runs on the first worker, as
            it does on a TPU's.

    Returns:
        The generation, for `disconnect` and `is_current`.
    """
    global _generation, _joined
    os.environ.setdefault(_FAIL_FAST, "true")
    if not coordinated:
        os.environ.setdefault(_STREAMING, "false")
    _start(coordinated)
    _generation += 1
    if context.get_server_def() is not None:
        _update(addresses)
        return _generation
    with socket.socket() as asking:
        asking.bind(("", 0))
        free_port = int(asking.getsockname()[1])
    here = f"{_own_host(addresses)}:{free_port}"
    cluster = tf.train.ClusterSpec({WORKER_JOB: list(addresses), _LOCAL_JOB: [here]})
    tf.config.experimental_connect_to_cluster(cluster)
    _joined = True
    return _generation


def give_up() -> int:
    """Cleans up after a `connect` that failed or timed out.

    Returns:
        The generation for `disconnect`, if this was not the first cluster.
    """
    if not _joined:
        # TensorFlow stores a cluster that it failed to connect to as its current one.
        forget_cluster()
    return _generation


def is_current(generation: int) -> bool:
    """Returns whether no other `connect` or `disconnect` has followed."""
    return generation == _generation and context.get_server_def() is not None


def disconnect(generation: int) -> None:
    """Removes the workers; values on them raise an error when used.

    Args:
        generation: From `connect`; a later connection is left alone.
    """
    global _generation
    if is_current(generation):
        _generation += 1
        _update(())


def skip_exit_wait() -> None:
    """Stops TensorFlow from waiting for its workers at the end of the process."""
    atexit.unregister(context.async_wait)


def _start(coordinated: bool) -> None:
    """Initialises the context, so that TensorFlow connects now and not at its next use."""
    running = context.context()
    if has_started():
        return
    prepare()
    if coordinated:
        # TensorFlow sets this when it connects, which is too late once it has started.
        leader = f"/job:{WORKER_JOB}/task:0"
        running.configure_coordination_service("standalone", leader, enable_health_check=False)
    running.ensure_initialized()


def _update(addresses: Sequence[str]) -> None:
    server_def = context.get_server_def()
    for job in [job for job in server_def.cluster.job if job.name == WORKER_JOB]:
        server_def.cluster.job.remove(job)
    if addresses:
        job = server_def.cluster.job.add(name=WORKER_JOB)
        job.tasks.update(enumerate(addresses))
        for job in server_def.cluster.job:
            if job.name == _LOCAL_JOB:  # workers may find this process at another address now
                port = job.tasks[0].rpartition(":")[2]
                job.tasks[0] = f"{_own_host(addresses)}:{port}"
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            context.update_server_def(server_def)
            return
        except tf.errors.UnavailableError:
            # The workers have just passed a health check.
            if not addresses or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)


def _own_host(addresses: Sequence[str]) -> str:
    """The address under which workers find this process.

    They call it for Python functions in datasets and for saving. TensorFlow's default is
    `localhost`, which on another machine means that machine.
    """
    for address in addresses:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError):
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
            family, kind, protocol, _, target = found[0]
            with socket.socket(family, kind, protocol) as asking:
                asking.connect(target)  # sends nothing
                own = str(asking.getsockname()[0])
            if not own.startswith("127.") and own != "::1":
                return f"[{own}]" if ":" in own else own
    return "localhost"


def restored_eagerly() -> contextlib.AbstractContextManager[None]:
    """Makes TensorFlow restore checkpoints eagerly on any number of workers."""
    restore = private.MultiDeviceSaver.restore

    def one_by_one(saver: Any, *args: Any, **kwargs: Any) -> Any:
        with restoring_as_one_task(saver):
            return restore(saver, *args, **kwargs)

    return attribute(private.MultiDeviceSaver, "restore", one_by_one)
