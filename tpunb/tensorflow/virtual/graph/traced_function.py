"""A traced replica function, the tensors that it makes, and the lines that its nodes come from.

TensorFlow explains an error at run time by the node that raised it, and finds the node's stack
trace in its function. Copied nodes must lead back to the node that was traced.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.errors.code_problems import SourceLine, is_library, is_of_this_package
from tpunb.tensorflow.virtual.copies.variable_copies import handle_of
from tpunb.tensorflow.virtual.graph.function_def import (
    BRANCHES,
    CALLS,
    OUTSIDE,
    Library,
    called_functions,
    needed,
)
from tpunb.tensorflow.virtual.graph.rewrite import inlined
from tpunb.tensorflow.virtual.graph.tensorflow_graphs import body_of, debug_info
from tpunb.tensorflow.virtual.private_names import (
    FuncGraph,
    FunctionDef,
    GraphDebugInfo,
    atomic_function,
    context,
    dtypes,
    ops,
)
from tpunb.tensorflow.virtual.runtime.devices import full_name
from tpunb.tpu.types import largest_memory

ANY_SIZE = 8
"""The size that is tried for a size that is known only when the step runs."""

_HANDLES = frozenset({dtypes.resource, dtypes.variant})
_NO_TENSORS = frozenset({dtypes.resource, dtypes.variant, dtypes.string})
# These operations ask for a shape that is known, so TensorFlow's optimizer does not make the tensor
# for them.
_ASK_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})
# These operations represent a tensor that another operation has made.
_PASSED_ON = frozenset({"Placeholder", "Identity", "IdentityN", "Reshape"}) | CALLS


@dataclasses.dataclass(frozen=True)
class TracedTensor:
    """A tensor that a replica function makes.

    Attributes:
        node: The node's name, prefixed with the names of the calls around it.
        outermost: The name of the node's outermost ancestor in the replica function, with all calls
            written out.
        op: The operation's type.
        dtype: The tensor's type.
        sizes: The tensor's shape.
        certain: Whether every step makes it: it is not in a branch that may not be taken.
        hosts: Whether the host makes it on request, and not a core.
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
        """The size in bytes."""
        return math.prod(self.sizes) * int(self.dtype.size)

    @property
    def text(self) -> str:
        """The tensor's type and shape for a reader."""
        return f"{self.dtype.name}{list(self.sizes)}"


@dataclasses.dataclass(frozen=True)
class TracedFunction:
    """A traced replica function.

    Attributes:
        graph: The graph.
        atomic: The same as a function.
        variables: The variables' handles on the first core, by `id` of the graph's input.
        device: The first core.
        variables_anywhere: Whether other variables may be used as well.
        memory: The memory of a replica's cores, in bytes.
        cores: A description of these cores, such as "a core of v5e-8".
        replicas: The number of replicas that run it; None for a function that is traced without a
            strategy.
        columns: The arguments of its call, each with its value on every replica; captures are not
            among them.
        has_stand_ins: Whether a column may repeat a single value although each replica will get a
            value of its own.
        open_axes: The axes of its arguments whose sizes are not fixed, by the arguments' indices.
        in_loop: Whether its arguments come from a loop over a distributed dataset within a
            `tf.function`. The loop fixes no batch size, as it passes empty batches after the end.
        fixed: The same function traced at the largest sizes of these axes; None without such axes,
            or if the sizes are not known.
    """

    graph: Any
    atomic: atomic_function.AtomicFunction
    variables: Mapping[int, Any]
    device: str
    variables_anywhere: bool = False
    memory: int = dataclasses.field(default_factory=largest_memory)
    cores: str = "a core of the largest TPU"
    replicas: int | None = None
    columns: Sequence[Sequence[Any]] = ()
    has_stand_ins: bool = False
    open_axes: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    in_loop: bool = False
    fixed: TracedFunction | None = None

    @property
    def is_padded(self) -> bool:
        """True if a TPU pads arguments to a bound; a single replica's are compiled as they come."""
        return bool(self.open_axes) and self.replicas != 1

    @property
    def shapes(self) -> list[tf.TensorShape]:
        """The shapes of the arguments, at their largest sizes if these are known."""
        own = [tensor.shape for tensor in self.graph.inputs]
        fixed = [] if self.fixed is None else [tensor.shape for tensor in self.fixed.graph.inputs]
        return fixed if len(fixed) == len(own) else own

    @property
    def is_sized(self) -> bool:
        """True if the largest sizes of all arguments are known."""
        pairs = zip(self.graph.inputs, self.shapes, strict=True)
        return all(
            shape.is_fully_defined() for argument, shape in pairs if argument.dtype not in _HANDLES
        )

    @functools.cached_property
    def library(self) -> Library:
        """The lookup of the functions that it calls."""
        return functools.cache(context.context().get_function_def)

    @functools.cached_property
    def definition(self) -> FunctionDef:
        """The function with its calls written out."""
        return inlined(self.atomic.cached_definition, self.library)

    @functools.cached_property
    def makes_variables(self) -> bool:
        """True if it makes variables: TensorFlow traces it again, without their first values."""
        return any(node.op == "VarIsInitializedOp" for node in self.definition.node_def)

    @functools.cached_property
    def tensors(self) -> list[TracedTensor]:
        """The tensors of known size that are really made, also in loops, branches and calls."""
        used = needed(self.definition, without=_ASK_SHAPES)
        return list(_tensors_of(self.graph, "", used, self.library))


def traced_function_of(concrete: Any) -> TracedFunction:
    """Return a concrete function, made for no TPU, as a function that a core would run."""
    graph = concrete.graph
    atomic = atomic_function.from_func_graph(f"{graph.name}_examined_{ops.uid()}", graph, {})
    variable_handles = {id(handle_of(variable)) for variable in graph.variables}
    handles = {id(inner): outer for outer, inner in graph.captures if id(outer) in variable_handles}
    device = tf.config.list_logical_devices("CPU")[0].name
    captured = {id(inner) for _, inner in graph.captures}
    passed = [tensor for tensor in graph.inputs if id(tensor) not in captured]
    parts = _parts_in(graph.structured_input_signature)
    return TracedFunction(
        graph,
        atomic,
        handles,
        full_name(device),
        variables_anywhere=True,
        open_axes=open_axes(passed, parts) if len(parts) == len(passed) else {},
    )


def open_axes(tensors: Sequence[Any], parts: Sequence[bool]) -> dict[int, tuple[int, ...]]:
    """Return the axes of arguments whose sizes are not fixed, by the arguments' indices.

    Args:
        tensors: The arguments.
        parts: For each argument, whether it is a part of a composite tensor. TensorFlow does not
            pad such parts.
    """
    axes_by_index: dict[int, tuple[int, ...]] = {}
    for index, (tensor, is_part) in enumerate(zip(tensors, parts, strict=True)):
        sizes = [] if tensor.shape.rank is None else tensor.shape.as_list()
        axes = tuple(axis for axis, size in enumerate(sizes) if size is None)
        if axes and not is_part and tensor.dtype not in _NO_TENSORS:
            axes_by_index[index] = axes
    return axes_by_index


def _parts_in(signature: Any) -> list[bool]:
    """Return whether each tensor of a concrete function's signature is part of a composite."""
    specs = [
        component for component in tf.nest.flatten(signature) if isinstance(component, tf.TypeSpec)
    ]
    return [
        not isinstance(spec, tf.TensorSpec)
        for spec in specs
        for _ in tf.nest.flatten(spec, expand_composites=True)
    ]


def _tensors_of(
    graph: FuncGraph, path: str, used: set[str], library: Library, *, hosts: bool = False
) -> Iterator[TracedTensor]:
    """Yield the tensors that a graph makes."""
    for operation in graph.get_operations():
        name, op = path + operation.name, operation.type
        node = operation.node_def
        callees = list(called_functions(node))
        here = hosts or OUTSIDE in node.attr
        if op in CALLS:
            body = body_of(graph, callees[0])
            if body is not None:
                yield from _tensors_of(body, f"{name}/", used, library, hosts=here)
        elif name in used and op not in _PASSED_ON:
            yield from _outputs(operation, name, hosts=here)
            for callee in callees:
                for tensor in _tensors_of_body(body_of(graph, callee), callee, library):
                    yield dataclasses.replace(
                        tensor,
                        node=f"{name}/{tensor.node}",
                        outermost=name,
                        certain=tensor.certain and op not in BRANCHES,
                        hosts=tensor.hosts or here,
                    )


def _tensors_of_body(body: FuncGraph | None, name: str, library: Library) -> Iterator[TracedTensor]:
    """Yield the tensors of a loop's or a branch's body."""
    if body is not None:
        yield from _tensors_of(
            body, "", needed(inlined(library(name), library), without=_ASK_SHAPES), library
        )


def _outputs(operation: Any, node: str, *, hosts: bool) -> Iterator[TracedTensor]:
    for tensor in operation.outputs:
        if tensor.dtype not in _NO_TENSORS and tensor.shape.is_fully_defined():
            sizes = tuple(tensor.shape.as_list())
            yield TracedTensor(node, node, operation.type, tensor.dtype, sizes, hosts=hosts)


def gathered_origins(
    traced: atomic_function.AtomicFunction,
) -> tuple[GraphDebugInfo, dict[str, int]]:
    """Return the stack traces of a traced function's nodes, including the functions that it calls.

    Returns:
        The traces, and the id of each node's trace by the node's inlined name.
    """
    gathered = GraphDebugInfo()
    return gathered, dict(_origins(traced, "", gathered, {}))


def _origins(
    function: atomic_function.AtomicFunction,
    prefix: str,
    gathered: GraphDebugInfo,
    outer: Mapping[str, atomic_function.AtomicFunction],
) -> Iterator[tuple[str, int]]:
    """Yield the traces of a function's nodes and of its callees' nodes, by inlined name."""
    if not isinstance(function, atomic_function.AtomicFunction):
        return  # a function of TensorFlow 1's kind keeps no traces
    offset = _append(debug_info(function), gathered)
    yield from ((prefix + node, trace) for node, trace in offset.items())
    # The body of a loop or branch does not list its children. The functions around it know them.
    children = {**outer, **{tf.compat.as_str(child.name): child for child in function.children}}
    for node in function.definition.node_def:
        for callee in called_functions(node):
            if callee in children:
                yield from _origins(children[callee], f"{prefix}{node.name}/", gathered, children)


def _append(added: GraphDebugInfo, gathered: GraphDebugInfo) -> dict[str, int]:
    """Add the traces of one function; return their new ids by the nodes' names."""
    files, frames = len(gathered.files), _next(gathered.frames_by_id)
    traces = _next(gathered.traces_by_id)
    gathered.files.extend(added.files)
    for key, frame in added.frames_by_id.items():
        copy = gathered.frames_by_id[key + frames]
        copy.CopyFrom(frame)
        copy.file_index += files
    for key, trace in added.traces_by_id.items():
        copy = gathered.traces_by_id[key + traces]
        copy.CopyFrom(trace)
        copy.frame_id[:] = [frame + frames for frame in trace.frame_id]
    return {name: trace + traces for name, trace in added.name_to_trace_id.items()}


def _next(table: dict[int, object]) -> int:
    return max(table, default=-1) + 1


def nearest_trace(name: str, known: dict[str, int]) -> int | None:
    """Return the trace of a node, or of the node that it was made for."""
    while name:
        if name in known:
            return known[name]
        name = name.rpartition("/")[0]
    return None


class SourceLines:
    """The source lines of a traced function's nodes.

    They are gathered on the first request.

    Args:
        traced: The function.
    """

    def __init__(self, traced: atomic_function.AtomicFunction) -> None:
        self._traced = traced

    def frames(self, path: str) -> list[SourceLine]:
        """Return the calls that led to a node, innermost first.

        Args:
            path: The node's name, prefixed with the names of the calls around it.
        """
        info, known = self._known
        name = path if path in known else self._inner.get(path, path)
        trace = nearest_trace(name, known)
        if trace is None:
            return []
        return [
            _source_line(info, number) for number in reversed(info.traces_by_id[trace].frame_id)
        ]

    def knows(self, path: str) -> bool:
        """Return whether a node of exactly this name was traced, even in a loop or branch."""
        return path in self._known[1] or path in self._inner

    def own(self, path: str) -> list[SourceLine]:
        """Return the calls in the user's code within the replica function, innermost first."""
        inside = itertools.takewhile(
            lambda line: not is_of_this_package(line.file), self.frames(path)
        )
        return [line for line in inside if not is_library(line.file)]

    @functools.cached_property
    def _known(self) -> tuple[GraphDebugInfo, dict[str, int]]:
        return gathered_origins(self._traced)

    @functools.cached_property
    def _inner(self) -> dict[str, str]:
        """The full names of nodes in bodies, by the short names that the compiler uses."""
        known = self._known[1]
        full_names: dict[str, str] = {}
        for name in known:
            parts = name.split("/")
            for start in range(1, len(parts)):
                if "/".join(parts[:start]) in known:
                    full_names.setdefault("/".join(parts[start:]), name)
        return full_names


def _source_line(info: GraphDebugInfo, number: int) -> SourceLine:
    frame: Any = info.frames_by_id[number]
    return SourceLine(info.files[frame.file_index], frame.line)
