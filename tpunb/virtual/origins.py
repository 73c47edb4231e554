"""Which line of Python each node of a function for all replicas came from.

TensorFlow explains an error at run time by the node that raised it, and finds
the node's stack trace in its function. Nodes that were copied have to lead back
to the node that was traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tpunb.virtual._tensorflow import FunctionDef, GraphDebugInfo, atomic_function, context
from tpunb.virtual.graphs import called_functions


class ReplicatedFunction(atomic_function.AtomicFunction):  # type: ignore[misc]
    """A function for all replicas, as TensorFlow's runtime holds it.

    Args:
        definition: The function; it is registered in the runtime.
        traced: The function of one replica from which it was written.
        bodies: The functions that were made for it.
    """

    __slots__ = ["_bodies", "_traced"]

    def __init__(
        self,
        definition: FunctionDef,
        traced: atomic_function.AtomicFunction | None = None,
        bodies: Sequence[FunctionDef] = (),
    ) -> None:
        runtime = context.context()
        runtime.add_function_def(definition)
        super().__init__(definition.signature.name, runtime, function_type=None)
        self._traced = traced
        self._bodies = bodies

    @property
    def graph_debug_info(self) -> GraphDebugInfo:
        """The stack traces of the nodes; gathered only when an error needs them."""
        gathered = GraphDebugInfo()
        if self._traced is None:
            return gathered
        known = dict(_origins(self._traced, "", gathered, {}))
        for definition in (self.definition, *self._bodies):
            for node in definition.node_def:
                # A node of a body has signed with its name in the whole.
                name = next(iter(node.experimental_debug_info.original_node_names), node.name)
                trace = _nearest(name, known)
                if trace is not None:
                    gathered.name_to_trace_id[name] = trace
        for name, trace in known.items():
            if name not in gathered.name_to_trace_id:
                gathered.name_to_trace_id[name] = trace
        return gathered


def _origins(
    function: atomic_function.AtomicFunction,
    prefix: str,
    gathered: GraphDebugInfo,
    outer: Mapping[str, atomic_function.AtomicFunction],
) -> Iterator[tuple[str, int]]:
    """The traces of a function's nodes and of those it calls, by their inlined names."""
    offset = _append(function._bound_context.get_graph_debug_info(function.name), gathered)
    yield from ((prefix + node, trace) for node, trace in offset.items())
    # The body of a loop or branch names no children: those around it know them.
    children = {**outer, **{child.name.decode(): child for child in function.children}}
    for node in function.definition.node_def:
        for callee in called_functions(node):
            if callee in children:
                yield from _origins(children[callee], f"{prefix}{node.name}/", gathered, children)


def _append(added: GraphDebugInfo, gathered: GraphDebugInfo) -> dict[str, int]:
    """Adds the traces of one function; gives their new ids by the nodes' names."""
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


def _nearest(name: str, known: dict[str, int]) -> int | None:
    """The trace of a node, or of the node that it was made for."""
    while name:
        if name in known:
            return known[name]
        name = name.rpartition("/")[0]
    return None
