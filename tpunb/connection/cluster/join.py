"""Connects TensorFlow to the workers of a TPU or of a virtual Pod, and disconnects."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from tpunb._util.logs import timed
from tpunb.connection.cluster.probe import Unreachable, Worker, check_all, peers_of

_LEAVING = 3.0  # seconds
_AT_ONCE = 0.2

_current: Joined | None = None
"""TensorFlow is connected to one cluster at a time."""


@dataclasses.dataclass(eq=False)
class Joined:
    """Workers that TensorFlow is connected to.

    Attributes:
        workers: The workers, with the incarnations that they had.
        peers: Their IP addresses and ports.
        generation: Identifies this connection among all of this process.
    """

    workers: tuple[Worker, ...]
    peers: Collection[tuple[str, int]]
    generation: int = 0
    _scope: Any = None
    _undo: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the workers."""
        return tuple(worker.address for worker in self.workers)

    @property
    def is_current(self) -> bool:
        """True if this is TensorFlow's current connection."""
        from tpunb.connection.cluster import context as cluster

        return cluster.is_current(self.generation)

    def lost(self, *, timeout: float = 2.0) -> tuple[str, ...]:
        """The addresses of workers that are gone or were restarted.

        Args:
            timeout: Seconds to wait for an answer.
        """
        answers = check_all(self.addresses, timeout=timeout)
        return tuple(
            worker.address
            for worker, answer in zip(self.workers, answers, strict=True)
            if isinstance(answer, Unreachable) or answer.incarnation != worker.incarnation
        )

    def leave(self, *, alive: bool = True) -> None:
        """Disconnects TensorFlow from the workers.

        Args:
            alive: Whether they still respond; others get no time to disconnect.
        """
        import tensorflow as tf

        from tpunb.connection.cluster import context as cluster
        from tpunb.connection.cluster.time_limit import StillWaitingError, within

        global _current
        self._undo.close()
        if self._scope is not None:
            # Fails if the notebook has entered another scope since, or in another thread.
            with contextlib.suppress(RuntimeError):
                self._scope.__exit__(None, None, None)
            self._scope = None
        if _current is self:
            _current = None
        if self.is_current:
            with contextlib.suppress(StillWaitingError, tf.errors.OpError):
                within(
                    _LEAVING if alive else _AT_ONCE,
                    lambda: cluster.disconnect(self.generation),
                    self.peers,
                )

    def _enter_scope(self) -> None:
        """Makes the first worker the default device, as TensorFlow's guide for TPUs does.

        Datasets have to be made where the TPU can read them.
        """
        import tensorflow as tf

        from tpunb.virtual.devices import WORKER_JOB

        self._scope = tf.device(f"/job:{WORKER_JOB}/replica:0/task:0/device:CPU:0")
        self._scope.__enter__()


@timed("connection", "connect TensorFlow to the workers")
def join(workers: Sequence[Worker], timeout: float, *, tpu: bool = False) -> Joined:
    """Connects TensorFlow to workers that have just passed their health check.

    Args:
        workers: The workers.
        timeout: Seconds.
        tpu: Whether they are a TPU's: then TensorFlow's coordination service is used, and
            the first worker is the default device.

    Raises:
        StillWaitingError: They no longer answer.
        tf.errors.OpError: TensorFlow cannot connect to them.
    """
    from tpunb.connection.cluster import context as cluster
    from tpunb.connection.cluster.context import restored_eagerly
    from tpunb.connection.cluster.time_limit import set_keepalive, within

    global _current
    joined = Joined(tuple(workers), peers_of([worker.address for worker in workers]))
    if _current is not None:  # its scope would enclose the new one
        _current.leave()
    _current = joined

    def connect() -> None:
        joined.generation = cluster.connect(joined.addresses, coordinated=tpu)

    try:
        with _without_hint():
            # Its connections are not cut: where connecting fails, some releases of TensorFlow
            # end the process.
            within(timeout, connect)
        set_keepalive(joined.peers)
        joined._undo.enter_context(restored_eagerly())
        if tpu:
            joined._enter_scope()
    except BaseException:
        if not joined.generation:
            joined.generation = cluster.give_up()
        joined.leave(alive=False)
        raise
    return joined


@contextlib.contextmanager
def _without_hint() -> Iterator[None]:
    """Drops TensorFlow's warning that it has started already, which does not matter here."""

    def wanted(record: logging.LogRecord) -> bool:
        return "Configuring coordination service type" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)
