"""Connecting: from a request to a strategy that is ready to run."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tpunb import framework
from tpunb._util.logs import logger
from tpunb.connection.options import Request, takes
from tpunb.connection.plan import Plan, resolve
from tpunb.connection.tpu_connection import is_of_tensorflow
from tpunb.machine.framework import TENSORFLOW

if TYPE_CHECKING:
    from tpunb.jax.connection.connection import JaxConnection
    from tpunb.jax.connection.hardware import JaxHardwareConnection
    from tpunb.tensorflow.connection.connection import Connection

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
    assert is_of_tensorflow(connection)
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
    connection: Connection | JaxConnection | JaxHardwareConnection
    connection = framework.of(plan.framework).connect(plan, say)
    _log.debug("%r: %.3f s", connection, time.perf_counter() - begin)
    return connection
