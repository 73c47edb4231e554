"""Cross-replica operations, written out over the replicas of one graph.

A TPU's cores talk over their links; here all replicas stand in one graph, so
that a sum over them is one ``AddN`` and an exchange is wiring. Nothing waits for
a partner at run time, and nothing can hang.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tpunb.virtual._tensorflow import NodeDef, tensor_util, tpu_ops


def groups(node: NodeDef, nodes: Mapping[str, NodeDef]) -> list[list[int]]:
    """The replicas that each group of a cross-replica operation joins.

    Args:
        node: A ``CrossReplicaSum`` or ``AllToAll``.
        nodes: The nodes of its function, by name.

    Returns:
        Replica ids, a list for each group.

    Raises:
        ValueError: The groups depend on data, which a TPU refuses.
    """
    return [[int(i) for i in row] for row in _constant(node, 1, nodes) if len(row)]


def source_target_pairs(node: NodeDef, nodes: Mapping[str, NodeDef]) -> list[tuple[int, int]]:
    """From which replica to which a ``CollectivePermute`` sends.

    Raises:
        ValueError: The pairs depend on data, which a TPU refuses.
    """
    return [(int(source), int(target)) for source, target in _constant(node, 1, nodes)]


def is_broadcast(node: NodeDef, nodes: Mapping[str, NodeDef]) -> bool:
    """Whether a cross-replica operation gives every replica the first one's value."""
    return node.op == "CollectivePermute" and not any(
        source for source, _ in source_target_pairs(node, nodes)
    )


def gives_one_value(node: NodeDef, nodes: Mapping[str, NodeDef]) -> bool:
    """Whether a cross-replica operation has the same result on every replica."""
    if node.op == "CrossReplicaSum":
        return len(groups(node, nodes)) == 1
    return is_broadcast(node, nodes)


def broadcast_from_first(tensor: Any, num_replicas: int) -> Any:
    """The first replica's tensor on every replica; for use inside a replica function.

    A TPU wants each source of a permutation to send to one target only. Nothing
    is sent here, so that the first may send to all.
    """
    pairs = [[0, replica] for replica in range(num_replicas)]
    return tpu_ops.collective_permute(tensor, pairs)


def _constant(node: NodeDef, index: int, nodes: Mapping[str, NodeDef]) -> np.ndarray:
    found: NodeDef | None = node
    text = node.input[index]
    while found is not None:
        found = nodes.get(text.partition(":")[0])
        if found is None or found.op not in {"Identity", "Const"}:
            break
        if found.op == "Const":
            value: np.ndarray = tensor_util.MakeNdarray(found.attr["value"].tensor)
            return value
        text = found.input[0]
    raise ValueError(
        f"Input {index} to node `{node.name}` with op {node.op} must be a compile-time constant."
    )
