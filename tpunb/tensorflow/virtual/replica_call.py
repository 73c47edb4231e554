"""The call of a replica function for all replicas, also from a function that asks for XLA."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.freed_memory import uncollected
from tpunb._util.internal_errors import report_internal_error
from tpunb._util.logs import logger
from tpunb.tensorflow.virtual.copies.local_updates import note_local_updates
from tpunb.tensorflow.virtual.copies.single_copies import (
    refuse_copies_one_by_one,
    refuse_uncertain_reads,
)
from tpunb.tensorflow.virtual.graph.collectives import check_all
from tpunb.tensorflow.virtual.graph.tensorflow_graphs import (
    add_functions_of,
    body_sizes,
    known_sizes,
    without_attribute,
)
from tpunb.tensorflow.virtual.graph.traced_function import TracedFunction, open_axes
from tpunb.tensorflow.virtual.private_names import (
    FuncGraph,
    FunctionDef,
    atomic_function,
    auto_control_deps_utils,
    context,
    control_flow_util,
    function_def_to_graph_def,
    function_transform,
    handle_data_util,
    ops,
    variable_utils,
)
from tpunb.tensorflow.virtual.replicate.arguments import (
    columns_of,
    passed_to,
    refuse_unequal_shapes,
)
from tpunb.tensorflow.virtual.replicate.batch_parts import (
    BatchParts,
    are_as_usual,
    chosen,
    cut_batches,
    graph_of_usual_size,
    unknown_sizes,
)
from tpunb.tensorflow.virtual.replicate.matrix_unit import MatrixUnit
from tpunb.tensorflow.virtual.replicate.options import CallOptions
from tpunb.tensorflow.virtual.replicate.padding import parts_of_composites
from tpunb.tensorflow.virtual.replicate.passes import ReplicaFunction
from tpunb.tensorflow.virtual.replicate.registration import PreparedCall, register
from tpunb.tensorflow.virtual.replicate.trace import TracingGraph, trace
from tpunb.tensorflow.virtual.replicate.variance import Argument, Passing
from tpunb.tensorflow.virtual.strict.examination import (
    enforce,
    is_observed,
    is_written,
    spare_the_machine,
)

_COMPILES = "_XlaMustCompile"

_with_replicas: weakref.WeakSet[Any] = weakref.WeakSet()


def settle_compilation_around() -> None:
    """Handle a function that XLA must compile as a whole, as TensorFlow does on a TPU.

    A function that is called directly is not compiled: only its part for the TPU is, and the rest
    runs without XLA. TensorFlow's runtime looks for replicas in the called function, and not in the
    functions that it calls.

    Raises:
        NotFoundError: Another function calls it. A TPU VM fails there too: its XLA has a compiler
            for its cores but not for its host.
    """
    graph = ops.get_default_graph()
    if not control_flow_util.GraphOrParentsInXlaContext(graph):
        return
    if isinstance(getattr(graph, "outer_graph", None), FuncGraph):
        message = "could not find registered transfer manager for platform Host"
        raise tf.errors.NotFoundError(None, None, f"{message} -- check target linkage")
    callbacks = function_transform.CONCRETE_FUNCTION_CALLBACKS
    if not _with_replicas:
        callbacks.append(_leave_uncompiled)
    _with_replicas.add(graph)


def _leave_uncompiled(concrete: Any) -> None:
    """Remove the request for XLA from a function with replicas, once it is traced."""
    if concrete.graph not in _with_replicas:
        return
    without_attribute(concrete, _COMPILES)
    _with_replicas.discard(concrete.graph)


def call_on_replicas(
    function: Callable[..., Any], inputs: Sequence[Sequence[Any]], options: CallOptions
) -> list[Any]:
    """Call a function on every replica, tracing it once.

    This is the counterpart of `tpu.replicate`. Call it while a graph is built.

    Args:
        function: Takes the arguments of one replica.
        inputs: The arguments of each replica: nests of tensors, composite tensors, variables (which
            are read) and None, of one structure.
        options: The properties of the strategy.

    Returns:
        The result of each replica.

    Raises:
        ValueError: The replicas' inputs differ in structure or type.
        TypeError: The function returns something that is not a tensor.
        NotFoundError: A function around the call asks for XLA, and another function calls it.
    """
    if not is_observed():
        settle_compilation_around()
    with uncollected():
        inputs = [variable_utils.convert_variables_to_tensors(list(nest)) for nest in inputs]
        columns = columns_of(inputs)
        graph = trace(function, inputs[0], columns, options)
        parts = parts_of_composites(inputs[0])
        passed = [pair for pair in zip(columns, parts, strict=True) if pair[0][0] is not None]
        columns = [column for column, _ in passed]
        open_sizes: Mapping[int, tuple[int, ...]] = {}
        if options.pads:
            arguments = graph.inputs[: len(columns)]
            open_sizes = open_axes(arguments, [is_part for _, is_part in passed])
        return _Call(graph, columns, options, open_sizes).results()


class _Call:
    """The call of a traced replica function for all replicas.

    Args:
        graph: The traced graph.
        columns: The arguments, each with its value on every replica.
        options: The properties of the strategy.
        open_sizes: The axes of the arguments whose sizes are not fixed, by the arguments' indices.
    """

    def __init__(
        self,
        graph: TracingGraph,
        columns: Sequence[Sequence[Any]],
        options: CallOptions,
        open_sizes: Mapping[int, tuple[int, ...]],
    ) -> None:
        self._graph, self._columns, self._options = graph, columns, options
        variables = graph.tracing.variables
        self._traced = TracedFunction(
            graph,
            atomic_function.from_func_graph(graph.name, graph, {}),
            {key: variable.handles[0] for key, variable in variables.items()},
            options.cores[0][0],
            memory=options.memory,
            cores=options.called,
            replicas=len(options.cores),
            columns=columns,
            open_axes=open_sizes,
            in_loop=any(_is_of_loop(column[0]) for column in columns),
        )

    def results(self) -> list[Any]:
        """Write the function out for all replicas, call it and return each replica's result."""
        graph, options, traced = self._graph, self._options, self._traced
        enforce(traced, options.strictness)
        refuse_copies_one_by_one(traced)
        if not is_written():
            check_all(traced.definition, traced.library, len(options.cores))
            return self._packed(self._stand_ins(), range(len(graph.outputs)))
        definition, library = traced.definition, traced.library
        if options.trial is not None:
            definition, library = options.trial.rewritten(traced)
        function = ReplicaFunction(
            definition,
            library,
            options.devices,
            unknown_sizes(graph),
            MatrixUnit.as_set() if options.arithmetic == "tpu" else None,
            options.at_once,
            known_sizes(graph, traced.definition) if options.joined else None,
            body_sizes(graph, traced.library) if options.joined else None,
            options.joined,
        )
        written = self._written(function)
        if options.trial is None:
            refuse_uncertain_reads(
                function, traced, lambda: passed_to(traced, self._columns, options.devices)[0]
            )
        if options.strictness.holds("memory"):
            spare_the_machine(traced, len(options.cores), written.expansion.repeated)
        batches = self._batches(function)
        failure = None
        try:
            usual = self._written_for_usual_size(function, batches)
            if usual is not None and usual.expansion.joined:
                return self._packed(*self._call_either(written, usual, batches))
            if usual is not None and usual.expansion.at_once != function.at_once:
                fewer = dataclasses.replace(function, at_once=usual.expansion.at_once)
                written = self._written(fewer)
        except Exception as error:
            failure = error
        outputs = _emit(graph, written, len(options.cores))
        if failure is not None:
            report_internal_error(
                failure, logger("replicate"), "Batches of the usual size are not joined."
            )
        return self._packed(outputs, written.expansion.output_indices)

    def _written(self, function: ReplicaFunction, batches: Collection[int] = ()) -> PreparedCall:
        """Write a function for all replicas; some arguments are stacked."""
        equal = frozenset(self._options.divergence.variables)
        while True:
            arguments, values = passed_to(self._traced, self._columns, self._options.devices)
            names = list(arguments)
            arguments.update((names[index], Argument(Passing.STACKED)) for index in batches)
            call = register(
                function, arguments, values, self._traced.atomic, self._options.divergence
            )
            if call is not None:
                note_local_updates(
                    self._traced, function, arguments, equal, self._options.divergence
                )
                return call

    def _batches(self, function: ReplicaFunction) -> dict[int, BatchParts]:
        """Return the arguments that are parts of batches of unknown size, if they can be joined."""
        options, building = self._options, ops.get_default_graph().building_function
        if function.shapes is None or not (options.joined and building and options.on_one_device):
            return {}
        return cut_batches(self._columns) if len(options.cores) > 1 else {}

    def _written_for_usual_size(
        self, function: ReplicaFunction, batches: Mapping[int, BatchParts]
    ) -> PreparedCall | None:
        """Write a function for parts of the usual size; None if that size is not known."""
        definition = self._traced.definition
        graph = graph_of_usual_size(self._graph, definition, batches) if batches else None
        if graph is None:
            return None
        sizes = known_sizes(graph, definition)
        usual = dataclasses.replace(function, shapes=unknown_sizes(graph), sizes=sizes)
        return self._written(usual, batches)

    def _stand_ins(self) -> list[Any]:
        """Return outputs of a function that never runs, with their known static shapes."""
        return [
            tf.raw_ops.Placeholder(dtype=output.dtype, shape=output.shape)
            for output in self._graph.outputs
            for _ in self._options.cores
        ]

    def _call_either(
        self, plain: PreparedCall, joined: PreparedCall, batches: Mapping[int, BatchParts]
    ) -> tuple[Sequence[Any], Sequence[int]]:
        """Call the joined function if the parts have the usual size, or else the plain function.

        Returns:
            The outputs, each once per replica, and the index among them of each output of the
            replica function.
        """
        replicas = len(self._options.cores)
        pairs = list(
            zip(plain.expansion.output_indices, joined.expansion.output_indices, strict=True)
        )
        order = {pair: index for index, pair in enumerate(dict.fromkeys(pairs))}

        def call(written: PreparedCall, side: int) -> list[Any]:
            names = list(written.values)
            values = {
                names[index]: [batch.stacked()] if written is joined else batch.parts()
                for index, batch in batches.items()
            }
            outputs = _emit(self._graph, written, replicas, values)
            columns = [outputs[pair[side] * replicas :][:replicas] for pair in order]
            return [tensor for column in columns for tensor in column]

        usual = are_as_usual(batches.values())
        outputs = chosen(usual, lambda: call(joined, 1), lambda: call(plain, 0))
        return outputs, [order[pair] for pair in pairs]

    def _packed(self, outputs: Sequence[Any], indices: Sequence[int]) -> list[Any]:
        """Return the flat outputs as one result for each replica, on its core."""
        structure, cores = self._graph.structured_outputs, self._options.cores
        templates = tf.nest.flatten(structure, expand_composites=True)
        columns: dict[int, list[Any]] = {}
        for traced, index in zip(self._graph.outputs, indices, strict=True):
            if index not in columns:
                column = outputs[index * len(cores) : (index + 1) * len(cores)]
                columns[index] = _on_cores(traced, column, cores)
        results = []
        for replica in range(len(cores)):
            values = iter(columns[index][replica] for index in indices)
            flat = [None if template is None else next(values) for template in templates]
            results.append(tf.nest.pack_sequence_as(structure, flat, expand_composites=True))
        return results


def _is_of_loop(value: Any) -> bool:
    """Return whether a value comes from a loop over a dataset."""
    return not isinstance(value, ops.EagerTensor) and value.op.type == "OptionalGetValue"


def _emit(
    graph: TracingGraph,
    written: PreparedCall,
    replicas: int,
    instead: Mapping[str, Sequence[Any]] | None = None,
) -> Sequence[Any]:
    """Add the function for all replicas to the graph being built, with a call of it.

    In a TensorFlow 1 graph, the nodes of a single replica's function are written into the graph
    itself, as on a TPU. Programs may look at the graph's operations.

    Args:
        graph: The traced graph of the replica function.
        written: The function for all replicas.
        replicas: The number of replicas.
        instead: Values that replace some of its values, by their names.
    """
    expansion = written.expansion
    outer = ops.get_default_graph()
    add_functions_of(outer, graph)
    for function in written.functions:
        function.add_to(outer)
    arguments = {**written.values, **(instead or {})}
    flat = [value for column in arguments.values() for value in column]
    if outer.building_function:
        _name_captures(outer, graph, arguments.values())
    if not outer.building_function and replicas == 1:
        return _write_into_graph(expansion.definition, flat)
    try:
        call = atomic_function.partitioned_call_op(
            name=expansion.definition.signature.name.encode(),
            args=flat,
            is_stateful=True,
            tout=[output.type for output in expansion.definition.signature.output_arg],
            config=context.context().function_call_options.config_proto_serialized,
        )
    except ValueError as error:
        refuse_unequal_shapes(error)
        raise
    # Automatic control dependencies ask which variables are only read.
    only_read = [name in expansion.reads for name, column in arguments.items() for _ in column]
    indices = [index for index, read in enumerate(only_read) if read]
    ops.set_int_list_attr(call, auto_control_deps_utils.READ_ONLY_RESOURCE_INPUTS_ATTR, indices)
    return call.outputs  # type: ignore[no-any-return]


def _name_captures(outer: Any, graph: Any, columns: Iterable[Sequence[Any]]) -> None:
    """Capture the variables of a replica function under their own names, as on a TPU.

    By default TensorFlow names a captured tensor with a number, which differs between processes.
    """
    for column, placeholder in zip(columns, graph.inputs, strict=True):
        variable = graph.tracing.variables.get(id(placeholder))
        if variable is not None:
            for index, handle in enumerate(column):
                outer.capture(handle, name=f"{variable.name}/handle/inputs_{index}")


def _on_cores(traced: Any, column: Sequence[Any], cores: Sequence[Sequence[str]]) -> list[Any]:
    """Return one output of each replica, with its known static shape."""
    placed = []
    for tensor, core in zip(column, cores, strict=True):
        # A loaded function may claim the shape that it was traced with, and be wrong here.
        if tensor.shape.is_compatible_with(traced.shape):
            tensor.set_shape(traced.shape)
        handle_data_util.copy_handle_data(traced, tensor)
        with ops.device(core[0]):
            placed.append(tf.identity(tensor))
    return placed


def _write_into_graph(function: FunctionDef, values: Sequence[Any]) -> list[Any]:
    """Write a function's nodes into the graph that is being built; return its results."""
    graph, names = function_def_to_graph_def(function)
    values_of_arguments = dict(
        zip((argument.name for argument in function.signature.input_arg), values, strict=True)
    )
    for node in [node for node in graph.node if node.name in values_of_arguments]:
        graph.node.remove(node)
    results = [function.ret[output.name] for output in function.signature.output_arg]
    computed = [text for text in results if text not in values_of_arguments]
    effects = [function.control_ret[name] for name in function.signature.control_output]
    imported = tf.graph_util.import_graph_def(
        graph,
        input_map={f"{name}:0": value for name, value in values_of_arguments.items()},
        return_elements=[*(names[text] for text in computed), *effects],
        name=function.signature.name,
    )
    tensors = {**values_of_arguments, **dict(zip(computed, imported, strict=False))}
    with tf.control_dependencies(imported[len(computed) :]):
        return [tf.identity(tensors[text]) for text in results]
