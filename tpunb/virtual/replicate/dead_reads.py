"""Reads of variables that nothing uses, which a function for all replicas would repeat."""

from __future__ import annotations

from tpunb.virtual._tensorflow import FunctionDef
from tpunb.virtual.graph.function_def import control_inputs, data_inputs, reference
from tpunb.virtual.graph.rewrite import Rewrite


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
        node.name
        for node in function.node_def
        if node.op == "ReadVariableOp" and node.name not in used
    }
    if not dead:
        return function
    rewrite = Rewrite(function)
    for node in function.node_def:
        if node.name in dead:
            rewrite.drop(node.name, control_inputs(node))
        else:
            rewrite.keep(node)
    return rewrite.finish()
