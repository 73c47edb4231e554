"""The sizes of a replica function's tensors for a batch of some size, as TensorFlow infers them."""

from __future__ import annotations

from collections.abc import Collection

import tensorflow as tf

from tpunb.virtual._tensorflow import (
    FuncGraph,
    FunctionDef,
    dtypes,
    function_def_to_graph_def,
    handle_data_util,
)
from tpunb.virtual.replicate.static_tensors import KnownSizes, Sizes

__all__ = ["inferred_sizes", "sizes_in"]


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
