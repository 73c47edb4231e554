"""A replica function called for all replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import (
    FuncGraph,
    atomic_function,
    auto_control_deps_utils,
    context,
    handle_data_util,
    ops,
    variable_utils,
)
from tpunb.virtual.devices import is_elsewhere
from tpunb.virtual.replicate.arguments import columns_of
from tpunb.virtual.replicate.collective_groups import check_all
from tpunb.virtual.replicate.compiled_around import settle_compilation_around
from tpunb.virtual.replicate.effects import is_read
from tpunb.virtual.replicate.empty_batches import unknown_sizes
from tpunb.virtual.replicate.expand import Expansion, ReplicaFunction
from tpunb.virtual.replicate.joining import Joining
from tpunb.virtual.replicate.matrix_unit import MatrixUnit
from tpunb.virtual.replicate.options import ReplicateOptions
from tpunb.virtual.replicate.replicated_function import ReplicatedFunction
from tpunb.virtual.replicate.stacked_inputs import stacked
from tpunb.virtual.replicate.static_tensors import known_sizes
from tpunb.virtual.replicate.trace import TracedVariable, trace
from tpunb.virtual.replicate.variance import Argument, Passing
from tpunb.virtual.replicate.write_graph import write_into_graph
from tpunb.virtual.strict.examination import (
    enforce,
    is_observed,
    is_written,
    spare_the_machine,
)
from tpunb.virtual.strict.traced_function import TracedFunction
from tpunb.virtual.variable_copies import replica_of


@dataclasses.dataclass(frozen=True)
class _Input:
    """An argument of the traced function, and what is passed for it.

    Attributes:
        name: Its name.
        argument: How it reaches the replicas.
        values: One value for all replicas, or one for each; of a variable its handles.
    """

    name: str
    argument: Argument
    values: Sequence[Any]


def replicate(
    function: Callable[..., Any], inputs: Sequence[Sequence[Any]], options: ReplicateOptions
) -> list[Any]:
    """Calls a function on every replica, tracing it once.

    The counterpart of `tpu.replicate`; has to be called while a graph is built.

    Args:
        function: Takes the arguments of one replica.
        inputs: The arguments of each replica: nests of tensors, composite
            tensors, variables (which are read) and None, of one structure.
        options: The strategy's side of it.

    Returns:
        The result of each replica.

    Raises:
        ValueError: The replicas' inputs differ in structure or type.
        TypeError: The function returns something that is not a tensor.
        NotFoundError: A function around the call asks for XLA, and another calls it.
    """
    if not is_observed():
        settle_compilation_around()
    inputs = [variable_utils.convert_variables_to_tensors(list(one)) for one in inputs]
    columns = columns_of(inputs)
    graph = trace(function, inputs[0], columns, options)
    return _call(graph, columns, options)


def _call(
    graph: FuncGraph, columns: Sequence[Sequence[Any]], options: ReplicateOptions
) -> list[Any]:
    """Writes the traced function out for all replicas and calls it."""
    atomic = atomic_function.from_func_graph(graph.name, graph, {})
    variables = graph.tracing.variables
    traced = TracedFunction(
        graph,
        atomic,
        {key: variable.parts.handles[0] for key, variable in variables.items()},
        options.cores[0][0],
        memory=options.memory,
        cores=options.called,
    )
    enforce(traced, options.strictness)
    _refuse_single_copies(traced)
    if not is_written():
        check_all(traced.definition, traced.library, len(options.cores))
        return _packed(graph, _stand_ins(graph, options), range(len(graph.outputs)), options.cores)
    function = ReplicaFunction(
        traced.definition,
        traced.library,
        options.places,
        unknown_sizes(graph),
        MatrixUnit.as_set() if options.arithmetic == "tpu" else None,
        options.at_once,
        Joining(known_sizes(graph, traced.definition), options.joined) if options.joined else None,
    )
    columns = [column for column in columns if column[0] is not None]
    inputs, expansion, functions = _written(function, traced, columns)
    if _runs_here(options):
        spare_the_machine(traced, len(options.cores), expansion.repeated)
    outputs = _emit(graph, functions, expansion, inputs)
    return _packed(graph, outputs, expansion.places, options.cores)


def _written(
    function: ReplicaFunction, traced: TracedFunction, columns: Sequence[Sequence[Any]]
) -> tuple[Sequence[_Input], Expansion, Sequence[ReplicatedFunction]]:
    """The arguments of a function, and the function written out for all replicas."""
    while True:
        inputs = _inputs(traced, columns)
        arguments = {one.name: one.argument for one in inputs}
        divergence = traced.graph.tracing.options.divergence
        written = divergence.write(function, arguments, traced.atomic)
        if written is not None:
            return inputs, *written


def _stand_ins(graph: FuncGraph, options: ReplicateOptions) -> list[Any]:
    """Outputs of a function that nobody runs, as far as they are known statically."""
    return [
        tf.raw_ops.Placeholder(dtype=output.dtype, shape=output.shape)
        for output in graph.outputs
        for _ in options.cores
    ]


def _refuse_single_copies(traced: TracedFunction) -> None:
    """Refuses a function that was traced outside of the replicas and reads a variable's copies.

    There a variable that is summed when it is read stands for all its copies. Of those the
    replica function would take the first for the replica's own, and the others as they are.
    """
    # What stands for a variable that is kept in sync is its first copy, which may be read.
    graph, definition = traced.graph, traced.definition
    outside = {id(inner): outer for outer, inner in graph.captures}
    for argument, inner in zip(definition.signature.input_arg, graph.inputs, strict=True):
        if id(inner) in graph.tracing.variables or id(inner) not in outside:
            continue
        further = replica_of(_captured_first(outside[id(inner)]))
        # What is only assigned is a variable that the function makes: its first values.
        if further and is_read(definition, argument.name, traced.library):
            raise tf.errors.InvalidArgumentError(
                None,
                None,
                "A function that was traced outside of the replicas reads the copies of a variable "
                "one by one, and is called within a replica function.\nCall the tf.function "
                "itself, which is traced again there, or pass the value as an argument.",
            )


def _captured_first(tensor: Any) -> Any:
    """What a tensor was before functions around it captured it."""
    while isinstance(graph := getattr(tensor, "graph", None), FuncGraph):
        before = next((outer for outer, inner in graph.captures if inner is tensor), None)
        if before is None:
            return tensor
        tensor = before
    return tensor


def _runs_here(options: ReplicateOptions) -> bool:
    """Whether this process makes the tensors, and is to look after its memory."""
    return not is_elsewhere(options.cores[0][0]) and options.strictness.holds("memory")


def _inputs(traced: TracedFunction, columns: Sequence[Sequence[Any]]) -> list[_Input]:
    """The arguments of the traced function: those of the call, then what it captures."""
    graph = traced.graph
    external = {id(inner): outer for outer, inner in graph.captures}
    names = [argument.name for argument in traced.definition.signature.input_arg]
    places = graph.tracing.options.places
    inputs = [_of_column(*pair, places) for pair in zip(names, columns, strict=False)]
    captured = graph.inputs[len(columns) :]
    for name, placeholder in zip(names[len(columns) :], captured, strict=True):
        variable = graph.tracing.variables.get(id(placeholder))
        if variable is None:
            inputs.append(_Input(name, Argument(Passing.SHARED), [external[id(placeholder)]]))
        else:
            inputs.append(_of_variable(name, variable))
    return inputs


def _of_column(name: str, column: Sequence[Any], places: Sequence[Sequence[str]]) -> _Input:
    if len(column) > 1 and all(value is column[0] for value in column):
        return _Input(name, Argument(Passing.SHARED), column[:1])
    whole = stacked(column, places)
    if whole is not None:
        return _Input(name, Argument(Passing.STACKED), [whole])
    return _Input(name, Argument(Passing.VARYING), column)


def _of_variable(name: str, variable: TracedVariable) -> _Input:
    parts, merged = variable.parts, variable.merged
    if merged is not None:
        # Its copies may have been split since it was traced.
        handles, are_merged = merged.handles(), merged.are_merged
        merged.used |= are_merged
        argument = Argument(Passing.MIRRORED, key=variable.key, merged=are_merged)
        return _Input(name, argument, handles)
    argument = Argument(
        Passing.MIRRORED if variable.mirrored else Passing.LOCAL,
        key=variable.key if variable.mirrored else "",
        home=parts.home,
        copy_type=parts.dtype if parts.copies else None,
    )
    return _Input(name, argument, [*parts.handles, *parts.copies])


def _emit(
    graph: FuncGraph,
    functions: Sequence[ReplicatedFunction],
    expansion: Expansion,
    inputs: Sequence[_Input],
) -> Sequence[Any]:
    """Adds the function for all replicas to the graph being built, and its call.

    One replica's function stands in a graph of TensorFlow 1's as it is, where on a TPU it does
    too: for those who look at the graph's operations.
    """
    outer = ops.get_default_graph()
    for function in graph._functions.values():
        outer._add_function_recursive(function)
    for function in functions:
        outer._add_function(function)
    flat = [value for one in inputs for value in one.values]
    if not outer.building_function and len(graph.tracing.options.cores) == 1:
        return write_into_graph(expansion.definition, flat)
    call = atomic_function.partitioned_call_op(
        name=expansion.definition.signature.name.encode(),
        args=flat,
        is_stateful=True,
        tout=[output.type for output in expansion.definition.signature.output_arg],
        config=context.context().function_call_options.config_proto_serialized,
    )
    _mark_reads(call, expansion, inputs)
    return call.outputs  # type: ignore[no-any-return]


def _mark_reads(call: Any, expansion: Expansion, inputs: Sequence[_Input]) -> None:
    """Reports to automatic control dependencies which variables are only read."""
    only_read = [one.name in expansion.reads for one in inputs for _ in one.values]
    places = [place for place, read in enumerate(only_read) if read]
    ops.set_int_list_attr(call, auto_control_deps_utils.READ_ONLY_RESOURCE_INPUTS_ATTR, places)


def _packed(
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
