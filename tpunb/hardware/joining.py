"""TensorFlow's connection to a TPU's workers, and its end."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from tpunb.hardware.workers import peers_of
from tpunb.reaching import Unreachable, Worker, ask_all

__all__ = ["Joined", "join"]

_LEAVING = 3.0  # seconds
_AT_ONCE = 0.2
_JOB = "worker"

_current: Joined | None = None
"""TensorFlow knows one cluster at a time."""


@dataclasses.dataclass(eq=False)
class Joined:
    """The workers that TensorFlow is connected to.

    Attributes:
        workers: What they answered before; their incarnations tell them from later ones.
        peers: Their addresses as numbers.
    """

    workers: tuple[Worker, ...]
    peers: Collection[tuple[str, int]]
    _scope: Any = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the workers."""
        return tuple(worker.address for worker in self.workers)

    @property
    def is_current(self) -> bool:
        """Whether TensorFlow is connected to these, and to no others since."""
        from tpunb.virtual._tensorflow import context

        server_def = context.get_server_def() if _current is self else None
        if server_def is None:
            return False
        tasks = {job.name: list(job.tasks.values()) for job in server_def.cluster.job}
        return tasks.get(_JOB) == list(self.addresses)

    def lost(self, *, timeout: float = 2.0) -> tuple[str, ...]:
        """The addresses of the workers that are gone, or have been started anew."""
        answers = ask_all(self.addresses, timeout=timeout)
        return tuple(
            worker.address
            for worker, answer in zip(self.workers, answers, strict=True)
            if isinstance(answer, Unreachable) or answer.incarnation != worker.incarnation
        )

    def enter_scope(self) -> None:
        """Makes the first worker the default device, as TensorFlow's guide for TPUs does.

        Datasets have to be made where the TPU can read them.
        """
        import tensorflow as tf

        self._scope = tf.device(f"/job:{_JOB}/replica:0/task:0/device:CPU:0")
        self._scope.__enter__()

    def leave(self, *, alive: bool = True) -> None:
        """Makes TensorFlow forget the workers; it asks them no more.

        Args:
            alive: Whether they are known to answer; of others no farewell is waited for.
        """
        from tpunb.virtual.waiting import StillWaitingError, change_cluster, within

        global _current
        if self._scope is not None:
            # Not where the notebook has entered another scope since, or in another thread.
            with contextlib.suppress(RuntimeError):
                self._scope.__exit__(None, None, None)
            self._scope = None
        if not self.is_current:
            return
        _current = None
        import tensorflow as tf

        with contextlib.suppress(StillWaitingError, tf.errors.OpError):
            within(_LEAVING if alive else _AT_ONCE, change_cluster, self.peers)


def join(resolver: Any, workers: Sequence[Worker], timeout: float) -> Joined:
    """Connects TensorFlow to workers that have just answered.

    Args:
        resolver: A TPUClusterResolver.
        workers: What they answered.
        timeout: Seconds.

    Raises:
        StillWaitingError: They answer no more.
        tf.errors.OpError: TensorFlow cannot connect to them.
    """
    import tensorflow as tf

    from tpunb.virtual._tensorflow import context
    from tpunb.virtual.waiting import change_cluster, within

    global _current
    joined = Joined(tuple(workers), peers_of([worker.address for worker in workers]))
    if _current is not None:  # its scope would be in the way of the new one
        _current.leave()
    _start(resolver)

    before = context.get_server_def()
    done: list[bool] = []

    def connect() -> None:
        if before is not None:
            change_cluster(joined.addresses, _JOB)
        else:
            tf.config.experimental_connect_to_cluster(resolver, make_master_device_default=False)
        done.append(True)

    _current = joined
    try:
        with _without_hint():
            # Its connections are not cut: where connecting fails, some releases of TensorFlow
            # end the process.
            within(timeout, connect)
        joined.enter_scope()
    except BaseException:
        # TensorFlow remembers what it failed to connect to as if it had not failed.
        if before is None and not done:
            context.context()._server_def = None
        joined.leave(alive=False)
        raise
    return joined


def _start(resolver: Any) -> None:
    """Starts TensorFlow, so that it connects at once and not at its next use."""
    from tpunb.virtual._tensorflow import context

    running = context.context()
    if running._context_handle is not None:
        return
    # What TensorFlow would set when it connects, and cannot set once it has started.
    leader = resolver.get_coordination_service_leader()
    running.configure_coordination_service("standalone", leader, enable_health_check=False)
    running.ensure_initialized()


@contextlib.contextmanager
def _without_hint() -> Iterator[None]:
    """Without TensorFlow's remark that it has started already, which changes nothing here."""

    def wanted(record: logging.LogRecord) -> bool:
        return "Configuring coordination service type" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)
