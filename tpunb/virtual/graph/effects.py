"""What nodes do to variables: which read, which assign, and which have other effects."""

from __future__ import annotations

from tpunb.virtual._tensorflow import FunctionDef, NodeDef, op_def_registry
from tpunb.virtual.graph.function_def import (
    BRANCHES,
    CALLS,
    CONTROL_FLOW,
    Library,
    called_functions,
    data_inputs,
    is_stateful,
)

READS = frozenset({"ReadVariableOp", "VariableShape", "ResourceGather", "ResourceGatherNd"})
ASSIGNMENTS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})

# How the names of operations begin that change a variable; the last two advance
# a random generator's state.
_WRITERS = ("Assign", "Resource", "Rng", "Stateful")


def writes_variables(function: FunctionDef, library: Library) -> bool:
    """Whether a function may change a variable."""
    return any(
        (node.op not in READS | CALLS and node.op.startswith(_WRITERS))
        or any(writes_variables(library(name), library) for name in called_functions(node))
        for node in function.node_def
    )


def is_read(function: FunctionDef, argument: str, library: Library) -> bool:
    """Whether a function, or one that it calls, reads the variable of an argument."""
    for node in function.node_def:
        for place, source in enumerate(data_inputs(node)):
            if source.source != argument:
                continue
            if node.op in READS:
                return True
            inner = place - (node.op in BRANCHES)  # a branch does not see its condition
            for body in map(library, called_functions(node)):
                names = [one.name for one in body.signature.input_arg]
                if 0 <= inner < len(names) and is_read(body, names[inner], library):
                    return True
    return False


def has_effects(function: FunctionDef, library: Library) -> bool:
    """Whether a function does more than compute its results and read variables."""
    return any(
        (is_stateful(node) and node.op not in READS and node.op not in CONTROL_FLOW)
        or any(has_effects(library(name), library) for name in called_functions(node))
        for node in function.node_def
    )


def only_updates(node: NodeDef) -> bool:
    """Whether all that a node gives are new values of variables, of a type it names."""
    definition = op_def_registry.get(node.op)
    has_outputs = definition is None or len(definition.output_arg) > 0
    return not has_outputs and ("dtype" in node.attr or "T" in node.attr)
