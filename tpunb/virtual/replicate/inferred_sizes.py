"""The sizes of a replica function's tensors for a batch of some size, as TensorFlow infers them."""

from __future__ import annotations

from collections.abc import Collection

import tensorflow as tf

from tpunb.virtual._tensorflow import (
    FuncGraph,
    FunctionDef,
    NodeDef,
    dtypes,
    function_def_to_graph_def,
    handle_data_util,
)
from tpunb.virtual.graph.function_def import data_inputs, in_topological_order, reference
from tpunb.virtual.graph.nodes import add_node, type_of
from tpunb.virtual.graph.static_tensors import KnownSizes, Sizes, StaticTensors

__all__ = ["inferred_sizes", "sizes_in", "with_plain_arithmetic"]


_ASK = frozenset({"Shape", "ShapeN", "Size"})
_OF_ALL = frozenset({"Add", "AddV2", "ConcatV2", "Identity", "Neg", "Pack", "Sub"})
_OF_FIRST = frozenset(
    {"ExpandDims", "GatherV2", "Prod", "Reshape", "Slice", "Squeeze", "StridedSlice", "Transpose"}
    | {"Unpack"}
)


def with_plain_arithmetic(definition: FunctionDef, traced: KnownSizes) -> FunctionDef:
    """A function whose shapes depend on the size of a batch by sums and products alone.

    TensorFlow infers shapes through any arithmetic, as that of a `tf.maximum(size - 100, 0)`, of
    which some sizes do not tell others. Here what other operations make of a size is hidden, so
    that no shape is inferred from it.

    Args:
        definition: The function, its calls inlined; it is not changed.
        traced: The shapes that are known whatever the size is.
    """
    nodes = {node.name: node for node in definition.node_def}
    statics = StaticTensors(definition, nodes, traced)
    sizes: set[str] = set()
    hidden: set[str] = set()
    for node in in_topological_order(definition.node_def):
        sources = data_inputs(node)
        places = {place for place, one in enumerate(sources) if one.source in sizes}
        if node.op in _ASK:
            unknown = any(statics.sizes(one) is None for one in sources)
            if unknown:
                sizes.add(node.name)
        elif places and node.op != "BroadcastGradientArgs":
            # Over which axes that broadcasts shows where a size is 1: at one of the samples.
            (sizes if _is_plain(node, places) else hidden).add(node.name)
    result = FunctionDef()
    result.CopyFrom(definition)
    instead: dict[str, str] = {}
    for node in result.node_def[:]:
        for place, text in enumerate(node.input):
            source = reference(text)
            if source.source in hidden:
                if text not in instead:
                    # It gives a tensor of the same shape, and is never run ahead.
                    kind, name = type_of(statics.dtype(source)), f"tpunb_hidden_{len(instead)}"
                    add_node(result, "DebugIdentityV2", name, "", [text], T=kind)
                    instead[text] = f"{name}:output:0"
                node.input[place] = instead[text]
    return result


def _is_plain(node: NodeDef, places: Collection[int]) -> bool:
    """Whether of sizes, which are some inputs, a node makes sums and products of them."""
    if node.op == "Cast":
        return all(dtypes.as_dtype(node.attr[key].type).is_integer for key in ("SrcT", "DstT"))
    if node.op == "DynamicStitch":
        return min(places) >= int(node.attr["N"].i)
    if node.op == "Mul":
        return len(places) == 1
    return bool(node.op in _OF_ALL or (node.op in _OF_FIRST and max(places) == 0))


def inferred_sizes(
    graph: FuncGraph, definition: FunctionDef, batches: Collection[str], size: int
) -> KnownSizes | None:
    """The sizes of what a replica function computes, if its batches were of some size.

    Args:
        graph: The traced replica function.
        definition: The same as a protocol buffer, its calls inlined.
        batches: The arguments whose first axis has that size.
        size: How many examples a replica has.

    Returns:
        The shapes that are then fully known; None if the function is not for that size.
    """
    inferred = FuncGraph(f"{graph.name}_of_{size}")
    with inferred.as_default():
        arguments = {}
        for argument, traced in zip(definition.signature.input_arg, graph.inputs, strict=True):
            shape = traced.shape
            if argument.name in batches:
                shape = tf.TensorShape([size, *shape[1:]])
            placeholder = tf.compat.v1.placeholder(traced.dtype, shape)
            handle_data_util.copy_handle_data(traced, placeholder)
            arguments[f"{argument.name}:0"] = placeholder
        for function in graph._functions.values():
            inferred._add_function_recursive(function)
        nodes, _ = function_def_to_graph_def(definition)
        try:
            tf.graph_util.import_graph_def(nodes, input_map=arguments, name="")
        except ValueError:
            return None
    return _known(inferred, arguments)


def _known(inferred: FuncGraph, arguments: dict[str, tf.Tensor]) -> dict[tuple[str, int], Sizes]:
    found: dict[tuple[str, int], Sizes] = {}
    tensors = [
        ((operation.name, index), tensor)
        for operation in inferred.get_operations()
        for index, tensor in enumerate(operation.outputs)
    ]
    tensors += [((name.partition(":")[0], 0), tensor) for name, tensor in arguments.items()]
    for key, tensor in tensors:
        if tensor.dtype != dtypes.resource and tensor.shape.is_fully_defined():
            found[key] = tuple(tensor.shape.as_list())
    return found


def sizes_in(graph: FuncGraph) -> set[int]:
    """The numbers that stand in the shapes of what a function takes, its variables' among them."""
    sizes: set[int] = set()
    for tensor in graph.inputs:
        shapes = [tensor.shape]
        if tensor.dtype == dtypes.resource:
            data = handle_data_util.get_resource_handle_data(tensor)
            shapes = [tf.TensorShape(one.shape) for one in data.shape_and_type]
        for shape in shapes:
            if shape.rank:
                sizes.update(size for size in shape.as_list() if size)
    return sizes
