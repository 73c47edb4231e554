"""The call of a function for all replicas, in the graph that is being built, and its results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import (
    FuncGraph,
    FunctionDef,
    atomic_function,
    auto_control_deps_utils,
    context,
    function_def_to_graph_def,
    handle_data_util,
    ops,
)
from tpunb.virtual.replicate.batch_parts import BatchParts, are_as_usual, chosen
from tpunb.virtual.replicate.expand import Expansion
from tpunb.virtual.replicate.passed_values import Passed
from tpunb.virtual.replicate.replicated_function import ReplicatedFunction


@dataclasses.dataclass(frozen=True)
class Written:
    """A function for all replicas, and its arguments.

    Attributes:
        inputs: Its arguments.
        expansion: The function.
        functions: The same as it is registered, after those that it calls.
    """

    inputs: Sequence[Passed]
    expansion: Expansion
    functions: Sequence[ReplicatedFunction]


def call_either(
    graph: FuncGraph, apart: Written, joined: Written, batches: Mapping[int, BatchParts]
) -> tuple[Sequence[Any], Sequence[int]]:
    """Calls one of two functions: what is joined, if the replicas' parts are of the usual size.

    Returns:
        The outputs, each once per replica, and which of them each output of the replica
        function is.
    """
    pairs = list(zip(apart.expansion.places, joined.expansion.places, strict=True))
    order = {pair: place for place, pair in enumerate(dict.fromkeys(pairs))}
    replicas = len(graph.tracing.options.cores)

    def call(written: Written, which: int) -> list[Any]:
        names = written.inputs
        stacked = written is joined
        values = {
            names[place].name: [batch.stacked()] if stacked else batch.parts()
            for place, batch in batches.items()
        }
        outputs = emit(graph, written, values)
        columns = [outputs[pair[which] * replicas :][:replicas] for pair in order]
        return [tensor for column in columns for tensor in column]

    usual = are_as_usual(batches.values())
    outputs = chosen(usual, lambda: call(joined, 1), lambda: call(apart, 0))
    return outputs, [order[pair] for pair in pairs]


def emit(
    graph: FuncGraph, written: Written, values: Mapping[str, Sequence[Any]] | None = None
) -> Sequence[Any]:
    """Adds the function for all replicas to the graph being built, and its call.

    One replica's function stands in a graph of TensorFlow 1's as it is, where on a TPU it does
    too: for those who look at the graph's operations.

    Args:
        graph: The replica function as it was traced.
        written: The function for all replicas.
        values: What is passed in place of its inputs' own values, by their names.

    Returns:
        Its outputs.
    """
    expansion = written.expansion
    outer = ops.get_default_graph()
    for function in graph._functions.values():
        outer._add_function_recursive(function)
    for function in written.functions:
        function.add_to(outer)
    given = {one.name: one.values for one in written.inputs} | dict(values or {})
    flat = [value for column in given.values() for value in column]
    if not outer.building_function and len(graph.tracing.options.cores) == 1:
        return write_into_graph(expansion.definition, flat)
    call = atomic_function.partitioned_call_op(
        name=expansion.definition.signature.name.encode(),
        args=flat,
        is_stateful=True,
        tout=[output.type for output in expansion.definition.signature.output_arg],
        config=context.context().function_call_options.config_proto_serialized,
    )
    _mark_reads(call, expansion, given)
    return call.outputs  # type: ignore[no-any-return]


def _mark_reads(call: Any, expansion: Expansion, given: Mapping[str, Sequence[Any]]) -> None:
    """Reports to automatic control dependencies which variables are only read."""
    only_read = [name in expansion.reads for name, column in given.items() for _ in column]
    places = [place for place, read in enumerate(only_read) if read]
    ops.set_int_list_attr(call, auto_control_deps_utils.READ_ONLY_RESOURCE_INPUTS_ATTR, places)


def packed(
    graph: FuncGraph,
    outputs: Sequence[Any],
    places: Sequence[int],
    cores: Sequence[Sequence[str]],
) -> list[Any]:
    """The flat outputs as one result for each replica, on its core."""
    templates = tf.nest.flatten(graph.structured_outputs, expand_composites=True)
    columns: dict[int, list[Any]] = {}
    for traced, place in zip(graph.outputs, places, strict=True):
        if place not in columns:
            column = outputs[place * len(cores) : (place + 1) * len(cores)]
            columns[place] = _on_cores(traced, column, cores)
    results = []
    for replica in range(len(cores)):
        values = iter(columns[place][replica] for place in places)
        flat = [None if template is None else next(values) for template in templates]
        results.append(
            tf.nest.pack_sequence_as(graph.structured_outputs, flat, expand_composites=True)
        )
    return results


def _on_cores(traced: Any, column: Sequence[Any], cores: Sequence[Sequence[str]]) -> list[Any]:
    """One output of each replica, with what is known of it statically."""
    placed = []
    for tensor, core in zip(column, cores, strict=True):
        # A loaded function may claim the shape that it was traced with, and be wrong here.
        if tensor.shape.is_compatible_with(traced.shape):
            tensor.set_shape(traced.shape)
        handle_data_util.copy_handle_data(traced, tensor)
        with ops.device(core[0]):
            placed.append(tf.identity(tensor))
    return placed


def write_into_graph(function: FunctionDef, values: Sequence[Any]) -> list[Any]:
    """Writes a function's nodes into the graph that is being built.

    Args:
        function: The function; the graph has those that it calls.
        values: Its arguments.

    Returns:
        Its results, which wait for all that it does.
    """
    graph, names = function_def_to_graph_def(function)
    given = dict(zip((one.name for one in function.signature.input_arg), values, strict=True))
    for node in [node for node in graph.node if node.name in given]:
        graph.node.remove(node)
    results = [function.ret[output.name] for output in function.signature.output_arg]
    made = [text for text in results if text not in given]
    effects = [function.control_ret[name] for name in function.signature.control_output]
    found = tf.graph_util.import_graph_def(
        graph,
        input_map={f"{name}:0": value for name, value in given.items()},
        return_elements=[*(names[text] for text in made), *effects],
        name=function.signature.name,
    )
    tensors = {**given, **dict(zip(made, found, strict=False))}
    with tf.control_dependencies(found[len(made) :]):
        return [tf.identity(tensors[text]) for text in results]
