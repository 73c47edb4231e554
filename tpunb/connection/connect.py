"""Connecting: from a request to a strategy that is ready to run."""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tpunb._util.logs import logger
from tpunb.connection.options import Request, takes
from tpunb.connection.plan import Plan, resolve
from tpunb.errors import ConnectError
from tpunb.machine.framework import JAX, TENSORFLOW
from tpunb.machine.import_tensorflow import import_tensorflow, require_tensorflow
from tpunb.machine.keras_2 import choose_keras_2
from tpunb.machine.tested_releases import tensorflow_version, warn_if_newer
from tpunb.tensorflow.connection.connection import Connection
from tpunb.tensorflow.connection.device_assignment import device_assignment
from tpunb.tpu.default_tpu import DEFAULT_TPU
from tpunb.tpu.types import accelerator
from tpunb.virtual import current_strategy
from tpunb.virtual.installer import lend

if TYPE_CHECKING:
    from tpunb.jax.connection.connection import JaxConnection
    from tpunb.jax.connection.hardware import JaxHardwareConnection

_log = logger("connection")


@takes(Request)
def connect(
    tpu: str | None = None, **values: Any
) -> Connection | JaxConnection | JaxHardwareConnection:
    """Connect to a TPU, or to a virtual one.

    With neither `tpu` nor `simulate`, `TPUNB_TPU` decides. If it is not set, connect to the TPU
    of this machine, or to a virtual v5e-8 if there is none. The connection's notes give the
    reason.

    Example:
        A virtual TPU needs no TPU. A block closes it:

        >>> with tpunb.connect(simulate="v5e-8") as connection:
        ...     result = connection.run_cell("y = replica_id + 1", reduce={"y": "sum"})
        >>> int(result.assigned["y"]), connection.phrase
        (36, 'virtual TPU v5e-8, 8 replicas')

        For JAX, write ``framework="jax"``; `jax.devices()` are then eight TPU chips. On a TPU VM,
        Colab or Kaggle, `tpunb.connect("local")` connects to the TPU.

    Returns:
        The connection, which is also a context manager that closes it.

    Raises:
        AcceleratorTypeError: The TPU type does not exist.
        ComputationShapeError: The computation shape or the number of replicas
            does not fit.
        ConnectError: A TPU is required but none is found, or it does not answer.
        VirtualDevicesError: TensorFlow has started with too few devices for
            this virtual TPU.
    """
    return make_connection(resolve(Request.of(tpu, **values)))


def connector(**values: Any) -> Callable[[], Connection | JaxConnection | JaxHardwareConnection]:
    """Return a function that connects, once the options of `connect` are checked."""
    return functools.partial(make_connection, resolve(Request.of(**values)))


def TPUStrategy(tpu: str = "") -> Any:
    """Return a strategy on this machine's TPU, or on a virtual TPU, in one call.

    Like TF-GNN's `runner.TPUStrategy`, this function finds the TPU, connects to it, initialises
    it and makes the strategy, as `connect` does.

    Example:
        >>> strategy = tpunb.TPUStrategy("local")  # doctest: +SKIP
        >>> with strategy.scope():  # doctest: +SKIP
        ...     model = make_model()

    Args:
        tpu: The TPU, as for `connect`. By default `TPUNB_TPU`, or the TPU of this machine,
            or a virtual v5e-8 with a warning.

    Returns:
        A `tf.distribute.TPUStrategy`.

    Raises:
        ConnectError: A TPU is required but none is found, or it does not answer.
        VirtualDevicesError: TensorFlow has started with too few devices.
    """
    plan = resolve(Request(tpu, framework=TENSORFLOW))
    connection = make_connection(plan)
    assert isinstance(connection, Connection)
    if connection.plan.notes and connection.kind == plan.kind:
        warnings.warn(" ".join(connection.plan.notes), stacklevel=2)
    return connection.strategy


def make_connection(
    plan: Plan, say: Callable[[str], None] | None = None
) -> Connection | JaxConnection | JaxHardwareConnection:
    """Connect as planned. `connect` lists the errors.

    Args:
        plan: The TPU to connect to.
        say: Called with a description of each step that takes time.
    """
    begin = time.perf_counter()
    _log.debug("asked for %s", plan.request)
    _log.debug("connect to %s TPU %s", "virtual" if plan.kind == "virtual" else "the", plan.tpu)
    connection = _for_jax(plan) if plan.framework == JAX else _for_tensorflow(plan, say)
    _log.debug("%r: %.3f s", connection, time.perf_counter() - begin)
    return connection


def _for_jax(plan: Plan) -> JaxConnection | JaxHardwareConnection:
    if plan.kind == "hardware":
        from tpunb.jax.connection.hardware import JaxHardwareConnection

        return JaxHardwareConnection(plan)
    from tpunb.jax.connection.connection import JaxConnection

    return JaxConnection(plan, vars(sys.modules["__main__"]))


def _for_tensorflow(plan: Plan, say: Callable[[str], None] | None) -> Connection:
    require_tensorflow()
    warn_if_newer(tensorflow_version())
    if plan.request.keras is not None:
        choose_keras_2()
    if plan.kind == "virtual":
        return _virtual(plan)
    from tpunb.tensorflow.connection import hardware

    try:
        return Connection(plan, *hardware.connect(plan, say))
    except ConnectError as error:
        if not plan.fallback:
            raise
        return _stand_in(plan, error)


def _stand_in(plan: Plan, error: ConnectError) -> Connection:
    """Fall back to a virtual TPU, with a warning, because the TPU found cannot be used."""
    from tpunb.tensorflow.connection.hardware.attempt import SIMULATE

    reason = error.message.strip().replace("\n", " ").rstrip(".")
    note = f"The TPU found here cannot be used ({reason}): this is a virtual {DEFAULT_TPU}."
    fix = error.fix.replace(SIMULATE, "").strip()  # simulating is what happens already
    notes = (note, *((f"To use the TPU: {fix}",) if fix else ()))
    # The summary has the same note, but scripts and `c = %tpu_connect` do not show it.
    warnings.warn(" ".join(notes), stacklevel=5)
    return _virtual(
        dataclasses.replace(plan, kind="virtual", tpu=DEFAULT_TPU, fallback=False, notes=notes)
    )


def _virtual(plan: Plan) -> Connection:
    request, tpu = plan.request, accelerator(plan.tpu)
    import_tensorflow()
    from tpunb.tensorflow.virtual.resolver import VirtualTPUClusterResolver, virtual_topology
    from tpunb.tensorflow.virtual.strategy import VirtualTPUStrategy

    topology = virtual_topology(tpu)
    assignment = device_assignment(topology, request.computation_shape, request.replicas, tpu.name)
    resolver = VirtualTPUClusterResolver(tpu)
    strategy = VirtualTPUStrategy(
        resolver,
        device_assignment=assignment,
        spmd=request.spmd,
        strict=request.strictness,
        arithmetic=request.arithmetic,
        at_once=request.at_once,
        joined=request.joined,
    )
    current_strategy.remember(strategy)
    connection = Connection(plan, strategy, resolver, topology, assignment)
    if request.patch:
        connection.lent = lend(tpu, request.strictness, strategy.extended.arithmetic)
    return connection
