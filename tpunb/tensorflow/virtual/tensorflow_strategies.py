"""TensorFlow's TPU strategies under their own names, on the virtual TPU.

They take the arguments of the classes that they replace, and are subclasses of these: `isinstance`
gives the same answer as on a TPU.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tpunb.tensorflow.virtual import private_names as private
from tpunb.tensorflow.virtual.private_names import distribute_lib
from tpunb.tensorflow.virtual.resolver import VirtualTPUClusterResolver
from tpunb.tensorflow.virtual.strategy import (
    NumpyDatasets,
    VirtualTPU,
    VirtualTPUExtended,
    VirtualTPUStrategy,
)
from tpunb.tpu.default_tpu import DEFAULT_TPU


class TPUStrategyV2(VirtualTPUStrategy):
    """`tf.distribute.TPUStrategy`, on a virtual TPU.

    Args:
        tpu_cluster_resolver: A `VirtualTPUClusterResolver`; a v5e-8 by default.
        experimental_device_assignment: The cores that form each replica; by default every core is a
            replica.
        experimental_spmd_xla_partitioning: Whether XLA's SPMD partitioner partitions tensors over a
            replica's logical devices.

    Raises:
        TypeError: The resolver is not a virtual TPU's.
    """

    def __init__(
        self,
        tpu_cluster_resolver: VirtualTPUClusterResolver | None = None,
        experimental_device_assignment: tf.tpu.experimental.DeviceAssignment | None = None,
        experimental_spmd_xla_partitioning: bool = False,
    ) -> None:
        resolver = _resolver(tpu_cluster_resolver)
        super().__init__(
            resolver,
            device_assignment=experimental_device_assignment,
            spmd=experimental_spmd_xla_partitioning,
            strict=resolver.strictness,
            arithmetic=resolver.arithmetic,
        )


class TPUStrategy(VirtualTPU, NumpyDatasets, private.TPUStrategy):  # type: ignore[misc]
    """`tf.distribute.experimental.TPUStrategy`, on a virtual TPU.

    Args:
        tpu_cluster_resolver: A `VirtualTPUClusterResolver`; a v5e-8 by default.
        device_assignment: The cores that form each replica; by default every core is a replica.

    Raises:
        TypeError: The resolver is not a virtual TPU's.
    """

    def __init__(
        self,
        tpu_cluster_resolver: VirtualTPUClusterResolver | None = None,
        device_assignment: tf.tpu.experimental.DeviceAssignment | None = None,
    ) -> None:
        private.logging.warning(
            "`tf.distribute.experimental.TPUStrategy` is deprecated, please use "
            "the non-experimental symbol `tf.distribute.TPUStrategy` instead."
        )
        resolver = _resolver(tpu_cluster_resolver)
        super(private.TPUStrategy, self).__init__(
            VirtualTPUExtended(
                self,
                resolver,
                device_assignment,
                spmd=False,
                strictness=resolver.strictness,
                arithmetic=resolver.arithmetic,
            )
        )
        distribute_lib.distribution_strategy_gauge.get_cell("V2").set("TPUStrategy")


STAND_INS: dict[type, type] = {
    private.TPUStrategyV2: TPUStrategyV2,
    private.TPUStrategy: TPUStrategy,
}
"""TensorFlow's strategies, each with its replacement."""


def _resolver(resolver: Any) -> VirtualTPUClusterResolver:
    """Return the resolver of a virtual TPU; None means the default TPU."""
    if resolver is None:
        return VirtualTPUClusterResolver(DEFAULT_TPU)
    if not isinstance(resolver, VirtualTPUClusterResolver):
        raise TypeError(
            "A strategy on the virtual TPU takes a tpunb.virtual.VirtualTPUClusterResolver, "
            f"not a {type(resolver).__name__}."
        )
    return resolver
