"""What goes into a replica function and comes out of it: what no core can hold or reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import FunctionDef, NodeDef, dtypes, in_save_context
from tpunb.virtual.graph.function_def import (
    BRANCHES,
    OUTSIDE,
    Library,
    called_functions,
    data_inputs,
)
from tpunb.virtual.graph.traced_function import TracedFunction
from tpunb.virtual.strict.diagnostics import Diagnostic
from tpunb.virtual.strict.host import NO_TENSORS
from tpunb.virtual.strict.stand_ins import Parameter

# No TPU's memory holds these.
_NO_TPU_TYPES = frozenset({dtypes.string, dtypes.complex128})
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"})


def parameters(traced: TracedFunction, definition: FunctionDef) -> dict[str, Parameter]:
    """The arguments of the function, as the compiler is given them."""
    outer = {id(inner): value for value, inner in traced.graph.captures}
    parameters = {}
    for argument, placeholder in zip(
        definition.signature.input_arg, traced.graph.inputs, strict=True
    ):
        if placeholder.dtype in NO_TENSORS:
            handle = traced.variables.get(id(placeholder), outer.get(id(placeholder)))
            parameters[argument.name] = Parameter(handle=handle)
        else:
            spec = tf.TensorSpec(placeholder.shape, placeholder.dtype)
            parameters[argument.name] = Parameter(spec=spec)
    return parameters


def foreign_types(traced: TracedFunction, definition: FunctionDef) -> Iterator[Diagnostic]:
    """Tensors that go to a core or come from it and that no core can hold."""
    for argument in (*definition.signature.input_arg, *definition.signature.output_arg):
        kind = dtypes.as_dtype(argument.type)
        if kind in _NO_TPU_TYPES:
            goes = "goes into" if argument.name not in definition.ret else "comes out of"
            source = definition.ret.get(argument.name, argument.name).partition(":")[0]
            users = [node.name for node in definition.node_def if source in node.input]
            yield Diagnostic(
                rule="unsupported-type",
                # An argument has no line: the first that reads it has.
                node=users[0] if users else source,
                op="",
                reason=f"A {kind.name} tensor {goes} the replica function: no TPU can hold it.",
                fix="Encode it as numbers in the input pipeline (tf.data), or leave it out.",
                message=f"Unsupported data type for TPU: {kind.name}, caused by output {source}:0",
            )


def out_of_scope_variables(traced: TracedFunction, definition: FunctionDef) -> Iterator[Diagnostic]:
    """Variables that are not on the cores, and that each replica would write in its turn.

    To read one is well: a TPU's program gets its value from the host.
    """
    if traced.variables_anywhere:
        return
    known = {id(variable.handle): variable for variable in traced.graph.variables}
    outer = {id(inner): value for value, inner in traced.graph.captures}
    names = [argument.name for argument in definition.signature.input_arg]
    for name, placeholder in zip(names, traced.graph.inputs, strict=True):
        variable = known.get(id(outer.get(id(placeholder))))
        if variable is None or id(placeholder) in traced.variables:
            continue
        node = _touching(definition, name, traced.library)
        if node is not None:
            yield _out_of_scope(node, variable, traced.device)


def _touching(function: FunctionDef, name: str, library: Library) -> NodeDef | None:
    """The first node that does more on a core with an argument's variable than read it."""
    for node in function.node_def:
        if OUTSIDE in node.attr or node.op in _READS:
            continue
        for place, source in enumerate(data_inputs(node)):
            if source.source == name and _touches(node, place, library):
                return node
    return None


def _touches(node: NodeDef, place: int, library: Library) -> bool:
    """Whether a node does more than read the variable that it takes at a place."""
    bodies = list(map(library, called_functions(node)))
    inner = place - (node.op in BRANCHES)  # a branch does not see its condition
    return not bodies or any(
        _touching(body, body.signature.input_arg[inner].name, library) is not None
        for body in bodies
    )


def _out_of_scope(node: NodeDef, variable: Any, device: str) -> Diagnostic:
    reason = f"The variable {variable.name} was made outside of the strategy's scope."
    fix = "Make models, optimizers, metrics and variables inside `with strategy.scope():`."
    message = (
        f"Trying to access resource {variable.name} located in device {variable.device} from "
        f"device {device}"
    )
    if in_save_context():  # where a variable of the scope stands without its copies
        reason = (
            "A function that gives no tensor is traced again when it is saved: there a variable "
        )
        reason += "has no copies that the replicas could set."
        fix = "Return a tensor from it, such as `tf.identity(v)`, or leave it out of the model."
        message = f"{variable.name} cannot be set on the replicas while a model is saved."
    return Diagnostic(
        rule="scope",
        node=node.name,
        op=node.op,
        reason=reason,
        fix=fix,
        message=message,
    )
