"""On which logical device of a replica a node belongs, as its annotations say."""

from __future__ import annotations

from tpunb.virtual._tensorflow import NodeDef, OpSharding

LOGICAL_CORE = "TPU_REPLICATED_CORE:"
"""How `tf.tpu.core` writes a logical device into a device's name."""


def logical_core(device: str) -> int | None:
    """The logical device that a device's name asks for; None if it asks for none."""
    if LOGICAL_CORE not in device:
        return None
    return int(device.rpartition(LOGICAL_CORE)[2])


def assigned_device(node: NodeDef) -> int | None:
    """The logical device to which an annotation assigns its tensor.

    Args:
        node: Any node.

    Returns:
        The number; None for a tensor that is split or replicated, and for a
        node that is no annotation.
    """
    if node.op != "XlaSharding" or not node.attr["sharding"].s:
        return None
    sharding = OpSharding.FromString(node.attr["sharding"].s)
    if sharding.type != OpSharding.MAXIMAL:
        return None
    return int(sharding.tile_assignment_devices[0])
