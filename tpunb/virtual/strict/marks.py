"""Marks for the TPU's own compiler where TensorFlow lowers an operation otherwise for a CPU.

`compiler/libtpu_process.py` reads them and puts a TPU's operation in their place. A barrier
against optimisation, which XLA on a CPU lowers for every type, stands for cross-replica
operations and for the resizing of images: its name says what is meant. An attribute is on
operations that name the generator of their random numbers: all others use the chip's own.

Sources in TensorFlow: compiler/tf2xla/kernels/rng_converter_utils.cc and random_ops_util.cc,
core/tpu/kernels/image_resize_ops.cc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpunb.virtual._tensorflow import NodeDef, dtypes, op_def_registry, tensor_util
from tpunb.virtual.graph.collectives import groups, source_target_pairs

__all__ = ["RESIZINGS", "mark", "mark_generator", "mark_resizing", "names_generator"]

_ALL = "all"
"""All replicas in one group."""

RESIZINGS: Mapping[str, str] = {
    "ResizeBilinear": "ResizeBilinear",
    "ResizeBilinearGrad": "ResizeBilinearGrad",
    "ResizeNearestNeighbor": "ResizeNearest",
    "ResizeNearestNeighborGrad": "ResizeNearestGrad",
}
"""Operations that have kernels of their own on a TPU, and the names of these."""

_AUTO_SELECT = 3
"""`tf.random.Algorithm.AUTO_SELECT`."""

# A serialized xla.FrontendAttributes: {"tpunb_generator": "named"}.
_NAMED = b"\n\x18\n\x0ftpunb_generator\x12\x05named"


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
    return _barrier(node, f"{node.op}/{partners}", [value], [node.attr["T"].type])


def mark_resizing(node: NodeDef, like: Sequence[NodeDef]) -> list[NodeDef]:
    """A barrier in the place of an operation that resizes images, or of its gradient.

    Args:
        node: The operation.
        like: What gives the shape and the type of its result; the last has its name.

    Returns:
        The nodes, the last of which has the operation's name.
    """
    flags = "".join(str(int(node.attr[key].b)) for key in ("align_corners", "half_pixel_centers"))
    like[-1].name = f"{node.name}/like"
    output = op_def_registry.get(like[-1].op).output_arg[0].name
    kinds = [node.attr["T"].type, node.attr["T"].type]
    if node.op.startswith("ResizeBilinear"):  # which calculates in float32
        kinds[0 if node.op.endswith("Grad") else 1] = dtypes.float32.as_datatype_enum
    values = [node.input[0], f"{like[-1].name}:{output}:0"]
    return [*like, *_barrier(node, f"{RESIZINGS[node.op]}/{flags}", values, kinds)]


def names_generator(node: NodeDef, nodes: Mapping[str, NodeDef]) -> bool:
    """Whether an operation names the algorithm that makes its random numbers.

    Args:
        node: The operation.
        nodes: The nodes of its function, by name.
    """
    definition = op_def_registry.get(node.op)
    inputs = [argument.name for argument in definition.input_arg] if definition else []
    if "algorithm" in inputs:  # of a tf.random.Generator
        return True
    if "alg" not in inputs:
        return False
    source = nodes.get(node.input[inputs.index("alg")].partition(":")[0])
    if source is None or source.op != "Const":  # asked of TensorFlow: StatelessRandomGetAlg
        return False
    return int(tensor_util.MakeNdarray(source.attr["value"].tensor)) != _AUTO_SELECT


def mark_generator(node: NodeDef) -> None:
    """Marks an operation that names the algorithm of its random numbers."""
    node.attr["_XlaFrontendAttributes"].s += _NAMED


def _barrier(
    node: NodeDef, meaning: str, values: Sequence[str], kinds: Sequence[int]
) -> list[NodeDef]:
    """A barrier after values of these types, the last of which stands for a node's result."""
    barrier = NodeDef(name=f"{node.name}/{meaning}", op="XlaOptimizationBarrier", input=values)
    barrier.attr["T"].list.type.extend(kinds)
    last = f"{barrier.name}:output:{len(values) - 1}"
    result = NodeDef(name=node.name, op="Identity", input=[last])
    result.input.extend(text for text in node.input if text.startswith("^"))
    result.attr["T"].type = kinds[-1]
    return [barrier, result]


def _partners(node: NodeDef, nodes: Mapping[str, NodeDef]) -> str:
    """Between which replicas it is, in a text that may stand in a name: `0-1_2-3`."""
    if node.op == "CollectivePermute":
        return _joined(source_target_pairs(node, nodes))
    found = groups(node, nodes)
    return _joined(found) if len(found) > 1 else _ALL


def _joined(rows: Sequence[Sequence[int]]) -> str:
    return "_".join("-".join(map(str, row)) for row in rows)
