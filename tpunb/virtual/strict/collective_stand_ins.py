"""What stands for operations across replicas, of which a compiler for one core knows nothing."""

from __future__ import annotations

from collections.abc import Mapping

from tpunb.virtual._tensorflow import NodeDef, dtypes
from tpunb.virtual.graph.nodes import int32_tensor, make_identity
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
    axes = [
        _constant(f"{node.name}/{name}", value) for name, value in (("s", split), ("c", concat))
    ]
    parts = NodeDef(name=f"{node.name}/parts", op="Split")
    parts.input.extend([f"{axes[0].name}:output:0", node.input[0]])
    parts.attr["T"].CopyFrom(kind)
    parts.attr["num_split"].i = count
    joined = NodeDef(name=f"{node.name}/joined", op="ConcatV2")
    joined.input.extend(f"{parts.name}:output:{k}" for k in range(count))
    joined.input.append(f"{axes[1].name}:output:0")
    joined.attr["T"].CopyFrom(kind)
    joined.attr["N"].i = count
    joined.attr["Tidx"].type = dtypes.int32.as_datatype_enum
    result = NodeDef(name=node.name, op="Identity")
    result.input.append(f"{joined.name}:output:0")
    result.attr["T"].CopyFrom(kind)
    return [*axes, parts, joined, result]


def _constant(name: str, value: int) -> NodeDef:
    node = NodeDef(name=name, op="Const")
    node.attr["dtype"].type = dtypes.int32.as_datatype_enum
    node.attr["value"].CopyFrom(int32_tensor(value))
    return node
