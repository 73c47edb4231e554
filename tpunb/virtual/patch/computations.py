"""TensorFlow 1's own ways to run on a TPU, on the virtual one.

`tf.compat.v1.tpu.rewrite`, `replicate`, `shard` and `batch_parallel` all call one function of
TensorFlow's, which this one answers for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpunb.errors import TpunbError
from tpunb.virtual._tensorflow import is_flat
from tpunb.virtual.devices import virtual_devices
from tpunb.virtual.patch.state import Installation
from tpunb.virtual.replica_call import replicate
from tpunb.virtual.replicate.options import ReplicateOptions
from tpunb.virtual.strategy import replica_devices
from tpunb.virtual.strictness import Strictness

__all__ = ["ComputationError", "run_on_replicas"]


class ComputationError(TpunbError, ValueError):
    """A call of TensorFlow 1's for a TPU that the virtual TPU cannot answer."""


def run_on_replicas(
    installation: Installation,
    computation: Callable[..., Any],
    inputs: Sequence[Sequence[Any]] | None = None,
    infeed_queue: Any = None,
    device_assignment: tf.tpu.experimental.DeviceAssignment | None = None,
) -> tuple[Any, list[Any]]:
    """The counterpart of `split_compile_and_replicate`.

    Args:
        installation: The virtual TPU.
        computation: Takes the inputs of one replica.
        inputs: Those of each replica; None for one replica without any.
        infeed_queue: Must be None.
        device_assignment: Which cores form a replica; by default each is one.

    Returns:
        What stands for the compilation, and the results of each replica: a list of
        tensors, the nest that the computation returns, or an operation if it returns none.

    Raises:
        ComputationError: There are more replicas than cores, or there is an infeed queue.
    """
    if infeed_queue is not None:
        raise ComputationError(
            "A virtual TPU has no infeed.",
            fix="Pass the batch as an input, or use tf.distribute.TPUStrategy with a dataset.",
        )
    rows = [[tf.nest.map_structure(tf.convert_to_tensor, row)] for row in inputs or [[]]]
    options = _options(installation, device_assignment, len(rows))
    results = replicate(lambda row: _tensors(computation(*row)), rows, options)
    # A tensor by itself stands for operations alone.
    return tf.no_op(), [tf.group(one) if tf.is_tensor(one) else one for one in results]


def _options(
    installation: Installation,
    assignment: tf.tpu.experimental.DeviceAssignment | None,
    replicas: int,
) -> ReplicateOptions:
    cores = replica_devices(virtual_devices(installation.accelerator), assignment)
    if replicas > len(cores):
        raise ComputationError(
            f"There are inputs for {replicas} replicas, and cores for {len(cores)}.",
            fix="Give inputs for fewer replicas, or install a larger TPU.",
        )
    return ReplicateOptions(
        cores=[list(one) for one in cores[:replicas]],
        assigned=assignment is not None,
        # Variables of TensorFlow 1 have no scope of a strategy.
        strictness=Strictness(installation.strictness.off | {"scope"}),
        arithmetic=installation.arithmetic,
    )


def _tensors(result: Any) -> Any:
    """The tensors of what a computation returns: a list or a nest; a number if there are none."""
    parts = tf.nest.flatten(result)
    effects = [part for part in parts if isinstance(part, tf.Operation)]
    with tf.control_dependencies(effects):
        kept = [
            None if part is None or isinstance(part, tf.Operation) else tf.identity(part)
            for part in parts
        ]
        if all(part is None for part in kept):
            return tf.constant(0)
    return (
        [part for part in kept if part is not None]
        if is_flat(result)
        else tf.nest.pack_sequence_as(result, kept)
    )
