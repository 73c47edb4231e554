"""Reads of variables that nothing uses, which a function for all replicas would repeat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tpunb.virtual._tensorflow import FunctionDef, NodeDef
from tpunb.virtual.graph.function_def import control_inputs, data_inputs, reference


def without_dead_reads(function: FunctionDef) -> FunctionDef:
    """A function without the reads of variables whose values nothing takes.

    What assigns a variable gives its new value too, by a read that few use. What waits
    for such a read waits for what it was waiting for.

    Args:
        function: The function; it is not changed.

    Returns:
        A new one, or the same if it has none.
    """
    used = {source.source for node in function.node_def for source in data_inputs(node)}
    used.update(reference(text).source for text in function.ret.values())
    dead = {
        node.name: control_inputs(node)
        for node in function.node_def
        if node.op == "ReadVariableOp" and node.name not in used
    }
    if not dead:
        return function
    result = FunctionDef()
    result.CopyFrom(function)
    del result.node_def[:]
    alive = [node for node in function.node_def if node.name not in dead]
    result.node_def.extend(_waiting(node, dead) for node in alive)
    result.control_ret.clear()
    ends = _alive(function.control_ret.values(), dead)
    result.control_ret.update({f"effect_{number}": name for number, name in enumerate(ends)})
    del result.signature.control_output[:]
    result.signature.control_output.extend(result.control_ret)
    return result


def _waiting(node: NodeDef, dead: Mapping[str, list[str]]) -> NodeDef:
    """A node that waits for what the dead reads among its control inputs wait for."""
    waits = control_inputs(node)
    if dead.keys().isdisjoint(waits):
        return node
    result = NodeDef()
    result.CopyFrom(node)
    data = [text for text in node.input if not text.startswith("^")]
    del result.input[:]
    result.input.extend([*data, *(f"^{name}" for name in _alive(waits, dead))])
    return result


def _alive(names: Iterable[str], dead: Mapping[str, list[str]]) -> list[str]:
    """Nodes to wait for, with what dead reads among them wait for in their place."""
    pending, seen = list(names), dict[str, None]()
    alive: dict[str, None] = {}
    while pending:
        name = pending.pop()
        if name not in seen:
            seen[name] = None
            if name in dead:
                pending.extend(dead[name])
            else:
                alive[name] = None
    return list(alive)
