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
    func_graph_from_py_func,
    handle_data_util,
    ops,
    tpu_shard_context,
    variable_utils,
)
from tpunb.virtual.expand import Expansion, expand
from tpunb.virtual.origins import ReplicatedFunction
from tpunb.virtual.spread import Argument
from tpunb.virtual.stale import Call, Calls

_names = itertools.count()


@dataclasses.dataclass(frozen=True)
class _Variable:
    """A variable with a component on each replica.

    Attributes:
        handles: The handle on each replica.
        mirrored: Whether the components are kept in sync.
        key: What stays the same for as long as the variable lives.
    """

    handles: Sequence[Any]
    mirrored: bool
    key: str


class ReplicaTracingContext(TPUReplicateContext):  # type: ignore[misc]
    """Says "inside a TPU computation" while the replica function is traced.

    TPU variables ask it for their handle, which is where each variable becomes
    one input of the replica function.
    """

    def __init__(self, graph: FuncGraph, num_replicas: int) -> None:
        super().__init__(name="virtual_tpu", num_replicas=num_replicas, pivot=None)
        self._traced = graph
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
        handles = [getattr(variable, "handle", variable) for variable in vars_]
        placeholder = self._traced.capture(handles[0])
        self.variables[id(placeholder)] = _Variable(handles, is_mirrored, handle_id)
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

    def __init__(self, num_replicas: int) -> None:
        super().__init__(f"tpu_replica_{next(_names)}")
        self.tracing = ReplicaTracingContext(self, num_replicas)
        self._set_control_flow_context(self.tracing)


@dataclasses.dataclass(frozen=True)
class ReplicateOptions:
    """What replicating needs to know of the strategy.

    Attributes:
        cores: The devices of each replica, its logical devices in order.
        diverged: Variables whose copies may differ; grows with what is traced.
        calls: The calls of what was traced.
    """

    cores: Sequence[Sequence[str]]
    diverged: set[str]
    calls: Calls = dataclasses.field(default_factory=Calls)


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
    """
    inputs = [variable_utils.convert_variables_to_tensors(list(one)) for one in inputs]
    for other in inputs[1:]:
        tf.nest.assert_same_structure(inputs[0], other)
    columns = [_as_tensors(column) for column in zip(*map(_flat, inputs), strict=True)]
    graph = _trace(function, inputs[0], columns, len(inputs))
    return _call(graph, columns, options)


def _flat(nest: Any) -> list[Any]:
    return list(tf.nest.flatten(nest, expand_composites=True))


def _as_tensors(column: Sequence[Any]) -> list[Any]:
    """One argument's value for each replica, as tensors of one type; None stays."""
    if any(value is None for value in column):
        if all(value is None for value in column):
            return list(column)
        raise ValueError("An argument is None on some replicas and a tensor on others.")
    if all(value is column[0] for value in column):
        return [tf.convert_to_tensor(column[0])] * len(column)
    tensors = [tf.convert_to_tensor(value) for value in column]
    for replica, tensor in enumerate(tensors):
        if tensor.dtype != tensors[0].dtype:
            raise ValueError(
                "Replicas must have matching input types. Replica 0 had input type "
                f"{tensors[0].dtype}, replica {replica} had input type {tensor.dtype}"
            )
    return tensors


def _trace(
    function: Callable[..., Any], structure: Any, columns: Sequence[Sequence[Any]], replicas: int
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
        with tpu_shard_context(replicas):
            return variable_utils.convert_variables_to_tensors(function(*arguments))

    graph = TracingGraph(replicas)
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
    definition = traced.cached_definition
    names = [argument.name for argument in definition.signature.input_arg]
    values, arguments = _arguments(graph, names, [c for c in columns if c[0] is not None])
    variables = graph.tracing.variables
    keys = {
        name: variables[id(placeholder)].key
        for name, placeholder in zip(names, graph.inputs, strict=True)
        if id(placeholder) in variables
    }

    def write() -> Expansion:
        diverged = frozenset(name for name, key in keys.items() if key in options.diverged)
        library = functools.cache(context.context().get_function_def)
        return expand(definition, arguments, library, options.cores, diverged)

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
            values.append(list(variable.handles))
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
        tensor.set_shape(traced.shape)
        handle_data_util.copy_handle_data(traced, tensor)
        with ops.device(core[0]):
            placed.append(tf.identity(tensor))
    return placed
