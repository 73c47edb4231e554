"""Claims about known errors that are provoked without harm, and that no rule covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tpunb.errors.explain import explanation
from tpunb.verification.bench import Bench
from tpunb.verification.claims import Claims
from tpunb.verification.observation import NotRunError, Observation
from tpunb.verification.observing import refused

__all__ = ["KNOWN_ERRORS", "PROVOKED"]


def _without_a_tpu(bench: Bench) -> Any:
    import tensorflow as tf

    from tpunb.machine.detect import find_tpu

    if not bench.is_virtual or find_tpu().tpu is not None:
        raise NotRunError("there is a TPU")
    if bench.connection.pod is not None:
        raise NotRunError("TensorFlow is connected to workers")
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
    return tf.distribute.TPUStrategy(resolver)


def _ragged_batches(bench: Bench) -> Any:
    import tensorflow as tf

    rows = tf.ragged.constant([[1], [2, 3]] * bench.replicas)
    batches = tf.data.Dataset.from_tensor_slices(rows).batch(2 * bench.replicas)
    return next(iter(bench.strategy.experimental_distribute_dataset(batches)))


def _per_replica(bench: Bench) -> Any:
    bench.need_replicas()  # of a single replica the value is a tensor
    return bench.each(bench.ranks) + 1.0


def _variable_in_a_function(bench: Bench) -> Any:
    import tensorflow as tf

    return bench.on_ranks(lambda x: tf.Variable(1.0) + x)


def _odd_global_batch(bench: Bench) -> Any:
    import tensorflow as tf

    bench.need_replicas()

    def pipeline(context: Any) -> Any:
        size = context.get_per_replica_batch_size(bench.replicas + 1)
        return tf.data.Dataset.range(9).batch(size)

    return bench.strategy.distribute_datasets_from_function(pipeline)


def _axis_of_numbers(bench: Bench) -> Any:
    bench.need_replicas()
    return bench.strategy.reduce("SUM", bench.each(bench.ranks), axis=0)


def _unequal_sums(bench: Bench) -> Any:
    import tensorflow as tf

    bench.need_replicas()
    shapes = bench.each([np.ones([replica % 2 + 1]) for replica in range(bench.replicas)])
    return bench.run(lambda x: tf.distribute.get_replica_context().all_reduce("SUM", x), shapes)


def _far_logical_device(bench: Bench) -> Any:
    far = bench.connection.describe().logical_devices
    assign = bench.strategy.experimental_assign_to_logical_device
    return bench.on_ranks(lambda x: assign(x, far))


def _wide_replicas(bench: Bench) -> Any:
    import tensorflow as tf

    topology = bench.connection.topology
    wide = [int(size) + 1 for size in topology.mesh_shape]
    return tf.tpu.experimental.DeviceAssignment.build(topology, computation_shape=wide)


def _with_model(compile_inside: bool) -> Callable[[Bench], Any]:
    """Fits a model that was made, and perhaps compiled, outside of the scope."""

    def call(bench: Bench) -> Any:
        import tensorflow as tf

        keras = tf.keras
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        if not compile_inside:
            model.compile("sgd", "mse")
        with bench.strategy.scope():
            if compile_inside:
                model.compile("sgd", "mse")
            rows = np.ones([bench.replicas, 3], np.float32)
            return model.fit(rows, rows[:, :1], batch_size=bench.replicas, verbose=0)

    return call


PROVOKED: Mapping[str, tuple[tuple[str, Callable[[Bench], Any]], ...]] = MappingProxyType(
    {
        "5": (("TPUStrategy without a TPU", _without_a_tpu),),
        "21": (("ragged batches", _ragged_batches),),
        "33": (("a per-replica value as a tensor", _per_replica),),
        "34": (
            ("a model from outside the scope", _with_model(compile_inside=False)),
            ("a model from outside, compiled inside", _with_model(compile_inside=True)),
        ),
        "35": (("a variable in a function", _variable_in_a_function),),
        "38": (("an odd global batch", _odd_global_batch),),
        "39": (("an axis of numbers", _axis_of_numbers),),
        "40": (("a sum of unequal shapes", _unequal_sums),),
        "41": (("a logical device too far", _far_logical_device),),
        "42": (("replicas larger than the mesh", _wide_replicas),),
    }
)
"""What provokes each known error: names and calls."""

KNOWN_ERRORS = Claims("known errors")


def _provoking(call: Callable[[Bench], Any], code: str) -> Callable[[Bench], Observation]:
    return lambda bench: refused(lambda: call(bench), code)


for _code, _calls in PROVOKED.items():
    for _name, _call in _calls:
        KNOWN_ERRORS.claim(_name, f"known error {_code}: {explanation(_code).title}")(
            _provoking(_call, _code)
        )
