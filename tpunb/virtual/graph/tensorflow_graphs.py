"""TensorFlow's graphs and functions, as far as it has no public way to them, and their shapes.

Only this module uses their private attributes; `tests/virtual/test_tensorflow_adapters.py` lists
them and tells when a release of TensorFlow no longer has one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from tpunb.virtual._tensorflow import (
    AttrValue,
    FuncGraph,
    FunctionDef,
    GraphDebugInfo,
    atomic_function,
    ops,
)
from tpunb.virtual.graph.function_def import CALLS, KnownSizes, Library, Sizes


def set_attr(operation: Any, name: str, value: AttrValue) -> None:
    """Sets an attribute of an operation that is in a graph already."""
    operation._set_attr(name, value)


def attributes_of_new(
    graph: Any, attributes: Mapping[str, AttrValue]
) -> AbstractContextManager[None]:
    """Gives every operation that a graph gets inside of the block these attributes."""
    return graph._attr_scope(attributes)  # type: ignore[no-any-return]


def run_after(operation: Any, before: Any) -> None:
    """Makes an operation of a graph wait for another one."""
    operation._add_control_input(before)


def is_stateful(operation: Any) -> bool:
    """Return whether an operation, or the function that it calls, has side effects."""
    return bool(operation._is_stateful)


def functions_of(graph: Any) -> Mapping[str, Any]:
    """The functions that a graph can call, by name."""
    return graph._functions  # type: ignore[no-any-return]


def body_of(graph: Any, name: str) -> FuncGraph | None:
    """The graph of a function that a graph can call, as it was traced, if it is known."""
    return getattr(functions_of(graph).get(name), "_cached_graph", None)


def add_function(graph: Any, function: Any) -> None:
    """Lets a graph call a function."""
    graph._add_function(function)


def renew_function(graph: Any, name: str) -> None:
    """Has a graph take the present definition of a function that it can call, if it can.

    `wrap_function` registers what its graph holds: it must be the same.
    """
    function = functions_of(graph).get(name)
    if function is not None:
        graph._remove_function(name)
        graph._add_function(function)


def add_functions_of(graph: Any, other: Any) -> None:
    """Lets a graph call what another one can call, and what that calls."""
    for function in functions_of(other).values():
        graph._add_function_recursive(function)


def debug_info(function: atomic_function.AtomicFunction) -> GraphDebugInfo:
    """The stack traces of the operations of a function."""
    return function._bound_context.get_graph_debug_info(function.name)


def without_attribute(concrete: Any, name: str) -> None:
    """Takes an attribute from a concrete function that has not run yet."""
    attributes = {key: value for key, value in concrete._attrs.items() if key != name}
    concrete._attrs.pop(name, None)
    atomic_function.from_func_graph(
        concrete.inference_fn.name,
        concrete.graph,
        attributes,
        concrete.function_type,
        overwrite=True,
    )


def outermost_graph() -> Any:
    """The graph of the function that is being traced and that no other one calls."""
    graph = ops.get_default_graph()
    while isinstance(outer := getattr(graph, "outer_graph", None), FuncGraph):
        graph = outer
    return graph


def control_flow_context(graph: Any) -> Any:
    """The control flow context of what a graph gets now; None outside of any."""
    return graph._get_control_flow_context()


def set_control_flow_context(graph: Any, context: Any) -> None:
    """Puts what a graph gets from now on into a control flow context."""
    graph._set_control_flow_context(context)


def device_functions(graph: Any) -> Any:
    """A copy of the stack of devices that a graph's next operation is placed by."""
    return graph._device_function_stack.copy()


def registered_gradients() -> frozenset[str]:
    """The names of the gradients that are registered, custom ones among them."""
    return frozenset(ops.gradient_registry.list())


def forget_gradients(names: frozenset[str]) -> None:
    """Removes registered gradients, which TensorFlow keeps for as long as the process lives."""
    for name in names:
        ops.gradient_registry._registry.pop(name, None)


def value_of_handle(handle: Any) -> Any:
    """The shape and the type of the variable behind a handle; None for anything else."""
    data = getattr(handle, "_handle_data", None)
    return data.shape_and_type[0] if data and data.is_set and data.shape_and_type else None


def known_sizes(graph: FuncGraph, definition: FunctionDef) -> dict[tuple[str, int], Sizes]:
    """The shapes that are fully known of what a replica function computes."""
    arguments = zip(definition.signature.input_arg, graph.inputs, strict=True)
    tensors = [((one.name, 0), placeholder) for one, placeholder in arguments]
    for name, operation in named_operations(graph):
        if operation.type not in CALLS:
            tensors += [((name, k), tensor) for k, tensor in enumerate(operation.outputs)]
    return {
        key: tuple(tensor.shape.as_list())
        for key, tensor in tensors
        if tensor.shape.is_fully_defined()
    }


def named_operations(graph: FuncGraph, path: str = "") -> Iterator[tuple[str, Any]]:
    """The operations of a graph, with the names that they get when all calls are inlined."""
    for operation in graph.get_operations():
        name = path + operation.name
        yield name, operation
        if operation.type in CALLS:
            body = body_of(graph, operation.get_attr("f").name)
            if body is not None:
                yield from named_operations(body, f"{name}/")


def body_sizes(graph: FuncGraph, library: Library) -> Callable[[str], KnownSizes]:
    """Finds the shapes that are known in a function of control flow, by its name."""
    bodies: dict[str, FuncGraph] = {}

    def visit(graph: FuncGraph) -> None:
        for name in functions_of(graph):
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
