"""Shapes that are asked for at run time and known before: the same on every replica."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tpunb.virtual._tensorflow import AttrValue, FunctionDef, NodeDef, dtypes, op_def_registry
from tpunb.virtual.replicate.graphs import control_inputs, data_inputs
from tpunb.virtual.replicate.nodes import integers
from tpunb.virtual.replicate.static_tensors import KnownSizes, Sizes, StaticTensors

_ASK = frozenset({"Rank", "Shape", "ShapeN", "Size"})


def with_constant_shapes(function: FunctionDef, known: KnownSizes) -> FunctionDef:
    """A function that has the shapes it asks for as constants, where they are known.

    What depends on a value that varies between replicas counts as varying, unless it
    is seen that it does not.

    Args:
        function: The function, its calls inlined; it is not changed.
        known: The shapes that are known.

    Returns:
        A new one, or the same if it asks for none.
    """
    nodes = {node.name: node for node in function.node_def}
    statics = StaticTensors(function, nodes, known)
    constants = {
        node.name: sizes
        for node in function.node_def
        if node.op in _ASK and (sizes := _all_sizes(node, statics)) is not None
    }
    if not constants:
        return function
    result = FunctionDef()
    result.CopyFrom(function)
    del result.node_def[:]
    instead: dict[str, str] = {}
    for node in function.node_def:
        if node.name in constants:
            result.node_def.extend(_constants(node, constants[node.name], instead))
        else:
            result.node_def.add().CopyFrom(node)
    for node in result.node_def:
        for place, text in enumerate(node.input):
            if text in instead:
                node.input[place] = instead[text]
    for name, text in function.ret.items():
        result.ret[name] = instead.get(text, text)
    return result


def _all_sizes(node: NodeDef, statics: StaticTensors) -> list[Sizes] | None:
    """The shapes of all inputs; None if one is not known."""
    found = [statics.sizes(source) for source in data_inputs(node)]
    known = [one for one in found if one is not None]
    return known if len(known) == len(found) else None


def _constants(node: NodeDef, sizes: list[Sizes], instead: dict[str, str]) -> Iterator[NodeDef]:
    """Constants for what a node gives; notes what is to be read in its place."""
    kind = dtypes.as_dtype(node.attr["out_type"].type) if "out_type" in node.attr else dtypes.int32
    output = op_def_registry.get(node.op).output_arg[0].name
    waits = [f"^{name}" for name in control_inputs(node)]
    for index, one in enumerate(sizes):
        value = {"Rank": len(one), "Size": int(np.prod(one))}.get(node.op, one)
        # What waits for the node waits for its first constant.
        name = f"{node.name}/known_{index}" if index else node.name
        constant = NodeDef(op="Const", name=name, device=node.device, input=waits)
        constant.attr["dtype"].CopyFrom(AttrValue(type=kind.as_datatype_enum))
        constant.attr["value"].CopyFrom(integers(np.asarray(value, kind.as_numpy_dtype), kind))
        instead[f"{node.name}:{output}:{index}"] = f"{name}:output:0"
        yield constant
