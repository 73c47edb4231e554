"""The seeds by which each replica draws random numbers of its own, as each core of a TPU does."""

from __future__ import annotations

from tpunb.tensorflow.virtual.private_names import NodeDef


def is_seeded(node: NodeDef) -> bool:
    """Return whether a node draws from a seed; without a seed it draws from entropy."""
    return "seed2" in node.attr and bool(node.attr["seed"].i or node.attr["seed2"].i)


def set_seed_of(replica: int, node: NodeDef) -> None:
    """Give a replica's copy of a seeded node a seed of its own; replica 0 keeps the user's."""
    seed2 = node.attr["seed2"]
    if replica:
        seed2.i = (seed2.i + 0x9E3779B1 * replica) % (2**31 - 1)
