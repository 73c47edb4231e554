"""Which line of Python each node of a function for all replicas came from.

TensorFlow explains an error at run time by the node that raised it, and finds
the node's stack trace in its function. Nodes that were copied have to lead back
to the node that was traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import tensorflow as tf

from tpunb.virtual._tensorflow import GraphDebugInfo, atomic_function
from tpunb.virtual.graph.function_def import called_functions


def gathered_origins(
    traced: atomic_function.AtomicFunction,
) -> tuple[GraphDebugInfo, dict[str, int]]:
    """The stack traces of a traced function's nodes and of those in what it calls.

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
    """The traces of a function's nodes and of those it calls, by their inlined names."""
    if not isinstance(function, atomic_function.AtomicFunction):
        return  # a function of TensorFlow 1's kind, which keeps no traces
    offset = _append(function._bound_context.get_graph_debug_info(function.name), gathered)
    yield from ((prefix + node, trace) for node, trace in offset.items())
    # The body of a loop or branch names no children: those around it know them.
    children = {**outer, **{tf.compat.as_str(child.name): child for child in function.children}}
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


def nearest_trace(name: str, known: dict[str, int]) -> int | None:
    """The trace of a node, or of the node that it was made for."""
    while name:
        if name in known:
            return known[name]
        name = name.rpartition("/")[0]
    return None
