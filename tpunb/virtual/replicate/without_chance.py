"""Replica functions without chance and without output, so that two runs can be compared."""

from __future__ import annotations

import numpy as np

from tpunb.virtual._tensorflow import AttrValue, FunctionDef, NodeDef, dtypes
from tpunb.virtual.graph.function_def import new_constant

_UNIFORM, _NORMAL = 0.75, 0.5
"""The numbers drawn. A dropout keeps all values if it drops at most three quarters."""

_PRINTS = "PrintV2"

_DRAWS = {
    "RandomUniform": _UNIFORM,
    "StatelessRandomUniform": _UNIFORM,
    "StatelessRandomUniformV2": _UNIFORM,
    "RandomStandardNormal": _NORMAL,
    "StatelessRandomNormal": _NORMAL,
    "StatelessRandomNormalV2": _NORMAL,
    "TruncatedNormal": _NORMAL,
    "StatelessTruncatedNormal": _NORMAL,
    "StatelessTruncatedNormalV2": _NORMAL,
}
"""Operations that take a shape first, and return random numbers as `output`."""


def without_chance(function: FunctionDef) -> FunctionDef:
    """Return a function that always draws the same number, and prints nothing.

    Loops and branches stay as they are.
    """
    if not any(node.op in _DRAWS or node.op == _PRINTS for node in function.node_def):
        return function
    result = FunctionDef()
    result.CopyFrom(function)
    for node in result.node_def[:]:
        if node.op in _DRAWS:
            result.node_def.append(_number_of(node))
            _fill(node, result.node_def[-1].name)
        elif node.op == _PRINTS:
            _only_wait(node)
    return result


def _only_wait(node: NodeDef) -> None:
    """Turn a node without outputs into a node that does nothing."""
    waits = [text for text in node.input if text.startswith("^")]
    node.op = "NoOp"
    del node.input[:]
    node.input.extend(waits)
    node.attr.clear()


def _number_of(node: NodeDef) -> NodeDef:
    kind = dtypes.as_dtype(node.attr["dtype"].type)
    value = np.asarray(_DRAWS[node.op], kind.as_numpy_dtype)
    return new_constant(f"{node.name}/number", value, kind, node.device)


def _fill(node: NodeDef, number: str) -> None:
    """Turn a node into a `Fill` of the same shape, with the same name and output."""
    kind = node.attr["dtype"].type
    index = node.attr["Tshape" if "Tshape" in node.attr else "T"].type
    waits = [text for text in node.input if text.startswith("^")]
    shape = node.input[0]
    node.op = "Fill"
    del node.input[:]
    node.input.extend([shape, f"{number}:output:0", *waits])
    node.attr.clear()
    node.attr["T"].CopyFrom(AttrValue(type=kind))
    node.attr["index_type"].CopyFrom(AttrValue(type=index))
