"""Connecting TensorFlow: to a TPU, to a virtual one, or to the virtual one in the TPU's stead."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

from tpunb.connection.plan import Plan
from tpunb.errors import ConnectError
from tpunb.machine.import_tensorflow import import_tensorflow, require_tensorflow
from tpunb.machine.keras_2 import choose_keras_2
from tpunb.machine.tested_releases import tensorflow_version, warn_if_newer
from tpunb.tensorflow.connection.connection import Connection
from tpunb.tensorflow.connection.device_assignment import device_assignment
from tpunb.tpu.default_tpu import DEFAULT_TPU
from tpunb.tpu.types import accelerator
from tpunb.virtual import current_strategy
from tpunb.virtual.installer import lend


def connect(plan: Plan, say: Callable[[str], None] | None) -> Connection:
    """Connect as planned. See `tpunb.framework.Framework.connect`."""
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
    warnings.warn(" ".join(notes), stacklevel=6)
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
