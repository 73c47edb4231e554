"""What the tests of the virtual TPU share; it holds no tests itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpunb.errors import VirtualDevicesError
from tpunb.virtual import VirtualTPUStrategy

CPUS = 40


def start() -> None:
    """Makes logical CPUs for up to 32 cores, unless TensorFlow has started already."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None:
        try:
            devices = [tf.config.LogicalDeviceConfiguration()] * CPUS
            tf.config.set_logical_device_configuration(cpu, devices)
            tf.config.threading.set_inter_op_parallelism_threads(16)
        except RuntimeError:
            pass


def strategy_of(tpu: str | int, **options: Any) -> VirtualTPUStrategy:
    """A new strategy; skips the test where TensorFlow has too few devices.

    The tests of numbers use float64 to be exact, so that it is let pass without a warning.
    """
    start()
    options.setdefault("strict", {"float64": False})
    try:
        return VirtualTPUStrategy(tpu, **options)
    except VirtualDevicesError as error:
        pytest.skip(str(error))


def each(strategy: Any, values: Sequence[Any]) -> Any:
    """A value for each replica."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.convert_to_tensor(values[context.replica_id_in_sync_group])
    )


def run(strategy: Any, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Runs a replica function once and gives each replica's result, as NumPy."""

    @tf.function
    def step(*args: Any) -> Any:
        return strategy.run(function, args=args)

    return local(strategy, step(*args))


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
