"""Helpers for the tests of the virtual TPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.tensorflow.virtual.resolver import VirtualTPUClusterResolver, virtual_topology
from tpunb.virtual import VirtualTPUStrategy

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
SUMMED_ON_READ = {
    "synchronization": tf.VariableSynchronization.ON_READ,
    "aggregation": tf.VariableAggregation.SUM,
}
"""A variable with a separate value for each replica, which the strategy reads as their sum."""


def strategy_of(tpu: Any, **options: Any) -> VirtualTPUStrategy:
    """Return a new strategy that allows float64 without a warning: tests use it for exact numbers."""
    options.setdefault("strict", {"float64": False})
    return VirtualTPUStrategy(tpu, **options)


def strategy_of_parts(
    replicas: int, shape: Sequence[int] = (1, 1, 1, 2), tpu: str = "v3-8", **options: Any
) -> VirtualTPUStrategy:
    """Return a new strategy whose replicas have several cores each: two by default."""
    resolver = VirtualTPUClusterResolver(tpu)
    assignment = tf.tpu.experimental.DeviceAssignment.build(
        virtual_topology(resolver.accelerator), computation_shape=shape, num_replicas=replicas
    )
    return strategy_of(resolver, device_assignment=assignment, **options)


def each(strategy: Any, values: Sequence[Any]) -> Any:
    """Return a distributed value with a part for each replica."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.convert_to_tensor(values[context.replica_id_in_sync_group])
    )


def run(strategy: Any, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Run a replica function once and return each replica's result, as NumPy arrays.

    AutoGraph takes longer to rewrite a short function than TensorFlow takes to trace it. So it is
    used only if Python's branches and loops depend on tensors, which fail without it.
    """
    try:
        return stepper(strategy, function, autograph=False)(*args)
    except tf.errors.OperatorNotAllowedInGraphError:
        return stepper(strategy, function)(*args)


def stepper(strategy: Any, function: Callable[..., Any], **options: Any) -> Any:
    """Return a replica function that is traced once; its calls return NumPy values by replica."""

    @tf.function(**options)
    def step(*args: Any) -> Any:
        return strategy.run(function, args=args)

    return lambda *args: local(strategy, step(*args))


def local(strategy: Any, result: Any) -> list[Any]:
    """Return each replica's part of a result, as NumPy arrays."""
    flat = [strategy.experimental_local_results(part) for part in tf.nest.flatten(result)]
    return [
        tf.nest.pack_sequence_as(result, [_numpy(part[replica]) for part in flat])
        for replica in range(strategy.num_replicas_in_sync)
    ]


def _numpy(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


def replica_id() -> Any:
    """Return the id of the running replica, as a tensor."""
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def all_reduce(value: Any, how: Any = SUM) -> Any:
    """Reduce a value over the replicas."""
    return tf.distribute.get_replica_context().all_reduce(how, value)


def make(strategy: Any, value: Any = 0.0, **options: Any) -> Any:
    """Create a variable in a strategy's scope."""
    with strategy.scope():
        return tf.Variable(value, **options)


def gradient_of(function: Callable[[Any], Any], x: Any) -> Any:
    """Return the gradient of a function at `x`."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def copies(variable: Any) -> list[np.ndarray]:
    """Return the value of a variable on each core."""
    return [component.numpy() for component in variable.values]
