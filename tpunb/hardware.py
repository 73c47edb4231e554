"""Connecting to a real TPU, as TensorFlow's TPU guide does it."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

from tpunb.assignment import device_assignment
from tpunb.errors import ConnectError

if TYPE_CHECKING:
    from tpunb.request import Request


def connect(request: Request) -> tuple[Any, Any, Any, Any]:
    """Resolves, connects, initialises and makes the strategy.

    Args:
        request: What to connect to.

    Returns:
        The strategy, the resolver, the topology and the device assignment,
        which is None where every core is a replica.

    Raises:
        ConnectError: It did not work; its cause is TensorFlow's own error.
        ComputationShapeError: The computation shape does not fit.
    """
    import tensorflow as tf

    tried = [f"tensorflow {tf.__version__}"]
    if request.tpu == "local":
        _refuse_no_tpu(tf, tried)
    with _explained(request.tpu, tried):
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            request.tpu, zone=request.zone, project=request.project
        )
        workers = [] if request.tpu == "local" else _workers(resolver)
    for worker in workers:
        _refuse_dead_port(worker, request.timeout, tried)
    with _explained(request.tpu, tried):
        if request.tpu != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        topology = tf.tpu.experimental.initialize_tpu_system(resolver)
    assignment = device_assignment(
        topology, request.computation_shape, request.replicas, f"the TPU {request.tpu}"
    )
    with _explained(request.tpu, tried):
        strategy = tf.distribute.TPUStrategy(
            resolver,
            experimental_device_assignment=assignment,
            experimental_spmd_xla_partitioning=request.spmd,
        )
    return strategy, resolver, topology, assignment


def disconnect(resolver: Any) -> None:
    """Shuts the TPU system down, so that another process can have it."""
    import tensorflow as tf

    # A TPU that is gone already cannot be shut down, and need not be.
    with contextlib.suppress(tf.errors.OpError):
        tf.tpu.experimental.shutdown_tpu_system(resolver)


def _refuse_no_tpu(tf: Any, tried: list[str]) -> None:
    """TensorFlow's own message for this is about an op without a kernel."""
    found = tf.config.list_physical_devices("TPU")
    tried.append(f"TensorFlow lists {len(found)} TPU devices")
    if not found:
        raise ConnectError(
            f"TensorFlow {tf.__version__} sees no TPU on this machine.",
            mend="With a TPU here, install tensorflow-tpu in TensorFlow's version and restart the "
            "kernel; without one, simulate: %tpu_connect --simulate v5e-8.",
            tried=tried,
        )


def _workers(resolver: Any) -> list[str]:
    """The addresses of a TPU's workers, as `host:port`."""
    addresses: list[str] = resolver.cluster_spec().as_dict()[resolver.task_type]
    return addresses


def _refuse_dead_port(address: str, timeout: float, tried: list[str]) -> None:
    """TensorFlow itself would wait for a dead worker without end."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=timeout).close()
    except (OSError, ValueError, OverflowError) as error:
        tried.append(f"{host}:{port} did not answer: {error}")
        raise ConnectError(
            f"The TPU worker at {address} does not answer ({error}).",
            mend="Check the address and that the TPU is READY; without a TPU, simulate: "
            "%tpu_connect --simulate v5e-8.",
            tried=tried,
        ) from error
    tried.append(f"{host}:{port} answers")


@contextlib.contextmanager
def _explained(tpu: str, tried: list[str]) -> Any:
    """Any failure of TensorFlow's as a ConnectError, with its first line."""
    try:
        yield
    except Exception as error:
        first = str(error).strip().split("\n")[0] or type(error).__name__
        tried.append(f"{type(error).__name__}: {first}")
        raise ConnectError(
            f"Connecting to the TPU {tpu!r} failed: {first}",
            mend="Without a TPU, simulate one: %tpu_connect --simulate v5e-8.",
            tried=tried,
        ) from error
