"""Connecting to a real TPU, as TensorFlow's TPU guide does it, within a time limit.

Whatever can hang is found out before TensorFlow is asked, and what TensorFlow then waits
for can be ended. After a failure TensorFlow is connected to nothing, and goes on.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tpunb import cloud
from tpunb.assignment import device_assignment
from tpunb.hardware.attempt import SIMULATE, Attempt
from tpunb.hardware.local import refuse_no_tpu_here
from tpunb.hardware.versions import refuse_other_version
from tpunb.hardware.workers import addresses_of, answering, refuse_no_tpu
from tpunb.joining import Joined, join
from tpunb.machine import tensorflow_version
from tpunb.masking import mask
from tpunb.quiet import import_tensorflow

if TYPE_CHECKING:
    from tpunb.reaching import Worker
    from tpunb.request import Request

__all__ = ["connect", "disconnect", "lost"]

_SHUTTING_DOWN = 20.0  # seconds
_INITIALISING = "initialising it"
_joined: weakref.WeakKeyDictionary[Any, Joined] = weakref.WeakKeyDictionary()


def connect(
    request: Request, progress: Callable[[str], None] | None = None
) -> tuple[Any, Any, Any, Any]:
    """Finds the TPU, asks its workers, connects, initialises and makes the strategy.

    Args:
        request: What to connect to. Its time limit holds until the workers have answered,
            and anew for initialising the TPU system.
        progress: Is told what is being done, in a few words.

    Returns:
        The strategy, the resolver, the topology and the device assignment,
        which is None where every core is a replica.

    Raises:
        ConnectError: It did not work; TensorFlow is connected to nothing, and a virtual
            TPU can be used.
        ComputationShapeError: The computation shape does not fit.
    """
    attempt = Attempt(request.tpu, request.timeout, progress)
    attempt.note(f"tensorflow {tensorflow_version() or 'of an unknown version'}")
    # Before TensorFlow is imported, which takes longer than a worker to answer.
    found = None if request.tpu == "local" else _found(request, attempt)
    with attempt.not_counted():
        import_tensorflow()
    import tensorflow as tf

    from tpunb.virtual.devices import prepare

    with attempt.explained():
        prepare()  # a virtual TPU has to be within reach after a failure
    joined = None
    if found is None:
        refuse_no_tpu_here(tf, attempt)
        with attempt.explained():
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
    else:
        resolver, joined = _remote(*found, attempt)
    try:
        topology = _initialised(resolver, joined, attempt)
        assignment = device_assignment(
            topology, request.computation_shape, request.replicas, f"the TPU {request.tpu}"
        )
        with attempt.explained():
            strategy = tf.distribute.TPUStrategy(
                resolver,
                experimental_device_assignment=assignment,
                experimental_spmd_xla_partitioning=request.spmd,
            )
    except BaseException:
        if joined is not None:
            joined.leave(alive=False)
        raise
    if joined is not None:
        _joined[resolver] = joined
    return strategy, resolver, topology, assignment


def lost(resolver: Any, *, timeout: float = 2.0) -> tuple[str, ...]:
    """The addresses of a TPU's workers that are gone, or were started anew since connecting.

    Args:
        resolver: What `connect` returned.
        timeout: Seconds after which a worker counts as gone.
    """
    joined = _joined.get(resolver)
    return () if joined is None else joined.lost(timeout=timeout)


def disconnect(resolver: Any) -> None:
    """Shuts the TPU system down, so that another process can have it; never hangs.

    Args:
        resolver: What `connect` returned.
    """
    import tensorflow as tf

    from tpunb.virtual.waiting import StillWaitingError, within

    joined = _joined.pop(resolver, None)
    alive = joined is None or not joined.is_current or not joined.lost()
    try:
        # A TPU that is gone already cannot be shut down, and need not be; nor may the
        # TPU be that TensorFlow has been connected to since.
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


def _found(
    request: Request, attempt: Attempt
) -> tuple[cloud.Node | None, tuple[str, ...], list[Worker]]:
    """The TPU in the Cloud, if it is given by name, its addresses, and what its workers answer."""
    node = None
    if not request.tpu.startswith("grpc://"):
        node = _node(request, attempt)
    addresses = node.endpoints if node is not None else addresses_of(request.tpu, attempt)
    workers = answering(addresses, attempt, node)
    refuse_no_tpu(workers, attempt)
    return node, addresses, workers


def _remote(
    node: cloud.Node | None, addresses: tuple[str, ...], workers: list[Worker], attempt: Attempt
) -> tuple[Any, Joined]:
    """Connects TensorFlow to the workers of a TPU on other machines."""
    import tensorflow as tf

    from tpunb.virtual.waiting import StillWaitingError

    refuse_other_version(tf.__version__, addresses, attempt, node)
    make = tf.distribute.cluster_resolver.TPUClusterResolver
    with attempt.explained():
        if node is None:
            resolver = make(",".join(f"grpc://{address}" for address in addresses))
        else:
            resolver = make(
                node.name, zone=node.zone, project=node.project, service=cloud.service(node)
            )
    attempt.say("connecting TensorFlow to the TPU")
    try:
        with attempt.explained():
            joined = join(workers, attempt.left, tpu=True)
    except Exception as error:
        if not isinstance(error.__cause__, StillWaitingError):
            raise
        raise _gave_up(attempt, "connecting TensorFlow to it", error.__cause__) from None
    attempt.note("TensorFlow is connected")
    return resolver, joined


def _node(request: Request, attempt: Attempt) -> cloud.Node:
    attempt.say(f"looking the TPU {request.tpu} up")
    node = cloud.look_up(
        request.tpu,
        zone=request.zone,
        project=request.project,
        timeout=attempt.left,
        tried=attempt.tried,
    )
    attempt.note(str(node), say=True)
    cloud.refuse_unusable(node, attempt.tried)
    return node


def _initialised(resolver: Any, joined: Joined | None, attempt: Attempt) -> Any:
    """Initialises the TPU system; returns the topology."""
    import tensorflow as tf

    from tpunb.virtual.waiting import StillWaitingError, within

    attempt.say("initialising the TPU system: this can take a minute")
    peers = joined.peers if joined is not None else ()
    try:
        with attempt.explained():
            topology = within(
                attempt.timeout,
                lambda: tf.tpu.experimental.initialize_tpu_system(resolver),
                peers,
            )
    except Exception as error:
        if not isinstance(error.__cause__, StillWaitingError):
            raise
        raise _gave_up(attempt, _INITIALISING, error.__cause__) from None
    attempt.note("the TPU system is initialised", say=True)
    return topology


def _gave_up(attempt: Attempt, what: str, waiting: Any) -> Exception:
    """Where TensorFlow was not done in time."""
    mend = f"Give it longer: --timeout {5 * attempt.timeout:g}; or stop and start the TPU."
    if waiting.left_behind or what != _INITIALISING:
        # TensorFlow may wait on in a thread of its own, and at the end of the process.
        mend = f"Restart the kernel before you connect to this TPU again. {SIMULATE}"
    return attempt.error(
        f"The TPU {mask(attempt.tpu)} answered, and {what} was not done in {attempt.timeout:g} s.",
        mend,
    )
