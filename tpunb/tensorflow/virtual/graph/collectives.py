"""Cross-replica operations, written out over the replicas of one graph.

A TPU's cores communicate over their links. Here all replicas are in one graph, so a sum over them
is a single ``AddN`` and an exchange is wiring. Nothing waits for a partner at run time, and nothing
can hang.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.tensorflow.virtual.graph.function_def import (
    COLLECTIVES,
    Library,
    called_functions,
    data_inputs,
    is_stateful,
)
from tpunb.tensorflow.virtual.private_names import (
    FunctionDef,
    NodeDef,
    function_def_to_graph_def,
    tensor_util,
    tpu_ops,
)


def groups(node: NodeDef, nodes: Mapping[str, NodeDef]) -> list[list[int]]:
    """Return the replicas in each group of a cross-replica operation.

    Raises:
        ValueError: The groups depend on data, which a TPU refuses.
    """
    return [[int(i) for i in row] for row in _constant(node, 1, nodes) if len(row)]


def source_target_pairs(node: NodeDef, nodes: Mapping[str, NodeDef]) -> list[tuple[int, int]]:
    """Return the source and target replicas of a ``CollectivePermute``.

    Raises:
        ValueError: The pairs depend on data, which a TPU refuses.
    """
    return [(int(source), int(target)) for source, target in _constant(node, 1, nodes)]


def is_broadcast(node: NodeDef, nodes: Mapping[str, NodeDef]) -> bool:
    """Return whether a cross-replica operation gives every replica the first replica's value."""
    if node.op != "CollectivePermute":
        return False
    pairs = source_target_pairs(node, nodes)
    # One pair is an ordinary permutation that leaves the other replicas without a value.
    return len(pairs) > 1 and not any(source for source, _ in pairs)


def check(node: NodeDef, nodes: Mapping[str, NodeDef], num_replicas: int) -> None:
    """Refuse a cross-replica operation whose partners do not match, as XLA does.

    Raises:
        ValueError: The groups are not a partition of the replicas, or the pairs are not a
            permutation.
    """
    if node.op == "CollectivePermute":
        _check_pairs(node, nodes, num_replicas)
        return
    joined = groups(node, nodes)
    if sorted(replica for group in joined for replica in group) != list(range(num_replicas)):
        raise ValueError(
            f"{node.op} `{node.name}`: each of the {num_replicas} replicas must be in exactly one "
            f"group, but the groups are {joined}."
        )
    if node.op == "AllToAll" and {len(group) for group in joined} != {node.attr["split_count"].i}:
        raise ValueError(
            f"AllToAll `{node.name}`: split_count is {node.attr['split_count'].i} and must be the "
            f"size of each group, but the groups are {joined}."
        )


def check_all(function: FunctionDef, library: Library, num_replicas: int) -> None:
    """Refuse mismatched cross-replica operations in a function and in its callees; see `check`.

    Raises:
        ValueError: Partners do not match.
    """
    nodes = {node.name: node for node in function.node_def}
    for node in function.node_def:
        if node.op in COLLECTIVES:
            check(node, nodes, num_replicas)
        for name in called_functions(node):
            check_all(library(name), library, num_replicas)


def _check_pairs(node: NodeDef, nodes: Mapping[str, NodeDef], num_replicas: int) -> None:
    pairs = source_target_pairs(node, nodes)
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    if is_broadcast(node, nodes) and sorted(targets) == list(range(num_replicas)):
        return
    inside = all(0 <= replica < num_replicas for replica in sources + targets)
    if not inside or len(set(sources)) < len(sources) or len(set(targets)) < len(targets):
        raise ValueError(
            f"CollectivePermute `{node.name}`: the pairs must be a permutation of the "
            f"{num_replicas} replicas, each at most once a source and once a target, but they "
            f"are {pairs}."
        )


def gives_one_value(node: NodeDef, nodes: Mapping[str, NodeDef]) -> bool:
    """Return whether a cross-replica operation has the same result on every replica."""
    if node.op == "CrossReplicaSum":
        return len(groups(node, nodes)) == 1
    return is_broadcast(node, nodes)


def broadcast_from_first(tensor: Any, num_replicas: int) -> Any:
    """Return the first replica's tensor on every replica; for use inside a replica function.

    A TPU requires each source of a permutation to send to one target only. Nothing is sent here, so
    the first replica may send to all.
    """
    pairs = [[0, replica] for replica in range(num_replicas)]
    if tensor.dtype == tf.bool:  # a permutation does not take this type
        return tf.cast(tpu_ops.collective_permute(tf.cast(tensor, tf.uint8), pairs), tf.bool)
    return tpu_ops.collective_permute(tensor, pairs)


def _constant(node: NodeDef, index: int, nodes: Mapping[str, NodeDef]) -> np.ndarray:
    """Return the value of an input that is constant, or computed from constants alone.

    For example, the gradient of a permutation reverses its pairs.
    """
    text = data_inputs(node)[index]
    while text.source in nodes and nodes[text.source].op == "Identity":
        text = data_inputs(nodes[text.source])[0]
    sources = _constant_sources(text.source, nodes)
    if sources is None:
        raise ValueError(
            f"Input {index} to node `{node.name}` with op {node.op} must be a compile-time "
            "constant."
        )
    if sources[0].op == "Const":
        value: np.ndarray = tensor_util.MakeNdarray(sources[0].attr["value"].tensor)
        return value
    computed = FunctionDef(node_def=sources, ret={"value": f"{text.source}{text.suffix}"})
    graph, names = function_def_to_graph_def(computed)
    with tf.Graph().as_default():
        (result,) = tf.graph_util.import_graph_def(
            graph, return_elements=[names[computed.ret["value"]]]
        )
        with tf.compat.v1.Session() as session:
            return np.asarray(session.run(result))


def _constant_sources(name: str, nodes: Mapping[str, NodeDef]) -> list[NodeDef] | None:
    """Return a node and all nodes that it is computed from; None unless all come from constants."""
    pending, copies = [name], dict[str, NodeDef]()
    while pending:
        name = pending.pop()
        node = nodes.get(name)
        if node is None or is_stateful(node) or any(called_functions(node)):
            return None
        if name not in copies:
            copies[name] = NodeDef()
            copies[name].CopyFrom(node)
            copies[name].device = ""
            del copies[name].input[:]
            copies[name].input.extend(text for text in node.input if not text.startswith("^"))
            pending.extend(source.source for source in data_inputs(node))
    return list(copies.values())
