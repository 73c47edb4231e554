"""Refusals of replica functions that read single copies of a variable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tpunb.tensorflow.virtual.copies.order_of_copies import outermost
from tpunb.tensorflow.virtual.copies.variable_copies import (
    copies_of,
    copy_with,
    replica_of,
    values_differ,
)
from tpunb.tensorflow.virtual.graph.function_def import arguments_read
from tpunb.tensorflow.virtual.graph.traced_function import TracedFunction
from tpunb.tensorflow.virtual.private_names import in_save_context
from tpunb.tensorflow.virtual.replicate.passes import ReplicaFunction
from tpunb.tensorflow.virtual.replicate.trace import TracedVariable
from tpunb.tensorflow.virtual.replicate.variance import Arguments, analyze
from tpunb.tensorflow.virtual.strict.refused_ops import is_set


def refuse_copies_one_by_one(traced: TracedFunction) -> None:
    """Refuse a function that was traced outside the replicas and reads a variable's copies.

    In such a function, a variable that is summed when it is read represents all its copies. The
    replica function would take the first copy for the replica's own, and the others as they are.
    """
    # A variable that is kept in sync is represented by its first copy, which may be read.
    graph, definition = traced.graph, traced.definition
    outside = {id(inner): outer for outer, inner in graph.captures}
    further = [
        argument.name
        for argument, inner in zip(definition.signature.input_arg, graph.inputs, strict=True)
        if id(inner) not in graph.tracing.variables
        and id(inner) in outside
        and replica_of(outermost(outside[id(inner)]))
    ]
    # A variable that is only assigned was made by the function, which assigns its first values.
    if arguments_read(definition, further, traced.library):
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            "A function that was traced outside of the replicas reads the copies of a variable "
            "one by one, and is called within a replica function.\nCall the tf.function "
            "itself, which is traced again there, or pass the value as an argument.",
        )


def refuse_uncertain_reads(
    function: ReplicaFunction, traced: TracedFunction, arguments: Callable[[], Arguments]
) -> None:
    """Refuse a function that reads single copies of a variable that it also uses or sets.

    The first copy has the variable's handle, so each replica would read its own copy. Another copy
    would be read before or after its replica sets it.

    Args:
        function: The function, and the cores that it is written out for.
        traced: The same function as it was traced.
        arguments: Returns the way in which the function's arguments reach the replicas.
    """
    if in_save_context():
        return
    graph = traced.graph
    variables = graph.tracing.variables
    names = [argument.name for argument in traced.definition.signature.input_arg]
    used = {
        id(inner): name
        for name, inner in zip(names, graph.inputs, strict=True)
        if id(inner) in variables
    }
    first_copies = {id(use.handle) for use in graph.copy_uses}
    if first_copies:
        equal = {
            name: dataclasses.replace(argument, diverged=False)
            for name, argument in arguments().items()
        }
        diverged = analyze(function.computed, equal, function.inlined_library).diverged
        for key in first_copies:
            if used[key] in diverged or _may_differ(variables[key]):
                raise _read_of_copy(variables[key].name, "whose copies differ")
    names_by_key = {variables[key].key: name for key, name in used.items()}
    for outer, inner in graph.captures:
        copies = copies_of(copy_with(outer)) if id(inner) not in variables else None
        name = names_by_key.get(copies.key) if copies is not None else None
        if copies is not None and name is not None and is_set(traced, name):
            raise _read_of_copy(copies.name, "which the function sets")


def _may_differ(variable: TracedVariable) -> bool:
    """Return whether each replica has its own value of a variable, or the values differ now."""
    if variable.together is not None:
        return variable.together.differ()
    return not variable.mirrored or values_differ(variable.handles)


def _read_of_copy(name: str, reason: str) -> tf.errors.OpError:
    return tf.errors.InvalidArgumentError(
        None,
        None,
        f"A replica function reads a single copy of {name}, {reason}: the value is not certain.\n"
        "Read the copy before the step, and pass its value as an argument: "
        "`strategy.run(fn, args=(v.values[0].read_value(),))`.",
    )
