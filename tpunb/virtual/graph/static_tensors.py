"""What is known of a replica function's tensors when it is traced: types, sizes and constants."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tpunb.virtual._tensorflow import (
    FuncGraph,
    FunctionDef,
    NodeDef,
    dtypes,
    op_def_registry,
    tensor_util,
)
from tpunb.virtual.graph.function_def import CALLS, Reference, data_inputs

Sizes = tuple[int, ...]
"""A shape that is fully known."""

KnownSizes = Mapping[tuple[str, int], Sizes]
"""The shapes of tensors, by their nodes' names and which of the nodes' tensors they are."""

_PASS_ON = frozenset({"Cast", "Identity"})


def known_sizes(graph: FuncGraph, definition: FunctionDef) -> dict[tuple[str, int], Sizes]:
    """The shapes that are fully known of what a replica function computes.

    Args:
        graph: The traced replica function.
        definition: The same as a protocol buffer.

    Returns:
        The shapes; nodes have the names that they get when all calls are inlined.
    """
    found: dict[tuple[str, int], Sizes] = {}
    for argument, placeholder in zip(definition.signature.input_arg, graph.inputs, strict=True):
        _note(found, argument.name, 0, placeholder)
    for name, operation in named_operations(graph):
        if operation.type not in CALLS:
            for index, tensor in enumerate(operation.outputs):
                _note(found, name, index, tensor)
    return found


def named_operations(graph: FuncGraph, path: str = "") -> Iterator[tuple[str, Any]]:
    """The operations of a graph, with the names that they get when all calls are inlined.

    Args:
        graph: The graph.
        path: The calls around it, as a prefix.
    """
    for operation in graph.get_operations():
        name = path + operation.name
        yield name, operation
        if operation.type in CALLS:
            body = body_of(graph, operation.get_attr("f").name)
            if body is not None:
                yield from named_operations(body, f"{name}/")


def body_of(graph: FuncGraph, name: str) -> FuncGraph | None:
    """The graph of a function that is called in a graph, as it was traced, if it is known."""
    return getattr(graph._functions.get(name), "_cached_graph", None)


def body_sizes(
    graph: FuncGraph, library: Callable[[str], FunctionDef]
) -> Callable[[str], KnownSizes]:
    """Finds the shapes that are known in a function of control flow, by its name.

    Args:
        graph: The traced replica function.
        library: Finds the functions of control flow, their calls inlined.
    """
    bodies: dict[str, FuncGraph] = {}

    def visit(graph: FuncGraph) -> None:
        for name in graph._functions:
            body = body_of(graph, name)
            if body is not None and name not in bodies:
                bodies[name] = body
                visit(body)

    visit(graph)

    @functools.cache
    def sizes(name: str) -> KnownSizes:
        body, definition = bodies.get(name), library(name)
        # A gradient of a gradient adds to a graph of which there is a definition.
        if body is None or len(body.inputs) != len(definition.signature.input_arg):
            return {}
        return known_sizes(body, definition)

    return sizes


def _note(found: dict[tuple[str, int], Sizes], name: str, index: int, tensor: object) -> None:
    shape = tensor.shape  # type: ignore[attr-defined]
    if shape.is_fully_defined():
        found[name, index] = tuple(shape.as_list())


class StaticTensors:
    """What is known of the tensors of a replica function.

    Args:
        function: The function of one replica, its calls inlined.
        nodes: Its nodes, by name.
        sizes: The shapes that are known.
    """

    def __init__(
        self, function: FunctionDef, nodes: Mapping[str, NodeDef], sizes: KnownSizes
    ) -> None:
        self._arguments = {one.name: one.type for one in function.signature.input_arg}
        self._nodes = nodes
        self._sizes = sizes

    def sizes(self, source: Reference) -> Sizes | None:
        """The shape of a tensor; None if it is not fully known."""
        return self.output_sizes(source.source, self.place(source))

    def output_sizes(self, name: str, index: int) -> Sizes | None:
        """The shape of a tensor that a node gives, or of an argument."""
        known = self._sizes.get((name, index))
        node = self._nodes.get(name)
        if node is not None and node.op == "Const":
            return tuple(axis.size for axis in node.attr["value"].tensor.tensor_shape.dim)
        if known is None and node is not None and node.op in _PASS_ON:
            return self.sizes(data_inputs(node)[0])
        return known

    def node(self, source: Reference) -> NodeDef | None:
        """The node that gives a tensor; None for an argument."""
        return self._nodes.get(source.source)

    def bytes_of(self, node: NodeDef) -> float:
        """How many bytes what a node gives takes; infinitely many if that is not known."""
        total = 0
        for index, kind in enumerate(output_types(node)):
            sizes = self.output_sizes(node.name, index)
            if sizes is None:
                return math.inf
            total += math.prod(sizes) * int(kind.size)
        return total

    def place(self, source: Reference) -> int:
        """Which of all tensors that a node gives a reference means."""
        node = self._nodes.get(source.source)
        return 0 if node is None else output_place(node, source)

    def dtype(self, source: Reference) -> dtypes.DType:
        """The type of a tensor."""
        node = self._nodes.get(source.source)
        if node is None:
            return dtypes.as_dtype(self._arguments[source.source])
        return output_types(node)[self.place(source)]

    def value(self, source: Reference) -> np.ndarray | None:
        """The value of a tensor of constants; None if it is not known."""
        node = self._nodes.get(source.source)
        if node is None:
            return None
        if node.op == "Const":
            constant: np.ndarray = tensor_util.MakeNdarray(node.attr["value"].tensor)
            return constant
        if node.op not in {"Range", "Identity"}:
            return None
        values = [self.value(one) for one in data_inputs(node)]
        if any(value is None for value in values):
            return None
        return values[0] if node.op == "Identity" else np.arange(*map(int, values))  # type: ignore[arg-type]


def output_place(node: NodeDef, source: Reference) -> int:
    """Which of all tensors that a node gives a reference means."""
    _, output, index = source.suffix.split(":")
    before = 0
    for argument in op_def_registry.get(node.op).output_arg:
        if argument.name == output:
            break
        before += _count(node, argument)
    return before + int(index)


def output_types(node: NodeDef) -> list[dtypes.DType]:
    """The types of all tensors that a node gives."""
    types: list[int] = []
    for argument in op_def_registry.get(node.op).output_arg:
        if argument.type_list_attr:
            types.extend(node.attr[argument.type_list_attr].list.type)
            continue
        kind = node.attr[argument.type_attr].type if argument.type_attr else argument.type
        types.extend([kind] * _count(node, argument))
    return [dtypes.as_dtype(kind) for kind in types]


def _count(node: NodeDef, argument: object) -> int:
    number, types = argument.number_attr, argument.type_list_attr  # type: ignore[attr-defined]
    if types:
        return len(node.attr[types].list.type)
    return int(node.attr[number].i) if number else 1
