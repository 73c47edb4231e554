"""TensorFlow's connection to the workers of a TPU.

TensorFlow connects to workers in two ways. The public `experimental_connect_to_cluster` starts
over: the devices of the previous cluster disappear, and a process that touches a variable or
tensor on one of them crashes (2.18 to 2.21; tensorflow/tensorflow#33894 reports it for 2.0).
Updating the cluster keeps enough state for an error instead of a crash, so this module updates a
cluster that exists.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.logs import timed
from tpunb._util.patching import attribute
from tpunb.tensorflow.connection.cluster.hanging_calls import (
    StillWaitingError,
    set_keepalive,
    within,
)
from tpunb.tensorflow.connection.cluster.probe import Unreachable, Worker, check_all, peers_of
from tpunb.tensorflow.virtual import private_names as private
from tpunb.tensorflow.virtual.private_names import context
from tpunb.tensorflow.virtual.runtime.devices import prepare
from tpunb.tensorflow.virtual.runtime.tensorflow_state import (
    forget_cluster,
    has_started,
    restoring_as_one_task,
)

# With this variable, a call to a worker that has gone fails instead of waiting for ever.
_FAIL_FAST = "GRPC_FAIL_FAST"
WORKER_JOB = "worker"
"""The job name of a TPU's workers, as in TPUClusterResolver."""

_LOCAL_JOB = "localhost"
# TensorFlow retries a worker that was away only once a second.
_PATIENCE = 5.0
_PAUSE = 0.1
_LEAVING = 3.0  # seconds
_AT_ONCE = 0.2
_ANSWERING = 2.0

_current: Joined | None = None
"""The workers that TensorFlow is connected to. It connects to one cluster at a time."""
_has_connected = False  # whether this process has ever connected to a cluster


@dataclasses.dataclass(eq=False)
class Joined:
    """Workers that TensorFlow is connected to.

    Attributes:
        workers: The workers, with their incarnations at the time of connecting.
        peers: Their IP addresses and ports.
    """

    workers: tuple[Worker, ...]
    peers: Collection[tuple[str, int]]
    _scope: Any = None
    _undo: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the workers."""
        return tuple(worker.address for worker in self.workers)

    @property
    def is_current(self) -> bool:
        """True if this is TensorFlow's current connection."""
        return _current is self and context.get_server_def() is not None

    def lost(self) -> tuple[str, ...]:
        """Return the addresses of workers that have gone or restarted."""
        answers = check_all(self.addresses, timeout=_ANSWERING)
        return tuple(
            worker.address
            for worker, answer in zip(self.workers, answers, strict=True)
            if isinstance(answer, Unreachable) or answer.incarnation != worker.incarnation
        )

    def disconnect(self) -> None:
        """Remove the workers. Using a value on them then raises an error.

        A later connection is not affected.
        """
        global _current
        if self.is_current:
            _current = None
            _update(())

    def leave(self, *, alive: bool = True) -> None:
        """Disconnect TensorFlow from the workers within seconds.

        Args:
            alive: Whether the workers still respond. Otherwise they get almost no time.
        """
        global _current
        self._undo.close()
        if self._scope is not None:
            # This fails if the notebook has entered another scope since, or in another thread.
            with contextlib.suppress(RuntimeError):
                self._scope.__exit__(None, None, None)
            self._scope = None
        if self.is_current:
            with contextlib.suppress(StillWaitingError, tf.errors.OpError):
                within(_LEAVING if alive else _AT_ONCE, self.disconnect, self.peers)
        if _current is self:
            _current = None

    def _connect(self) -> None:
        """Add the workers' devices to TensorFlow. Values on earlier workers are lost."""
        global _has_connected
        os.environ.setdefault(_FAIL_FAST, "true")
        running = context.context()
        if not has_started():
            prepare()
            # TensorFlow sets this when it connects, but only before it starts.
            leader = f"/job:{WORKER_JOB}/task:0"
            running.configure_coordination_service("standalone", leader, enable_health_check=False)
            running.ensure_initialized()  # connect now, not at the next use of TensorFlow
        if context.get_server_def() is not None:
            _update(self.addresses)
            return
        with socket.socket() as port_finder:
            port_finder.bind(("", 0))
            free_port = int(port_finder.getsockname()[1])
        here = f"{_own_host(self.addresses)}:{free_port}"
        cluster = tf.train.ClusterSpec({WORKER_JOB: list(self.addresses), _LOCAL_JOB: [here]})
        tf.config.experimental_connect_to_cluster(cluster)
        _has_connected = True


@timed("connection", "connect TensorFlow to the workers")
def join(workers: Sequence[Worker], timeout: float) -> Joined:
    """Connect TensorFlow to a TPU's workers, which have just passed their health check.

    The first worker becomes the default device. TensorFlow waits for ever for a worker that accepts
    connections but does not answer.

    Args:
        workers: The workers.
        timeout: The time limit in seconds.

    Raises:
        StillWaitingError: The workers no longer answer.
        tf.errors.OpError: TensorFlow cannot connect to them.
    """
    global _current
    joined = Joined(tuple(workers), peers_of([worker.address for worker in workers]))
    if _current is not None:  # its scope would enclose the new one
        _current.leave()
    _current = joined
    try:
        with _without_hint():
            # Do not cut its connections: if connecting fails, some releases of TensorFlow end
            # the process.
            within(timeout, joined._connect)
        set_keepalive(joined.peers)
        joined._undo.enter_context(_restored_eagerly())
        # As in TensorFlow's guide, datasets must be made on a device that the TPU can read.
        joined._scope = tf.device(f"/job:{WORKER_JOB}/replica:0/task:0/device:CPU:0")
        joined._scope.__enter__()
    except BaseException:
        if not _has_connected:
            # TensorFlow keeps a cluster as its current one even if connecting to it failed.
            forget_cluster()
        joined.leave(alive=False)
        raise
    return joined


@contextlib.contextmanager
def _without_hint() -> Iterator[None]:
    """Drop TensorFlow's warning that it has already started, which does not matter here."""

    def wanted(record: logging.LogRecord) -> bool:
        return "Configuring coordination service type" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


def _update(addresses: Sequence[str]) -> None:
    server_def = context.get_server_def()
    for job in [job for job in server_def.cluster.job if job.name == WORKER_JOB]:
        server_def.cluster.job.remove(job)
    if addresses:
        job = server_def.cluster.job.add(name=WORKER_JOB)
        job.tasks.update(enumerate(addresses))
        for job in server_def.cluster.job:
            if job.name == _LOCAL_JOB:  # workers may now find this process at another address
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
    """Return the address at which workers find this process.

    They call it for Python functions in datasets and for saving. TensorFlow's default is
    `localhost`, which on another machine is that machine itself.
    """
    for address in addresses:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError):
            infos = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
            family, kind, protocol, _, target = infos[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # sends no packet
                own = str(probe.getsockname()[0])
            if not own.startswith("127.") and own != "::1":
                return f"[{own}]" if ":" in own else own
    return "localhost"


def _restored_eagerly() -> contextlib.AbstractContextManager[None]:
    """Make TensorFlow restore checkpoints eagerly on any number of workers."""
    restore = private.MultiDeviceSaver.restore

    def one_by_one(saver: Any, *args: Any, **kwargs: Any) -> Any:
        with restoring_as_one_task(saver):
            return restore(saver, *args, **kwargs)

    return attribute(private.MultiDeviceSaver, "restore", one_by_one)
