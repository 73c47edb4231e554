"""Cross-replica operations as marks, for the TPU's own compiler.

XLA on a CPU knows only some of them, and those only of some types. A barrier against
optimisation it lowers for every type: the barrier's name says which operation is meant, and between
which replicas. `compiler/libtpu_process.py` puts the operation in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpunb.virtual._tensorflow import NodeDef
from tpunb.virtual.replicate.collective_groups import groups, source_target_pairs

__all__ = ["mark"]

_ALL = "all"
"""All replicas in one group."""


def mark(node: NodeDef, nodes: Mapping[str, NodeDef], value: str) -> list[NodeDef]:
    """A barrier in the place of a cross-replica operation.

    Args:
        node: The operation.
        nodes: The nodes of its function, by name.
        value: What it is done to, as an input is written.

    Returns:
        The nodes, the last of which has the operation's name; none where it depends on data
        between which replicas it is, which a TPU refuses.
    """
    try:
        partners = _partners(node, nodes)
    except ValueError:
        return []
    kind = node.attr["T"]
    barrier = NodeDef(name=f"{node.name}/{node.op}/{partners}", op="XlaOptimizationBarrier")
    barrier.input.append(value)
    barrier.attr["T"].list.type.append(kind.type)
    result = NodeDef(name=node.name, op="Identity", input=[f"{barrier.name}:output:0"])
    result.input.extend(text for text in node.input if text.startswith("^"))
    result.attr["T"].CopyFrom(kind)
    return [barrier, result]


def _partners(node: NodeDef, nodes: Mapping[str, NodeDef]) -> str:
    """Between which replicas it is, in a text that may stand in a name: `0-1_2-3`."""
    if node.op == "CollectivePermute":
        return _joined(source_target_pairs(node, nodes))
    found = groups(node, nodes)
    return _joined(found) if len(found) > 1 else _ALL


def _joined(rows: Sequence[Sequence[int]]) -> str:
    return "_".join("-".join(map(str, row)) for row in rows)
