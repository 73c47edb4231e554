"""Shapes that are asked for at run time and known before: the same on every replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tpunb.virtual._tensorflow import FunctionDef, NodeDef, dtypes, op_def_registry
from tpunb.virtual.graph.function_def import (
    Reference,
    control_inputs,
    data_inputs,
    in_topological_order,
)
from tpunb.virtual.graph.nodes import new_constant
from tpunb.virtual.graph.rewrite import Rewrite
from tpunb.virtual.graph.static_tensors import KnownSizes, Sizes, StaticTensors

_ASK = frozenset({"Rank", "Shape", "ShapeN", "Size"})
_SLICE = "StridedSlice"
_BROADCAST = "BroadcastGradientArgs"
_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


def with_constant_shapes(function: FunctionDef, known: KnownSizes) -> FunctionDef:
    """A function that has the shapes it asks for as constants, where they are known.

    What depends on a value that varies between replicas counts as varying, unless it
    is seen that it does not. With the shapes it is known over which axes a gradient is summed.

    Args:
        function: The function, its calls inlined; it is not changed.
        known: The shapes that are known.

    Returns:
        A new one, or the same if it asks for none.
    """
    constants = _Constants(function, known).found()
    if not constants:
        return function
    rewrite = Rewrite(function)
    for node in function.node_def:
        if node.name in constants:
            for constant, given in _constants(node, constants[node.name]):
                rewrite.keep(constant)
                rewrite.replace({given: f"{constant.name}:output:0"})
        else:
            rewrite.keep(node)
    return rewrite.finish()


class _Constants:
    """What nodes give that ask for shapes, where these are known.

    Args:
        function: The function of these nodes.
        known: The shapes that are known.
    """

    def __init__(self, function: FunctionDef, known: KnownSizes) -> None:
        nodes = {node.name: node for node in function.node_def}
        self._order = in_topological_order(function.node_def)
        self._statics = StaticTensors(function, nodes, known)
        self._found: dict[str, list[Any]] = {}

    def found(self) -> Mapping[str, Sequence[Any]]:
        """For each such node the value of each of its outputs."""
        rules = {
            **dict.fromkeys(_ASK, self._asked),
            _SLICE: self._sliced,
            _BROADCAST: self._summed,
        }
        for node in self._order:
            values = rules[node.op](node) if node.op in rules else None
            if values is not None:
                self._found[node.name] = values
        return self._found

    def _asked(self, node: NodeDef) -> list[Any] | None:
        """The shapes of a node's inputs, or what it asks of them; None if one is not known."""
        shapes = [self._statics.sizes(source) for source in data_inputs(node)]
        if None in shapes:
            return None
        known: list[Sizes] = [one for one in shapes if one is not None]
        return [{"Rank": len(one), "Size": int(np.prod(one))}.get(node.op, one) for one in known]

    def _sliced(self, node: NodeDef) -> list[Any] | None:
        """Some sizes of a shape, or one."""
        values = self._values(node)
        masks = {key: node.attr[f"{key}_mask"].i for key in _MASKS}
        if values is None or masks.pop("ellipsis") or masks.pop("new_axis"):
            return None
        if any(source.source in self._found for source in data_inputs(node)[1:]):
            return None  # which sizes it takes may depend on sizes
        sizes, *bounds = values
        if sizes.dtype.kind != "i" or sizes.ndim != 1 or any(one.size != 1 for one in bounds):
            return None
        begin, end, stride = (int(one[0]) for one in bounds)
        if masks["shrink_axis"]:
            return [sizes[begin]]
        some = slice(None if masks["begin"] else begin, None if masks["end"] else end, stride)
        return [sizes[some]]

    def _summed(self, node: NodeDef) -> list[Any] | None:
        """The axes over which the gradients of two broadcast tensors are summed."""
        known = self._values(node)
        if known is None:
            return None
        rank = max(map(len, known))
        padded = [np.concatenate([np.ones(rank - len(one), one.dtype), one]) for one in known]
        return [np.flatnonzero(one == 1) for one in padded]

    def _values(self, node: NodeDef) -> list[np.ndarray] | None:
        """The values of a node's inputs; None if one is not known."""
        values = [self._value(source) for source in data_inputs(node)]
        known = [np.asarray(one) for one in values if one is not None]
        return known if len(known) == len(values) else None

    def _value(self, source: Reference) -> Any | None:
        if source.source in self._found:
            return self._found[source.source][self._statics.place(source)]
        return self._statics.value(source)


def _constants(node: NodeDef, values: Sequence[Any]) -> Iterator[tuple[NodeDef, str]]:
    """Constants for what a node gives, each with the reference that it replaces."""
    outputs = op_def_registry.get(node.op).output_arg
    asked = "T" if node.op in {_SLICE, _BROADCAST} else "out_type"
    kind = dtypes.as_dtype(node.attr[asked].type) if asked in node.attr else dtypes.int32
    for index, one in enumerate(values):
        # What waits for the node waits for its first constant.
        name = f"{node.name}/known_{index}" if index else node.name
        constant = new_constant(name, np.asarray(one, kind.as_numpy_dtype), kind, node.device)
        constant.input.extend(f"^{name}" for name in control_inputs(node))
        # Of several outputs each has a name of its own, or all are a list with one.
        output = f"{outputs[index].name}:0" if len(outputs) > 1 else f"{outputs[0].name}:{index}"
        yield constant, f"{node.name}:{output}"
