"""The assignment of a TPU's cores to replicas."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from typing import Any

from tpunb._util.integers import is_whole
from tpunb.errors import ComputationShapeError


def device_assignment(
    topology: Any, computation_shape: Sequence[int] | None, replicas: int | None, name: str
) -> Any:
    """Decide which cores form which replica.

    Args:
        topology: The `tf.tpu.experimental.Topology`.
        computation_shape: The cores of one replica along the topology's axes; None
            for one core.
        replicas: The number of replicas; None for as many as fit.
        name: The TPU's name, for errors.

    Returns:
        A `tf.tpu.experimental.DeviceAssignment`, or None if both arguments are None and
        every core is a replica.

    Raises:
        ComputationShapeError: The computation shape or the number of replicas does not fit.
    """
    if computation_shape is None and replicas is None:
        return None
    import tensorflow as tf

    shape = (1, 1, 1, 1) if computation_shape is None else tuple(computation_shape)
    mesh = [int(size) for size in topology.mesh_shape]
    fix = (
        f"Choose four numbers, each between 1 and the size of the mesh of {name}, {_times(mesh)} "
        "(x, y, z, cores in a chip)."
    )
    if len(shape) != len(mesh) or not all(map(is_whole, shape)) or min(shape) < 1:
        raise ComputationShapeError(
            f"A computation shape is four positive whole numbers, not {reprlib.repr(list(shape))}.",
            fix=fix,
        )
    if any(size > most for size, most in zip(shape, mesh, strict=True)):
        raise ComputationShapeError(
            f"The computation shape {_times(shape)} does not fit on {name}.", fix=fix
        )
    fits = math.prod(most // size for size, most in zip(shape, mesh, strict=True))
    replicas = replicas or fits
    if replicas > fits:
        raise ComputationShapeError(
            f"{replicas} replicas of {_times(shape)} cores do not fit on {name}, whose mesh is "
            f"{_times(mesh)}.",
            fix=f"Omit the number of replicas, or choose at most {fits}.",
        )
    return tf.tpu.experimental.DeviceAssignment.build(
        topology, computation_shape=list(shape), num_replicas=replicas
    )


def _times(sizes: Sequence[int]) -> str:
    return "×".join(map(str, sizes))
