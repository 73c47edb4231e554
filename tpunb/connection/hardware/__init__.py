"""Connects to a real TPU as TensorFlow's TPU guide does, with a deadline.

Whatever can hang is checked before TensorFlow is called, and TensorFlow's own waits can be
ended. After a failure TensorFlow is connected to nothing and stays usable.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tpunb._util.secret_masking import mask
from tpunb.connection.device_assignment import device_assignment
from tpunb.connection.hardware import cloud
from tpunb.connection.hardware.attempt import SIMULATE, Attempt
from tpunb.connection.hardware.workers import (
    addresses_of,
    answering,
    require_same_version,
    require_tpu_devices,
)
from tpunb.errors import ConnectError
from tpunb.machine import look
from tpunb.machine.software import tensorflow_version
from tpunb.virtual.import_tensorflow import import_tensorflow

if TYPE_CHECKING:
    from tpunb.connection.cluster.join import Joined
    from tpunb.connection.cluster.probe import Worker
    from tpunb.connection.plan import Plan

_SHUTTING_DOWN = 20.0  # seconds
_INITIALISING = "initialising it"
_joined: weakref.WeakKeyDictionary[Any, Joined] = weakref.WeakKeyDictionary()


def connect(plan: Plan, progress: Callable[[str], None] | None = None) -> tuple[Any, Any, Any, Any]:
    """Finds the TPU, checks its workers, connects, initialises it and makes the strategy.

    Args:
        plan: What to connect to. Its timeout is for the workers to answer, and again for
            the TPU system to be initialised.
        progress: Called with what is being done, in a few words.

    Returns:
        The strategy, resolver, topology and device assignment; the last is None if every
        core is a replica.

    Raises:
        ConnectError: It failed; TensorFlow is connected to nothing, and a virtual TPU can
            still be used.
        ComputationShapeError: The computation shape does not fit.
    """
    attempt = Attempt(plan.tpu, plan.request.timeout, progress)
    attempt.note(f"tensorflow {tensorflow_version() or 'of an unknown version'}")
    # Before TensorFlow is imported, which takes longer than a worker to answer.
    found = None if plan.tpu == "local" else _found(plan, attempt)
    with attempt.deadline.paused():
        import_tensorflow()
    import tensorflow as tf

    from tpunb.connection.cluster.time_limit import within
    from tpunb.virtual.devices import prepare

    with attempt.explained():
        prepare()  # so that a virtual TPU works after a failure
    address, joined = "local", None
    if found is None:
        require_local_tpu(tf, attempt)
    else:
        joined = _joined_to(*found, attempt)
        address = ",".join(f"grpc://{address}" for address in joined.addresses)
    try:
        with attempt.explained():
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(address)
        attempt.say("initialising the TPU system: this can take a minute")
        peers = joined.peers if joined is not None else ()
        with _in_time(attempt, _INITIALISING):
            topology = within(
                attempt.timeout, lambda: tf.tpu.experimental.initialize_tpu_system(resolver), peers
            )
        attempt.note("the TPU system is initialised", say=True)
        assignment = device_assignment(
            topology, plan.request.computation_shape, plan.request.replicas, f"the TPU {plan.tpu}"
        )
        with attempt.explained():
            strategy = tf.distribute.TPUStrategy(
                resolver,
                experimental_device_assignment=assignment,
                experimental_spmd_xla_partitioning=plan.request.spmd,
            )
    except BaseException:
        if joined is not None:
            joined.leave(alive=False)
        raise
    if joined is not None:
        _joined[resolver] = joined
    return strategy, resolver, topology, assignment


def lost(resolver: Any) -> tuple[str, ...]:
    """The addresses of workers that are gone or were restarted since connecting.

    Args:
        resolver: From `connect`.
    """
    joined = _joined.get(resolver)
    return () if joined is None else joined.lost()


def disconnect(resolver: Any) -> None:
    """Shuts down the TPU system, so that another process can use it; never hangs.

    Args:
        resolver: From `connect`.
    """
    import tensorflow as tf

    from tpunb.connection.cluster.time_limit import StillWaitingError, within

    joined = _joined.pop(resolver, None)
    alive = joined is None or not joined.is_current or not joined.lost()
    try:
        # Not for a TPU that is gone, which would fail, nor when TensorFlow has been connected to
        # another one since, which would be shut down instead.
        if joined is None or (joined.is_current and alive):
            peers = joined.peers if joined is not None else ()
            with contextlib.suppress(tf.errors.OpError, StillWaitingError):
                within(
                    _SHUTTING_DOWN,
                    lambda: tf.tpu.experimental.shutdown_tpu_system(resolver),
                    peers,
                )
    finally:
        if joined is not None:
            joined.leave(alive=alive)


def _found(plan: Plan, attempt: Attempt) -> tuple[cloud.Node | None, list[Worker]]:
    """The Cloud TPU, if it is given by name, and its workers."""
    node = None
    if not plan.tpu.startswith("grpc://"):
        attempt.say(f"looking up the TPU {plan.tpu}")
        node = cloud.look_up(attempt, zone=plan.request.zone, project=plan.request.project)
        attempt.note(str(node), say=True)
        cloud.refuse_unusable(node, attempt)
    addresses = node.endpoints if node is not None else addresses_of(plan.tpu, attempt)
    workers = answering(addresses, attempt, node)
    require_tpu_devices(workers, attempt)
    return node, workers


def _joined_to(node: cloud.Node | None, workers: list[Worker], attempt: Attempt) -> Joined:
    """Connects TensorFlow to the workers of a TPU on other machines."""
    import tensorflow as tf

    from tpunb.connection.cluster.join import join

    require_same_version(tf.__version__, workers[0].address, attempt, node)
    attempt.say("connecting TensorFlow to the TPU")
    with _in_time(attempt, "connecting TensorFlow to it"):
        joined = join(workers, attempt.deadline.left, tpu=True)
    attempt.note("TensorFlow is connected")
    return joined


@contextlib.contextmanager
def _in_time(attempt: Attempt, what: str) -> Iterator[None]:
    """Explains TensorFlow's errors, and a call that was not done by the deadline."""
    from tpunb.connection.cluster.time_limit import StillWaitingError

    try:
        with attempt.explained():
            yield
    except ConnectError as error:
        waiting = error.__cause__
        if not isinstance(waiting, StillWaitingError):
            raise
        fix = f"Raise the timeout: --timeout {5 * attempt.timeout:g}; or stop and start the TPU."
        if waiting.left_behind or what != _INITIALISING:
            # TensorFlow may still be waiting in a thread, and again at the end of the process.
            fix = f"Restart the kernel before you connect to this TPU again. {SIMULATE}"
        tpu, limit = mask(attempt.tpu), f"{attempt.timeout:g} s"
        raise attempt.error(
            f"The TPU {tpu} answered, and {what} was not done in {limit}.", fix
        ) from None


def require_local_tpu(tf: Any, attempt: Attempt) -> None:
    """Raises, with the reason, if TensorFlow sees no TPU on this machine.

    Raises:
        ConnectError: It sees none.
    """
    attempt.say("looking for a TPU on this machine")
    with attempt.explained():
        found = tf.config.list_physical_devices("TPU")
    attempt.note(f"TensorFlow lists {len(found)} TPU devices")
    if found:
        return
    machine = look(os.environ)
    search = machine.search
    attempt.tried[:] = [*search.tried, *attempt.tried]
    if not (search.chips.there or search.lacks_devices):
        raise attempt.error(
            f"TensorFlow {tf.__version__} sees no TPU on this machine, and nothing "
            "else indicates one.",
            f"{SIMULATE} With a TPU, run this on its own machine.",
        )
    problems = [problem for problem in machine.problems_for(local_tpu=True) if problem.stops]
    if problems:
        first = problems[0]
        for problem in problems:
            attempt.note(problem.message)
        fix = first.fix
        if first.command and first.command not in fix:
            fix = f"{fix.rstrip('.')}: {first.command}"
        raise attempt.error(f"TensorFlow {tf.__version__} sees no TPU here. {first.message}", fix)
    raise attempt.error(
        f"TensorFlow {tf.__version__} sees no TPU, though there is one on this machine.",
        "Restart the kernel and connect before anything else uses the TPU; `%tpu_doctor` shows "
        "the installed versions and the process that holds the TPU.",
    )
