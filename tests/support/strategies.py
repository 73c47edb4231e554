"""What the tests of the virtual TPU share; it holds no tests itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.virtual import VirtualTPUStrategy
from tpunb.virtual.resolver import VirtualTPUClusterResolver, virtual_topology

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
SUMMED_ON_READ = {
    "synchronization": tf.VariableSynchronization.ON_READ,
    "aggregation": tf.VariableAggregation.SUM,
}
"""A variable of which each replica has its own, and the strategy their sum."""


def strategy_of(tpu: Any, **options: Any) -> VirtualTPUStrategy:
    """A new strategy.

    The tests of numbers use float64 to be exact, so that it is let pass without a warning.
    """
    options.setdefault("strict", {"float64": False})
    return VirtualTPUStrategy(tpu, **options)


def strategy_of_parts(
    replicas: int, shape: Sequence[int] = (1, 1, 1, 2), tpu: str = "v3-8", **options: Any
) -> VirtualTPUStrategy:
    """A new strategy whose replicas are of several cores each: by default of two."""
    resolver = VirtualTPUClusterResolver(tpu)
    assignment = tf.tpu.experimental.DeviceAssignment.build(
        virtual_topology(resolver.accelerator), computation_shape=shape, num_replicas=replicas
    )
    return strategy_of(resolver, device_assignment=assignment, **options)


def each(strategy: Any, values: Sequence[Any]) -> Any:
    """A value for each replica."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.convert_to_tensor(values[context.replica_id_in_sync_group])
    )


def run(strategy: Any, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Runs a replica function once and gives each replica's result, as NumPy.

    AutoGraph takes longer to rewrite a function of a line than TensorFlow takes to trace it. It is
    asked where Python's own branches and loops are about tensors, which fail without it.
    """
    try:
        return stepper(strategy, function, autograph=False)(*args)
    except tf.errors.OperatorNotAllowedInGraphError:
        return stepper(strategy, function)(*args)


def stepper(strategy: Any, function: Callable[..., Any], **options: Any) -> Any:
    """A replica function that is traced once: a call gives each replica's result, as NumPy."""

    @tf.function(**options)
    def step(*args: Any) -> Any:
        return strategy.run(function, args=args)

    return lambda *args: local(strategy, step(*args))


def local(strategy: Any, result: Any) -> list[Any]:
    """Each replica's part of a result, as NumPy arrays."""
    flat = [strategy.experimental_local_results(part) for part in tf.nest.flatten(result)]
    return [
        tf.nest.pack_sequence_as(result, [_numpy(part[replica]) for part in flat])
        for replica in range(strategy.num_replicas_in_sync)
    ]


def _numpy(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


def replica_id() -> Any:
    """The id of the replica that runs this, as a tensor."""
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def all_reduce(value: Any, how: Any = SUM) -> Any:
    """What replicas make together of a value of each."""
    return tf.distribute.get_replica_context().all_reduce(how, value)


def make(strategy: Any, value: Any = 0.0, **options: Any) -> Any:
    """A variable of a strategy's."""
    with strategy.scope():
        return tf.Variable(value, **options)


def gradient_of(function: Callable[[Any], Any], x: Any) -> Any:
    """The gradient of a function at a place."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def copies(variable: Any) -> list[np.ndarray]:
    """The value of a variable on each core."""
    return [component.numpy() for component in variable.values]
