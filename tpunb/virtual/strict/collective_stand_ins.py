"""What stands for operations across replicas, of which a compiler for one core knows nothing."""

from __future__ import annotations

from collections.abc import Mapping

from tpunb.virtual._tensorflow import NodeDef, dtypes
from tpunb.virtual.graph.nodes import integer, make_identity, new_constant, new_node, type_of
from tpunb.virtual.strict.marks import mark

__all__ = ["exchange", "marked_collective", "pass_on"]


def marked_collective(node: NodeDef, nodes: Mapping[str, NodeDef]) -> list[NodeDef]:
    """A mark for the TPU's compiler, after what gives its shape.

    Args:
        node: The operation.
        nodes: Those of the function, by name.

    Returns:
        What stands for it; nothing if there can be no mark.
    """
    before = exchange(node) if node.op == "AllToAll" and node.attr["split_count"].i > 1 else []
    value = node.input[0]
    if before:
        before[-1].name = f"{node.name}/exchanged"
        value = f"{before[-1].name}:output:0"
    found = mark(node, nodes, value)
    return [*before, *found] if found else []


def pass_on(node: NodeDef) -> None:
    """Makes a node pass on the first of its inputs, which has the shape of its result."""
    kept = [text for text in node.input if not text.startswith("^")][:1]
    controls = [text for text in node.input if text.startswith("^")]
    del node.input[:]
    node.input.extend([*kept, *controls])
    make_identity(node)


def exchange(node: NodeDef) -> list[NodeDef]:
    """An `AllToAll`'s shape without its partners: split, and joined along another axis."""
    split, concat, count = (
        node.attr[key].i for key in ("split_dimension", "concat_dimension", "split_count")
    )
    kind = node.attr["T"]
    from_axis = new_constant(f"{node.name}/s", split)
    to_axis = new_constant(f"{node.name}/c", concat)
    parts = new_node(
        "Split",
        f"{node.name}/parts",
        [f"{from_axis.name}:output:0", node.input[0]],
        T=kind,
        num_split=integer(count),
    )
    joined = new_node(
        "ConcatV2",
        f"{node.name}/joined",
        [*(f"{parts.name}:output:{k}" for k in range(count)), f"{to_axis.name}:output:0"],
        T=kind,
        N=integer(count),
        Tidx=type_of(dtypes.int32),
    )
    result = new_node("Identity", node.name, [f"{joined.name}:output:0"], T=kind)
    return [from_axis, to_axis, parts, joined, result]
