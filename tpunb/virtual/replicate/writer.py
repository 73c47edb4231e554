"""Writes a replica function out for all replicas, node by node."""

from __future__ import annotations

from collections.abc import Sequence

from tpunb.virtual._tensorflow import FunctionDef, NodeDef
from tpunb.virtual.graph.function_def import Returned
from tpunb.virtual.replicate.builder import Builder
from tpunb.virtual.replicate.turns import take_turns
from tpunb.virtual.replicate.variance import Role, Variance
from tpunb.virtual.replicate.write_collectives import write_collective
from tpunb.virtual.replicate.write_control_flow import write_lifted
from tpunb.virtual.replicate.write_copies import write_copies
from tpunb.virtual.replicate.write_joined import write_joined
from tpunb.virtual.replicate.write_results import write_effects, write_results
from tpunb.virtual.replicate.write_updates import write_update

_WIRED = frozenset({Role.COLLECTIVE, Role.LIFTED})
"""What is checked although nothing needs it, and so needs what it takes."""


def write_function(builder: Builder, results: Sequence[Returned]) -> FunctionDef:
    """Writes a whole function, which returns each result once per replica."""
    write_nodes(builder)
    write_results(builder, results, [Variance.VARYING] * len(results))
    write_effects(builder)
    return builder.result


def write_nodes(builder: Builder) -> None:
    """Writes what becomes of the nodes of a function."""
    nodes = builder.analysis.order
    unused = {node.name for node in nodes if not builder.runs(node)}
    if not any(builder.analysis.roles[name] in _WIRED for name in unused):
        # TensorFlow would prune them, from a graph that is larger by all replicas' copies.
        nodes = [node for node in nodes if node.name not in unused]
    for node in nodes:
        _write_node(builder, node)
    take_turns(builder)


def _write_node(builder: Builder, node: NodeDef) -> None:
    role = builder.analysis.roles[node.name]
    if role is Role.COLLECTIVE:
        write_collective(builder, node)
    elif role is Role.UPDATE:
        write_update(builder, node)
    elif role is Role.LIFTED:
        write_lifted(builder, node, write_nodes)
    elif role is Role.JOINED:
        write_joined(builder, node, write_nodes)
    else:
        write_copies(builder, node)
