"""What the tests of the virtual TPU share; it holds no tests itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.virtual import VirtualTPUStrategy
from tpunb.virtual.resolver import VirtualTPUClusterResolver, virtual_topology


def strategy_of(tpu: str | int, **options: Any) -> VirtualTPUStrategy:
    """A new strategy.

    The tests of numbers use float64 to be exact, so that it is let pass without a warning.
    """
    options.setdefault("strict", {"float64": False})
    return VirtualTPUStrategy(tpu, **options)


def of_two_cores(tpu: str, shape: Sequence[int]) -> VirtualTPUStrategy:
    """A strategy with four replicas of two cores, which XLA partitions."""
    resolver = VirtualTPUClusterResolver(tpu)
    assignment = tf.tpu.experimental.DeviceAssignment.build(
        virtual_topology(resolver.accelerator), computation_shape=shape, num_replicas=4
    )
    return VirtualTPUStrategy(resolver, strict=True, device_assignment=assignment, spmd=True)


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


def copies(variable: Any) -> list[np.ndarray]:
    """The value of a variable on each core."""
    return [component.numpy() for component in variable.values]
