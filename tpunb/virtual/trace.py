"""The replica function traced once, as a TPU's is, and called for all replicas."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import (
    FuncGraph,
    TPUReplicateContext,
    atomic_function,
    auto_control_deps_utils,
    context,
    control_flow_util,
    func_graph_from_py_func,
    handle_data_util,
    ops,
    tpu_shard_context,
    variable_utils,
)
from tpunb.virtual.contract import columns_of
from tpunb.virtual.empty import unknown_sizes
from tpunb.virtual.expand import Expansion, expand
from tpunb.virtual.origins import ReplicatedFunction
from tpunb.virtual.placement import Components, components
from tpunb.virtual.spread import Argument
from tpunb.virtual.stale import Call, Calls
from tpunb.virtual.strict.examination import enforce, is_observed
from tpunb.virtual.strict.rules import Strictness
from tpunb.virtual.strict.target import Target

_names = itertools.count()


@dataclasses.dataclass(frozen=True)
class _Variable:
    """A variable with a component on each replica.

    Attributes:
        parts: Its components and where they are.
        mirrored: Whether the components are kept in sync.
        key: What stays the same for as long as the variable lives.
    """

    parts: Components
    mirrored: bool
    key: str


class ReplicaTracingContext(TPUReplicateContext):  # type: ignore[misc]
    """Says "inside a TPU computation" while the replica function is traced.

    TPU variables ask it for their handle, which is where each variable becomes
    one input of the replica function.
    """

    def __init__(self, graph: FuncGraph, options: ReplicateOptions) -> None:
        super().__init__(name="virtual_tpu", num_replicas=len(options.cores), pivot=None)
        self._traced = graph
        self._options = options
        self.variables: dict[int, _Variable] = {}

    def get_replicated_var_handle(
        self,
        name: str,
        handle_id: str,
        vars_: Sequence[Any],
        is_mirrored: bool = False,
        is_packed: bool = False,
    ) -> Any:
        """The handle by which the traced function knows a variable."""
        del name
        known = self._replicated_vars.get(handle_id)
        if known is not None:
            return known
        if is_packed:
            vars_ = vars_[0]._distributed_variables
        parts = components(vars_, self._options.cores, assigned=self._options.assigned)
        placeholder = self._traced.capture(parts.handles[0])
        self.variables[id(placeholder)] = _Variable(parts, is_mirrored, handle_id)
        self._replicated_vars[handle_id] = placeholder
        return placeholder

    def AddOp(self, op: Any) -> None:
        """Leaves an operation as it is: nothing has to be marked for a compiler."""

    def AddValue(self, val: Any) -> Any:
        """Leaves a tensor as it is."""
        return val

    def AddInnerOp(self, op: Any) -> None:
        """Leaves an operation of an inner context as it is."""


class TracingGraph(FuncGraph):  # type: ignore[misc]
    """The graph into which a replica function is traced."""

    def __init__(self, options: ReplicateOptions) -> None:
        super().__init__(f"tpu_replica_{next(_names)}")
        self.tracing = ReplicaTracingContext(self, options)
        self._set_control_flow_context(self.tracing)


@dataclasses.dataclass(frozen=True)
class ReplicateOptions:
    """What replicating needs to know of the strategy.

    Attributes:
        cores: The devices of each replica, its logical devices in order.
        diverged: Variables whose copies may differ; grows with what is traced.
        assigned: Whether a device assignment says which cores form a replica.
        calls: The calls of what was traced.
        strictness: What is refused because a TPU refuses it.
    """

    cores: Sequence[Sequence[str]]
    diverged: set[str]
    assigned: bool = False
    calls: Calls = dataclasses.field(default_factory=Calls)
    strictness: Strictness = dataclasses.field(default_factory=Strictness)


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
        NotFoundError: A function around the call asks for XLA.
    """
    if not is_observed():
        _refuse_compilation_around()
    inputs = [variable_utils.convert_variables_to_tensors(list(one)) for one in inputs]
    columns = columns_of(inputs)
    graph = _trace(function, inputs[0], columns, options)
    return _call(graph, columns, options)


def _refuse_compilation_around() -> None:
    """Fails as a TPU VM does, whose XLA has a compiler for its cores and none for its host."""
    if control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()):
        message = "could not find registered transfer manager for platform Host"
        raise tf.errors.NotFoundError(None, None, f"{message} -- check target linkage")


def _trace(
    function: Callable[..., Any],
    structure: Any,
    columns: Sequence[Sequence[Any]],
    options: ReplicateOptions,
) -> FuncGraph:
    """Traces the replica function with a placeholder for each argument."""
    specs = [
        tf.TensorSpec(_common_shape(column), column[0].dtype)
        for column in columns
        if column[0] is not None
    ]

    def call(*placeholders: Any) -> Any:
        values = iter(placeholders)
        flat = [None if column[0] is None else next(values) for column in columns]
        arguments = tf.nest.pack_sequence_as(structure, flat, expand_composites=True)
        with tpu_shard_context(len(options.cores)):
            return variable_utils.convert_variables_to_tensors(function(*arguments))

    graph = TracingGraph(options)
    # The replica function's nodes belong to a core, whatever stands around the call.
    with ops.device(None):
        return func_graph_from_py_func(
            graph.name, call, args=tuple(specs), kwargs={}, func_graph=graph
        )


def _common_shape(column: Sequence[Any]) -> tf.TensorShape:
    shape = column[0].shape
    for tensor in column[1:]:
        shape = shape.most_specific_compatible_shape(tensor.shape)
    return shape


def _call(
    graph: FuncGraph, columns: Sequence[Sequence[Any]], options: ReplicateOptions
) -> list[Any]:
    """Writes the traced function out for all replicas and calls it."""
    traced = atomic_function.from_func_graph(graph.name, graph, {})
    handles = {key: variable.parts.handles[0] for key, variable in graph.tracing.variables.items()}
    enforce(Target(graph, traced, handles, options.cores[0][0]), options.strictness)
    definition = traced.cached_definition
    names = [argument.name for argument in definition.signature.input_arg]
    values, arguments = _arguments(graph, names, [c for c in columns if c[0] is not None])
    variables = graph.tracing.variables
    held = {
        name: variables[id(placeholder)]
        for name, placeholder in zip(names, graph.inputs, strict=True)
        if id(placeholder) in variables
    }
    keys = {name: variable.key for name, variable in held.items()}
    homes = {name: variable.parts.home for name, variable in held.items() if variable.parts.home}
    copies = {
        name: variable.parts.dtype for name, variable in held.items() if variable.parts.copies
    }
    shapes = unknown_sizes(graph)

    def write() -> Expansion:
        diverged = frozenset(name for name, key in keys.items() if key in options.diverged)
        library = functools.cache(context.context().get_function_def)
        return expand(
            definition,
            arguments,
            library,
            options.cores,
            diverged,
            homes=homes,
            copies=copies,
            shapes=shapes,
        )

    expansion = write()
    found = {keys[name] for name in expansion.diverged} - options.diverged
    options.diverged.update(found)
    options.calls.renew(found)
    call = _emit(graph, traced, expansion, names, values)
    outer = weakref.ref(ops.get_default_graph())

    def renew() -> None:
        expansion = write()
        _add_functions(outer(), graph, traced, expansion)
        call._set_func_attr("f", expansion.definition.signature.name)

    same = frozenset(keys.values()) - options.diverged
    options.calls.add(outer(), Call(expansion.definition.signature.name, same, renew, graph))
    return _packed(graph, call.outputs, expansion.places, options.cores)


def _arguments(
    graph: FuncGraph, names: Sequence[str], columns: Sequence[Sequence[Any]]
) -> tuple[list[list[Any]], dict[str, Argument]]:
    """The values of each argument of the traced function, and how they reach it."""
    external = {id(inner): outer for outer, inner in graph.captures}
    values: list[list[Any]] = []
    arguments: dict[str, Argument] = {}
    for place, (name, placeholder) in enumerate(zip(names, graph.inputs, strict=True)):
        variable = graph.tracing.variables.get(id(placeholder))
        if place < len(columns):
            column = list(columns[place])
            shared = all(value is column[0] for value in column) and len(column) > 1
            arguments[name] = Argument.SHARED if shared else Argument.VARYING
            values.append(column[:1] if shared else column)
        elif variable is not None:
            arguments[name] = Argument.MIRRORED if variable.mirrored else Argument.LOCAL
            values.append([*variable.parts.handles, *variable.parts.copies])
        else:
            arguments[name] = Argument.SHARED
            values.append([external[id(placeholder)]])
    return values, arguments


def _emit(
    graph: FuncGraph,
    traced: Any,
    expansion: Expansion,
    names: Sequence[str],
    values: Sequence[Sequence[Any]],
) -> Any:
    """Adds the function for all replicas to the graph being built, and its call."""
    _add_functions(ops.get_default_graph(), graph, traced, expansion)
    flat = [value for column in values for value in column]
    call = atomic_function.partitioned_call_op(
        name=expansion.definition.signature.name.encode(),
        args=flat,
        is_stateful=True,
        tout=[output.type for output in expansion.definition.signature.output_arg],
        config=context.context().function_call_options.config_proto_serialized,
    )
    _mark_reads(call, expansion, names, values)
    return call


def _add_functions(outer: Any, graph: FuncGraph, traced: Any, expansion: Expansion) -> None:
    """Adds the function for all replicas to a graph, with what it calls."""
    for body in expansion.bodies:
        outer._add_function(ReplicatedFunction(body))
    for function in graph._functions.values():
        outer._add_function_recursive(function)
    outer._add_function(ReplicatedFunction(expansion.definition, traced, expansion.bodies))


def _mark_reads(
    call: Any, expansion: Expansion, names: Sequence[str], values: Sequence[Sequence[Any]]
) -> None:
    """Tells automatic control dependencies which variables are only read."""
    places: list[int] = []
    place = 0
    for name, column in zip(names, values, strict=True):
        if name in expansion.reads:
            places.extend(range(place, place + len(column)))
        place += len(column)
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
