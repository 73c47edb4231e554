"""What stands for operations across replicas, of which a compiler for one core knows nothing."""

from __future__ import annotations

from collections.abc import Mapping

from tpunb.virtual._tensorflow import NodeDef, dtypes, tensor_util
from tpunb.virtual.replicate.graphs import data_inputs
from tpunb.virtual.replicate.nodes import int32_tensor, make_identity

__all__ = ["MARKERS", "exchange", "marked_collective", "pass_on"]

_REDUCED_TYPES = frozenset(
    {dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.int32, dtypes.uint32}
)

MARKERS = {"CrossReplicaSum": "Add", "CollectivePermute": "Mul", "AllToAll": "Min"}
"""By the reduction of an all-reduce, the only operation across replicas that XLA on a CPU
lowers, the TPU's compiler is told which one is meant: see `compiler/libtpu_process.py`."""


def marked_collective(node: NodeDef, nodes: Mapping[str, NodeDef]) -> list[NodeDef]:
    """What tells the TPU's compiler which operation across replicas is meant.

    Args:
        node: The operation.
        nodes: Those of the function, by name.

    Returns:
        What stands for it; nothing if no mark can.
    """
    if node.op not in MARKERS or not _can_be_marked(node):
        return []
    copy = NodeDef()
    copy.CopyFrom(node)
    copy.device = ""
    if node.op != "CollectivePermute":
        return _marked(copy)
    pairs = _pairs(node, nodes)
    return _permuted(copy, pairs) if pairs else []


def _can_be_marked(node: NodeDef) -> bool:
    return dtypes.as_dtype(node.attr["T"].type) in _REDUCED_TYPES


def _marked(node: NodeDef) -> list[NodeDef]:
    """An all-reduce that says which operation across replicas it stands for, by its name too."""
    before = exchange(node) if node.op == "AllToAll" and node.attr["split_count"].i > 1 else []
    marker = NodeDef(name=f"{node.name}/{node.op}", op="XlaAllReduce")
    marker.input.extend(node.input)
    if before:
        before[-1].name = f"{node.name}/exchanged"
        marker.input[0] = f"{before[-1].name}:output:0"
    marker.attr["T"].CopyFrom(node.attr["T"])
    marker.attr["reduce_op"].s = MARKERS[node.op].encode()
    marker.attr["mode"].s = b"CrossReplica"
    result = NodeDef(name=node.name, op="Identity", input=[f"{marker.name}:output:0"])
    result.attr["T"].CopyFrom(node.attr["T"])
    return [*before, marker, result]


def _pairs(node: NodeDef, nodes: Mapping[str, NodeDef]) -> str:
    """A permutation's pairs in a text that may stand in a name: `0-1_1-0`."""
    source = nodes.get(data_inputs(node)[1].source)
    while source is not None and source.op == "Identity":
        source = nodes.get(data_inputs(source)[0].source)
    if source is None or source.op != "Const":
        return ""
    pairs = tensor_util.MakeNdarray(source.attr["value"].tensor)
    return "_".join(f"{sender}-{receiver}" for sender, receiver in pairs.tolist())


def _permuted(node: NodeDef, pairs: str) -> list[NodeDef]:
    """An all-reduce that has a permutation's pairs in its name.

    As its groups they would be refused: a replica may send and receive.
    """
    groups = NodeDef(name=f"{node.name}/groups", op="Const")
    groups.attr["dtype"].type = dtypes.int32.as_datatype_enum
    groups.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto([[0]], "int32"))
    node.input[1] = f"{groups.name}:output:0"
    marked = _marked(node)
    marked[0].name += f"/{pairs}"
    marked[-1].input[0] = f"{marked[0].name}:output:0"
    return [groups, *marked]


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
