"""The replica function, traced once, and where the components of its variables are."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.logs import timed
from tpunb.virtual._tensorflow import (
    AttrValue,
    FuncGraph,
    TPUReplicateContext,
    TPUReplicatedVariable,
    device_util,
    func_graph_from_py_func,
    ops,
    tpu_shard_context,
    variable_utils,
)
from tpunb.virtual.graph.function_def import OUTSIDE
from tpunb.virtual.replicate.options import ReplicateOptions
from tpunb.virtual.variable_copies import Copies, copies_of, handle_of

Cores = Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Components:
    """A variable's components on the replicas.

    Attributes:
        handles: The handle on each replica.
        copies: Where every logical device holds the variable: the handles on
            those after the first, replica by replica. Else empty.
        home: The logical device that holds the variable.
        dtype: The type of its value, as protocol buffers number it.
    """

    handles: list[Any]
    copies: list[Any]
    home: int
    dtype: int


def components(variables: Sequence[Any], cores: Cores, *, assigned: bool) -> Components:
    """Finds a variable's components.

    Args:
        variables: The variable's parts, one for each replica, or their handles.
        cores: The devices of each replica, its logical devices in order.
        assigned: Whether a device assignment says which cores form a replica;
            then each replica takes the part that is on one of its cores.

    Raises:
        ValueError: A replica has no part of the variable.
    """
    home = _home(variables, cores)
    if home is None and assigned:
        variables = _on_cores(variables, cores)
        home = _home(variables, cores)
    handles = [_handle(variable) for variable in variables]
    copies = [
        handle_of(part)
        for variable in variables
        if isinstance(variable, TPUReplicatedVariable)
        for part in variable.variables[1:]
    ]
    # Only copies are written by the engine itself, which has to know the type.
    dtype = variables[0].dtype.as_datatype_enum if copies else 0
    return Components(handles, copies, home or 0, dtype)


def _handle(variable: Any) -> Any:
    if isinstance(variable, TPUReplicatedVariable):
        # Its own `handle` asks for an operation that only TPUs have.
        variable = variable.variables[0]
    return variable if isinstance(variable, tf.Tensor) else handle_of(variable)


def _home(variables: Sequence[Any], cores: Cores) -> int | None:
    """The logical device that holds a part on every replica; None if there is none."""
    if len(variables) != len(cores):
        return None
    devices = [variable.device for variable in variables]
    if devices[0] not in cores[0]:
        devices = [device_util.canonicalize(device) for device in devices]
    for core in range(len(cores[0])):
        if all(logical[core] == device for logical, device in zip(cores, devices, strict=True)):
            return core
    return None


def _on_cores(variables: Sequence[Any], cores: Cores) -> list[Any]:
    """For each replica the part that is on one of its cores."""
    by_device = {device_util.canonicalize(variable.device): variable for variable in variables}
    found = []
    for replica, logical in enumerate(cores):
        here = [by_device[device] for device in logical if device in by_device]
        if not here:
            raise ValueError(
                f"Failed to find a variable on any device in replica {replica} for "
                "current device assignment"
            )
        found.append(here[0])
    return found


_names = itertools.count()


@dataclasses.dataclass(frozen=True)
class TracedVariable:
    """A variable with a component on each replica.

    Attributes:
        parts: Its components and where they are.
        mirrored: Whether the components are kept in sync.
        key: What stays the same for as long as the variable lives.
        name: Its name.
        merged: Its components, if those of a process share a resource or have done so.
    """

    parts: Components
    mirrored: bool
    key: str
    name: str = ""
    merged: Copies | None = None


class ReplicaTracingContext(TPUReplicateContext):  # type: ignore[misc]
    """Answers "inside a TPU computation" while the replica function is traced.

    TPU variables ask it for their handle, which is where each variable becomes
    one input of the replica function.
    """

    def __init__(self, graph: FuncGraph, options: ReplicateOptions) -> None:
        super().__init__(name="virtual_tpu", num_replicas=len(options.cores), pivot=None)
        self._traced = graph
        self.options = options
        # What TensorFlow keeps when it enters the context, and takes in `outside_compilation`.
        self._outer_device_function_stack = graph._device_function_stack.copy()
        self.variables: dict[int, TracedVariable] = {}

    def get_replicated_var_handle(
        self,
        name: str,
        handle_id: str,
        vars_: Sequence[Any],
        is_mirrored: bool = False,
        is_packed: bool = False,
    ) -> Any:
        """The handle by which the traced function knows a variable."""
        known = self._replicated_vars.get(handle_id)
        if known is not None:
            return known
        if is_packed:
            vars_ = vars_[0]._distributed_variables
        if len(vars_) != len(self.options.cores) and not self.options.assigned:
            raise ValueError(
                f"The variable {name} has {len(vars_)} copies, and the strategy that uses it has "
                f"{len(self.options.cores)} replicas. Create it in the scope of that strategy."
            )
        copies, divergence = copies_of(vars_[0]), self.options.divergence
        if is_mirrored and (copies is None or copies.watcher is not divergence):
            # Nobody sees here who writes its copies: another strategy's, or one of a deep copy.
            divergence.diverge({handle_id})
            if copies is not None:
                copies.watcher.diverge({copies.key})
                copies = None
        merged = copies if copies is not None and copies.shared else None
        if merged is not None:
            parts = Components(merged.handles(), copies=[], home=0, dtype=0)
        else:
            parts = components(vars_, self.options.cores, assigned=self.options.assigned)
        placeholder = self._traced.capture(parts.handles[0])
        self.variables[id(placeholder)] = TracedVariable(
            parts, is_mirrored, handle_id, str(name).partition(":")[0], merged
        )
        self._replicated_vars[handle_id] = placeholder
        return placeholder

    def AddOp(self, op: Any) -> None:
        """Marks what belongs to the host: gradients of what runs there; nothing else."""
        if self._outside_compilation_cluster:
            op._set_attr(OUTSIDE, AttrValue(s=self._outside_compilation_cluster.encode()))

    def AddValue(self, val: Any) -> Any:
        """Leaves a tensor as it is."""
        return val

    def AddInnerOp(self, op: Any) -> None:
        """Does likewise with an operation of an inner context."""
        self.AddOp(op)


class TracingGraph(FuncGraph):  # type: ignore[misc]
    """The graph into which a replica function is traced."""

    def __init__(self, options: ReplicateOptions) -> None:
        super().__init__(f"tpu_replica_{next(_names)}")
        self.tracing = ReplicaTracingContext(self, options)
        self._set_control_flow_context(self.tracing)


@timed("replicate", "trace the replica function")
def trace(
    function: Callable[..., Any],
    structure: Any,
    columns: Sequence[Sequence[Any]],
    options: ReplicateOptions,
) -> FuncGraph:
    """Traces a replica function with a placeholder for each argument.

    Args:
        function: Takes the arguments of one replica.
        structure: The nest of these.
        columns: Each tensor of the arguments with its value on every replica.
        options: The strategy's side of it.

    Returns:
        The graph; its `tracing` knows the variables that the function uses.
    """
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
