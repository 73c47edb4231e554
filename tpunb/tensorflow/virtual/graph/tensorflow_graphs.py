"""Parts of TensorFlow's graphs and functions without a public API, and their shapes.

Only this module uses their private attributes. `tests/virtual/test_tensorflow_adapters.py` lists
them and reports if a release of TensorFlow no longer has them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tpunb.tensorflow.virtual.graph.function_def import CALLS, KnownSizes, Library, Sizes
from tpunb.tensorflow.virtual.private_names import (
    AttrValue,
    FuncGraph,
    FunctionDef,
    GraphDebugInfo,
    atomic_function,
    ops,
)


def set_attr(operation: Any, name: str, value: AttrValue) -> None:
    """Set an attribute of an operation that is in a graph already."""
    operation._set_attr(name, value)


def run_after(operation: Any, before: Any) -> None:
    """Make an operation of a graph wait for another operation."""
    operation._add_control_input(before)


def is_stateful(operation: Any) -> bool:
    """Return whether an operation, or the function that it calls, has side effects."""
    return bool(operation._is_stateful)


def functions_of(graph: Any) -> Mapping[str, Any]:
    """Return the functions that a graph can call, by name."""
    return graph._functions  # type: ignore[no-any-return]


def body_of(graph: Any, name: str) -> FuncGraph | None:
    """Return the traced graph of a function that a graph can call; None if it is not known."""
    return getattr(functions_of(graph).get(name), "_cached_graph", None)


def add_function(graph: Any, function: Any) -> None:
    """Make a function callable from a graph."""
    graph._add_function(function)


def renew_function(graph: Any, name: str) -> None:
    """Update a graph to the present definition of a function that it can call, if any.

    `wrap_function` registers the function that its graph holds: it must be the same.
    """
    function = functions_of(graph).get(name)
    if function is not None:
        graph._remove_function(name)
        graph._add_function(function)


def add_functions_of(graph: Any, source: Any) -> None:
    """Make all functions that another graph can call, and their callees, callable from a graph."""
    for function in functions_of(source).values():
        graph._add_function_recursive(function)


def debug_info(function: atomic_function.AtomicFunction) -> GraphDebugInfo:
    """Return the stack traces of the operations of a function."""
    return function._bound_context.get_graph_debug_info(function.name)


def without_attribute(concrete: Any, name: str) -> None:
    """Remove an attribute from a concrete function before its first run."""
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
    """Return the graph of the function that is being traced and that no other function calls."""
    graph = ops.get_default_graph()
    while isinstance(outer := getattr(graph, "outer_graph", None), FuncGraph):
        graph = outer
    return graph


def set_control_flow_context(graph: Any, context: Any) -> None:
    """Put a graph's next operations into a control flow context."""
    graph._set_control_flow_context(context)


def device_functions(graph: Any) -> Any:
    """Return a copy of the stack of devices that a graph's next operation is placed by."""
    return graph._device_function_stack.copy()


def registered_gradients() -> frozenset[str]:
    """Return the names of the registered gradients, including custom gradients."""
    return frozenset(ops.gradient_registry.list())


def forget_gradients(names: frozenset[str]) -> None:
    """Remove registered gradients, which TensorFlow keeps for as long as the process lives."""
    for name in names:
        ops.gradient_registry._registry.pop(name, None)


def known_sizes(graph: FuncGraph, definition: FunctionDef) -> dict[tuple[str, int], Sizes]:
    """Return the fully known shapes of a replica function's tensors."""
    arguments = zip(definition.signature.input_arg, graph.inputs, strict=True)
    tensors = [((argument.name, 0), placeholder) for argument, placeholder in arguments]
    for name, operation in named_operations(graph):
        if operation.type not in CALLS:
            tensors += [((name, k), tensor) for k, tensor in enumerate(operation.outputs)]
    return {
        key: tuple(tensor.shape.as_list())
        for key, tensor in tensors
        if tensor.shape.is_fully_defined()
    }


def named_operations(graph: FuncGraph, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the operations of a graph, with the names that they get when all calls are inlined."""
    for operation in graph.get_operations():
        name = path + operation.name
        yield name, operation
        if operation.type in CALLS:
            body = body_of(graph, operation.get_attr("f").name)
            if body is not None:
                yield from named_operations(body, f"{name}/")


def body_sizes(graph: FuncGraph, library: Library) -> Callable[[str], KnownSizes]:
    """Return a lookup of the known shapes in a control flow function, by its name."""
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
        # A gradient of a gradient extends a graph after its definition was made.
        if body is None or len(body.inputs) != len(definition.signature.input_arg):
            return {}
        return known_sizes(body, definition)

    return sizes
