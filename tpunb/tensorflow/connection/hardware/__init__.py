"""The connection to a real TPU: the steps of TensorFlow's TPU guide, with a deadline.

Every step that can hang is checked before TensorFlow is called, and TensorFlow's own waits can be
ended. After a failure, TensorFlow is connected to nothing and stays usable.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tpunb._util.secret_masking import mask
from tpunb.errors import ConnectError
from tpunb.machine.import_tensorflow import import_tensorflow
from tpunb.machine.setup import look
from tpunb.machine.tested_releases import tensorflow_version
from tpunb.tensorflow.connection.device_assignment import device_assignment
from tpunb.tensorflow.connection.hardware import cloud
from tpunb.tensorflow.connection.hardware.attempt import SIMULATE, Attempt
from tpunb.tensorflow.connection.hardware.worker_versions import require_same_version
from tpunb.tensorflow.connection.hardware.workers import (
    addresses_of,
    answering,
    require_tpu_devices,
)

if TYPE_CHECKING:
    from tpunb.connection.plan import Plan
    from tpunb.tensorflow.connection.cluster.join import Joined
    from tpunb.tensorflow.connection.cluster.probe import Worker

_SHUTTING_DOWN = 20.0  # seconds
_INITIALISING = "initialising it"
_joined: weakref.WeakKeyDictionary[Any, Joined] = weakref.WeakKeyDictionary()


def connect(plan: Plan, progress: Callable[[str], None] | None = None) -> tuple[Any, Any, Any, Any]:
    """Find the TPU, check its workers, connect, initialise the TPU and make the strategy.

    Args:
        plan: The resolved request. Its timeout applies to the workers' answers, and again to
            the initialisation of the TPU system.
        progress: Called with a description of each step, in a few words.

    Returns:
        The strategy, resolver, topology and device assignment. The last is None if every
        core is a replica.

    Raises:
        ConnectError: Connecting failed. TensorFlow is connected to nothing, and a virtual TPU
            can still be used.
        ComputationShapeError: The computation shape does not fit.
    """
    attempt = Attempt(plan.tpu, plan.request.timeout, progress)
    attempt.note(f"tensorflow {tensorflow_version() or 'of an unknown version'}")
    # Ask before importing TensorFlow, which takes longer than a worker's answer.
    remote = None if plan.tpu == "local" else _found(plan, attempt)
    with attempt.deadline.paused():
        import_tensorflow()
    import tensorflow as tf

    from tpunb.tensorflow.connection.cluster.hanging_calls import within
    from tpunb.tensorflow.virtual.runtime.devices import prepare

    with attempt.explained():
        prepare()  # so that a virtual TPU still works after a failure
    address, joined = "local", None
    if remote is None:
        require_local_tpu(tf, attempt)
    else:
        joined = _joined_to(*remote, attempt)
        address = ",".join(f"grpc://{address}" for address in joined.addresses)
    try:
        with attempt.explained():
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(address)
        attempt.say("initialising the TPU system, which can take a minute")
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
    """Return the addresses of workers that have gone or restarted since connecting.

    Args:
        resolver: The resolver from `connect`.
    """
    joined = _joined.get(resolver)
    return () if joined is None else joined.lost()


def disconnect(resolver: Any) -> None:
    """Shut down the TPU system, so that another process can use it. This never hangs.

    Args:
        resolver: The resolver from `connect`.
    """
    import tensorflow as tf

    from tpunb.tensorflow.connection.cluster.hanging_calls import StillWaitingError, within

    joined = _joined.pop(resolver, None)
    alive = joined is None or not joined.is_current or not joined.lost()
    try:
        # Do not shut down a TPU that has gone, which would fail. Do not shut down at all if
        # TensorFlow has connected to another TPU since, because that TPU would be shut down.
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
    """Return the Cloud TPU, if it is given by name, and its workers."""
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
    """Connect TensorFlow to the workers of a TPU on other machines."""
    import tensorflow as tf

    from tpunb.tensorflow.connection.cluster.join import join

    require_same_version(tf.__version__, workers[0].address, attempt, node)
    attempt.say("connecting TensorFlow to the TPU")
    with _in_time(attempt, "connecting TensorFlow to it"):
        joined = join(workers, attempt.deadline.left)
    attempt.note("TensorFlow is connected")
    return joined


@contextlib.contextmanager
def _in_time(attempt: Attempt, step: str) -> Iterator[None]:
    """Explain TensorFlow's errors, and a step that does not end by the deadline."""
    from tpunb.tensorflow.connection.cluster.hanging_calls import StillWaitingError

    try:
        with attempt.explained():
            yield
    except ConnectError as error:
        waiting = error.__cause__
        if not isinstance(waiting, StillWaitingError):
            raise
        fix = f"Raise the timeout: --timeout {5 * attempt.timeout:g}. Or stop and start the TPU."
        if waiting.left_behind or step != _INITIALISING:
            # TensorFlow may still wait in a thread, and again at the end of the process.
            fix = f"Restart the kernel before you connect to this TPU again. {SIMULATE}"
        tpu, limit = mask(attempt.tpu), f"{attempt.timeout:g} s"
        raise attempt.error(
            f"The TPU {tpu} answered, but {step} was not done in {limit}.", fix
        ) from None


def require_local_tpu(tf: Any, attempt: Attempt) -> None:
    """Raise an error, with the reason, if TensorFlow sees no TPU on this machine.

    Raises:
        ConnectError: TensorFlow sees no TPU.
    """
    attempt.say("looking for a TPU on this machine")
    with attempt.explained():
        devices = tf.config.list_physical_devices("TPU")
    attempt.note(f"TensorFlow lists {len(devices)} TPU devices")
    if devices:
        return
    machine = look(os.environ)
    search = machine.search
    attempt.tried[:] = [*search.tried, *attempt.tried]
    if not (search.chips.there or search.lacks_devices):
        raise attempt.error(
            f"TensorFlow {tf.__version__} sees no TPU on this machine, and nothing "
            "else indicates one.",
            f"{SIMULATE} With a TPU, run this on the TPU's own machine.",
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
        f"TensorFlow {tf.__version__} sees no TPU, although this machine has one.",
        "Restart the kernel and connect before anything else uses the TPU. `%tpu_doctor` shows "
        "the installed versions and the process that holds the TPU.",
    )
