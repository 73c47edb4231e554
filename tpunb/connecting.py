"""Connecting: from a request to a strategy that is ready to run."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpunb.accelerators import Accelerator, accelerator
from tpunb.assignment import device_assignment
from tpunb.connection import Connection, open_connections
from tpunb.errors import ConnectError
from tpunb.quiet import import_tensorflow, refuse_no_tensorflow
from tpunb.request import DEFAULT_TYPE, Request, resolve
from tpunb.virtual import installation, latest

if TYPE_CHECKING:
    from tpunb.pods import Pod

__all__ = ["TPUStrategy", "connect", "make_connection"]


def connect(
    tpu: str | None = None,
    *,
    simulate: str | int | bool | None = None,
    computation_shape: Sequence[int] | None = None,
    replicas: int | None = None,
    spmd: bool = False,
    strict: bool | Mapping[str, bool] = True,
    patch: bool = False,
    require_tpu: bool = False,
    zone: str | None = None,
    project: str | None = None,
    workers: Sequence[str] | str | None = None,
    local_workers: int | bool = False,
    timeout: float = 60,
) -> Connection:
    """Connects to a TPU, or to a virtual one.

    With neither `tpu` nor `simulate`, `TPUNB_TPU` decides; without it, the TPU of
    this machine is taken, or a virtual v5e-8 if there is none, and the
    connection's notes say why.

    Args:
        tpu: `"local"` on a TPU VM, Colab or Kaggle, the name of a Cloud TPU, or
            `"grpc://host:port"`.
        simulate: A TPU type such as `"v3-8"`, or a number of cores, to simulate
            on this machine's CPU; True for a v5e-8.
        computation_shape: Cores of one replica along the topology's axes
            `[x, y, z, core]`, for model parallelism; by default every core is a
            replica.
        replicas: How many replicas; by default as many as fit.
        spmd: Whether XLA partitions tensors over a replica's logical devices.
        strict: Whether a virtual TPU refuses what a TPU refuses: all rules (True),
            none, or a mapping from a rule's name to whether it holds.
        patch: Whether TensorFlow's own names answer for a virtual TPU until the
            connection is closed, as `tpunb.virtual.install` makes them.
        require_tpu: Whether to fail rather than to simulate when there is no
            TPU; `TPUNB_REQUIRE_TPU=1` does the same for a whole process.
        zone: The Cloud zone of a TPU given by name.
        project: The Cloud project of a TPU given by name.
        workers: The addresses of `tpunb worker` processes, one for each host of the TPU
            that is simulated: a virtual Pod. Without a type, all their cores.
        local_workers: Whether, or how many, workers are started on this machine; they end
            with the connection.
        timeout: Seconds after which an unreachable worker is given up.

    Returns:
        The connection; also a context manager that closes it.

    Raises:
        AcceleratorTypeError: There is no such TPU type.
        ComputationShapeError: The computation shape or the number of replicas
            does not fit.
        ConnectError: There is no TPU where one is wanted, or it does not answer.
        VirtualDevicesError: TensorFlow has started with too few devices for
            this virtual TPU.
    """
    request = resolve(
        tpu,
        simulate=simulate,
        computation_shape=computation_shape,
        replicas=replicas,
        spmd=spmd,
        strict=strict,
        patch=patch,
        require_tpu=require_tpu,
        zone=zone,
        project=project,
        workers=workers,
        local_workers=local_workers,
        timeout=timeout,
    )
    return make_connection(request)


def TPUStrategy(tpu: str = "") -> Any:
    """A strategy on the TPU here, or on a virtual one, in one call.

    In the manner of TF-GNN's `runner.TPUStrategy`: it finds the TPU, connects to
    it, initialises it and makes the strategy, as `connect` does.

    Args:
        tpu: As `connect` takes it; by default what `TPUNB_TPU` says, else the TPU
            of this machine, else a virtual v5e-8, with a warning that says why.

    Returns:
        A `tf.distribute.TPUStrategy`.

    Raises:
        ConnectError: There is no TPU where one is wanted, or it does not answer.
        VirtualDevicesError: TensorFlow has started with too few devices.
    """
    request = resolve(tpu)
    connection = make_connection(request)
    if connection.request.notes and connection.kind == request.kind:
        warnings.warn(" ".join(connection.request.notes), stacklevel=2)
    return connection.strategy


def make_connection(request: Request, say: Callable[[str], None] | None = None) -> Connection:
    """Connects as a settled request says; see `connect` for the errors.

    Args:
        request: What to connect to.
        say: Is told what is being done, where it takes time.
    """
    refuse_no_tensorflow()
    if request.kind == "virtual":
        return _virtual(request, say)
    from tpunb import hardware

    try:
        strategy, resolver, topology, assignment = hardware.connect(request, say)
    except ConnectError as error:
        if not request.fallback:
            raise
        return _stand_in(request, error)
    return Connection(request, strategy, resolver, topology, assignment)


def _stand_in(request: Request, error: ConnectError) -> Connection:
    """A virtual TPU in place of one that was found and cannot be used; never in silence."""
    from tpunb.hardware.attempt import SIMULATE

    reason = str(error).removesuffix(error.mend).strip().replace("\n", " ").rstrip(".")
    note = f"The TPU found here cannot be used ({reason}): this is a virtual {DEFAULT_TYPE}."
    mend = error.mend.replace(SIMULATE, "").strip()  # which is what is done
    notes = (note, *((f"To use the TPU: {mend}",) if mend else ()))
    # A summary says it too, but a script shows none, nor does `c = %tpu_connect`.
    warnings.warn(" ".join(notes), stacklevel=4)
    return _virtual(
        dataclasses.replace(request, kind="virtual", tpu=DEFAULT_TYPE, fallback=False, notes=notes)
    )


def _virtual(request: Request, say: Callable[[str], None] | None = None) -> Connection:
    if not request.is_pod:
        return _on_cores(request, accelerator(request.tpu), None)
    from tpunb.pods import open_pod

    pod = open_pod(request, say)
    for other in open_connections():
        other.close()  # TensorFlow knows one set of workers at a time
    try:
        connection = _on_cores(request, pod.accelerator, pod)
    except BaseException:
        pod.close()
        raise
    pod.end_with_process()  # before TensorFlow's own wait, which the strategy has registered
    return connection


def _on_cores(request: Request, tpu: Accelerator, pod: Pod | None) -> Connection:
    """A virtual TPU on this process's cores, or on those of a Pod's workers."""
    import_tensorflow()
    from tpunb.virtual.resolver import VirtualTPUClusterResolver, virtual_topology
    from tpunb.virtual.strategy import VirtualTPUStrategy

    topology = virtual_topology(tpu)
    assignment = device_assignment(topology, request.computation_shape, request.replicas, tpu.name)
    resolver = VirtualTPUClusterResolver(tpu, workers=pod.addresses if pod else ())
    strategy = VirtualTPUStrategy(
        resolver,
        device_assignment=assignment,
        spmd=request.spmd,
        strict=request.strictness,
    )
    latest.remember(strategy)
    connection = Connection(request, strategy, resolver, topology, assignment, pod=pod)
    if request.patch:
        connection.lent = installation.lend(tpu, request.strictness)
    return connection
