"""A traced replica function, and the tensors that it makes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tpunb.tpu.types import largest_memory
from tpunb.virtual._tensorflow import FuncGraph, FunctionDef, atomic_function, context, dtypes, ops
from tpunb.virtual.devices import full_name
from tpunb.virtual.graph.function_def import (
    BRANCHES,
    CALLS,
    OUTSIDE,
    Library,
    called_functions,
    needed,
)
from tpunb.virtual.graph.inline import inlined
from tpunb.virtual.graph.static_tensors import body_of

_NO_TENSORS = frozenset({dtypes.resource, dtypes.variant, dtypes.string})
# They ask for a shape, which is known: TensorFlow's optimizer does not make the tensor for them.
_ASK_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})
# They stand for a tensor that something else has made.
_PASSED_ON = frozenset({"Placeholder", "Identity", "IdentityN", "Reshape"}) | CALLS


@dataclasses.dataclass(frozen=True)
class Made:
    """A tensor that a replica function makes.

    Attributes:
        node: Its node's name, with those of the calls around it.
        outermost: The name of the node in the replica function that it belongs to, all
            calls written out.
        op: Its operation's type.
        dtype: Its type.
        sizes: Its shape.
        certain: Whether it is made in every step, and not in a branch that may not be taken.
        hosts: Whether the host makes it, which was asked to, and no core.
    """

    node: str
    outermost: str
    op: str
    dtype: dtypes.DType
    sizes: tuple[int, ...]
    certain: bool = True
    hosts: bool = False

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.sizes) * int(self.dtype.size)

    @property
    def text(self) -> str:
        """Its type and shape for a reader."""
        return f"{self.dtype.name}{list(self.sizes)}"


@dataclasses.dataclass(frozen=True)
class TracedFunction:
    """A traced replica function.

    Attributes:
        graph: The graph.
        atomic: The same as a function.
        variables: The variables' handles on the first core, by `id` of the
            graph's input.
        device: The first core.
        variables_anywhere: Whether other variables may be used as well.
        memory: Of a replica's cores, in bytes.
        cores: What these are called, as in "a core of v5e-8".
    """

    graph: Any
    atomic: atomic_function.AtomicFunction
    variables: Mapping[int, Any]
    device: str
    variables_anywhere: bool = False
    memory: int = dataclasses.field(default_factory=largest_memory)
    cores: str = "a core of the largest TPU"

    @functools.cached_property
    def library(self) -> Library:
        """Finds the functions that it calls."""
        return functools.cache(context.context().get_function_def)

    @functools.cached_property
    def definition(self) -> FunctionDef:
        """The function, its calls written out."""
        return inlined(self.atomic.cached_definition, self.library)

    @functools.cached_property
    def made(self) -> list[Made]:
        """The tensors of known size, of loops, branches and calls too, that are really made."""
        used = needed(self.definition, without=_ASK_SHAPES)
        return list(_made(self.graph, "", used, self.library))


def traced_function_of(concrete: Any) -> TracedFunction:
    """A concrete function that runs on no TPU yet, as one that a core would run."""
    graph = concrete.graph
    atomic = atomic_function.from_func_graph(f"{graph.name}_examined_{ops.uid()}", graph, {})
    held = {id(variable.handle) for variable in graph.variables}
    handles = {id(inner): outer for outer, inner in graph.captures if id(outer) in held}
    device = tf.config.list_logical_devices("CPU")[0].name
    return TracedFunction(graph, atomic, handles, full_name(device), variables_anywhere=True)


def _made(
    graph: FuncGraph, path: str, used: set[str], library: Library, *, hosts: bool = False
) -> Iterator[Made]:
    """Goes through a graph.

    Args:
        graph: The graph.
        path: The calls around it, as a prefix.
        used: The nodes whose tensors are made, all calls written out.
        library: Finds the functions of loops and branches.
        hosts: Whether all of it runs on the host.
    """
    for operation in graph.get_operations():
        name, op = path + operation.name, operation.type
        node = operation.node_def
        callees = list(called_functions(node))
        here = hosts or OUTSIDE in node.attr
        if op in CALLS:
            body = body_of(graph, callees[0])
            if body is not None:
                yield from _made(body, f"{name}/", used, library, hosts=here)
        elif name in used and op not in _PASSED_ON:
            yield from _outputs(operation, name, hosts=here)
            for callee in callees:
                for made in _made_in_a_body(body_of(graph, callee), callee, library):
                    yield dataclasses.replace(
                        made,
                        node=f"{name}/{made.node}",
                        outermost=name,
                        certain=made.certain and op not in BRANCHES,
                        hosts=made.hosts or here,
                    )


def _made_in_a_body(body: FuncGraph | None, name: str, library: Library) -> Iterator[Made]:
    """The tensors of a loop's or a branch's body."""
    if body is not None:
        yield from _made(
            body, "", needed(inlined(library(name), library), without=_ASK_SHAPES), library
        )


def _outputs(operation: Any, node: str, *, hosts: bool) -> Iterator[Made]:
    for tensor in operation.outputs:
        if tensor.dtype not in _NO_TENSORS and tensor.shape.is_fully_defined():
            sizes = tuple(tensor.shape.as_list())
            yield Made(node, node, operation.type, tensor.dtype, sizes, hosts=hosts)
