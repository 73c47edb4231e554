"""The replica function, traced once, and the places of its variables' components."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.logs import timed
from tpunb.tensorflow.virtual.array_conversion import watch_conversions
from tpunb.tensorflow.virtual.copies.variable_copies import Copies, copies_of, eagerly, handle_of
from tpunb.tensorflow.virtual.graph.function_def import OUTSIDE
from tpunb.tensorflow.virtual.graph.tensorflow_graphs import (
    device_functions,
    set_attr,
    set_control_flow_context,
)
from tpunb.tensorflow.virtual.private_names import (
    AttrValue,
    EagerTensor,
    FuncGraph,
    TPUReplicateContext,
    TPUReplicatedVariable,
    device_util,
    func_graph_from_py_func,
    ops,
    tpu_shard_context,
    variable_utils,
)
from tpunb.tensorflow.virtual.replicate.options import CallOptions
from tpunb.tensorflow.virtual.replicate.trial import StandIn


@dataclasses.dataclass(frozen=True)
class TracedVariable:
    """A variable with a component on each replica.

    Attributes:
        handles: The handle on each replica, or a single handle if the copies share a resource.
        mirrored: Whether the components are kept in sync.
        key: A value that stays the same for as long as the variable lives.
        name: The variable's name.
        together: Its components, if they share or shared a resource.
        home: The logical device that holds the variable.
        copies: If every logical device holds the variable: the handles on the devices after the
            first, replica by replica. Otherwise empty.
        dtype: The type of these copies, as a number of the protocol buffers.
    """

    handles: Sequence[Any]
    mirrored: bool
    key: str
    name: str
    together: Copies | None = None
    home: int = 0
    copies: Sequence[Any] = ()
    dtype: int | None = None


def _handle(variable: Any) -> Any:
    if isinstance(variable, TPUReplicatedVariable):
        # Its own `handle` is a TPUPartitionedInputV2, which only TPUs have (TensorFlow 2.21).
        variable = variable.variables[0]
    return variable if isinstance(variable, tf.Tensor) else handle_of(variable)


def _home(variables: Sequence[Any], cores: Sequence[Sequence[str]]) -> int | None:
    """Return the logical device that holds a part on every replica, or None."""
    if len(variables) != len(cores):
        return None
    devices = [variable.device for variable in variables]
    if devices[0] not in cores[0]:
        devices = [device_util.canonicalize(device) for device in devices]
    for core in range(len(cores[0])):
        if all(logical[core] == device for logical, device in zip(cores, devices, strict=True)):
            return core
    return None


def _on_cores(variables: Sequence[Any], cores: Sequence[Sequence[str]]) -> list[Any]:
    """Return for each replica the part that is on one of its cores."""
    by_device = {device_util.canonicalize(variable.device): variable for variable in variables}
    parts = []
    for replica, logical in enumerate(cores):
        here = [by_device[device] for device in logical if device in by_device]
        if not here:
            raise ValueError(
                f"Failed to find a variable on any device in replica {replica} for "
                "current device assignment"
            )
        parts.append(here[0])
    return parts


def _unpacked(packed: Any, cores: Sequence[str]) -> list[Any]:
    """Return the handle of the copy on each core, if TensorFlow packs all handles into one.

    TensorFlow unpacks the handle only for operations of a function, on the core of a copy.
    """

    def unpack() -> list[Any]:
        handles = []
        for core in cores:
            with ops.device(core):
                handles.append(tf.identity(packed))
        return handles

    with eagerly():
        return list(tf.function(unpack, autograph=False)())


_names = itertools.count()


class ReplicaTracingContext(TPUReplicateContext):  # type: ignore[misc]
    """A context that answers "inside a TPU computation" while the replica function is traced.

    TPU variables ask it for their handle. There, each variable becomes one input of the replica
    function.
    """

    def __init__(self, graph: FuncGraph, options: CallOptions) -> None:
        super().__init__(name="virtual_tpu", num_replicas=len(options.cores), pivot=None)
        self._traced = graph
        self._cores = options.cores
        self._assigned = options.assigned
        self._watcher = options.divergence
        self.trial = options.trial
        # TensorFlow stores it when it enters the context, and uses it in `outside_compilation`: see
        # python/tpu/tpu_replication.py, up to TensorFlow 2.21.
        self._outer_device_function_stack = device_functions(graph)
        self.variables: dict[int, TracedVariable] = {}

    def get_replicated_var_handle(
        self,
        name: str,
        handle_id: str,
        vars_: Sequence[Any],
        is_mirrored: bool = False,
        is_packed: bool = False,
    ) -> Any:
        """Return the handle by which the traced function knows a variable."""
        known = self._replicated_vars.get(handle_id)
        if known is not None:
            return known
        if self.trial is not None:
            return self._of_trial(self.trial.stand_in(handle_id, str(name), vars_), is_mirrored)
        if is_packed:
            vars_ = _unpacked(vars_[0], [cores[0] for cores in self._cores])
        if len(vars_) != len(self._cores) and not self._assigned:
            raise ValueError(
                f"The variable {name} has {len(vars_)} copies, and the strategy that uses it has "
                f"{len(self._cores)} replicas. Create it in the scope of that strategy."
            )
        copies = copies_of(vars_[0])
        if is_mirrored and (copies is None or copies.watcher is not self._watcher):
            # Writes to these copies go unnoticed here: they are another strategy's, or a deep
            # copy's.
            self._watcher.diverge({handle_id})
            if copies is not None:
                copies.watcher.diverge({copies.key})
                copies = None
        label = str(name).partition(":")[0]
        if copies is not None and copies.began_together:
            handles = [copies.handle(0)]
            variable = TracedVariable(handles, is_mirrored, handle_id, label, copies)
        else:
            variable = self._of_components(vars_, is_mirrored, handle_id, label)
        placeholder = self._traced.capture_variable(variable.handles[0])
        self.variables[id(placeholder)] = variable
        self._replicated_vars[handle_id] = placeholder
        return placeholder

    def _of_trial(self, stand_in: StandIn, mirrored: bool) -> Any:
        """Return the handle by which the traced function knows a variable's stand-in."""
        placeholder = self.on_replicas(stand_in.handles, stand_in.key, mirrored=mirrored)
        self._replicated_vars[stand_in.key] = placeholder
        return placeholder

    def on_replicas(self, handles: Sequence[Any], key: str, *, mirrored: bool = False) -> Any:
        """Return one handle for the traced function, given a handle for each replica."""
        placeholder = self._traced.capture_variable(handles[0])
        self.variables[id(placeholder)] = TracedVariable(handles, mirrored, key, key)
        return placeholder

    def _of_components(
        self, variables: Sequence[Any], mirrored: bool, key: str, name: str
    ) -> TracedVariable:
        """Return a variable made of its parts, or their handles: one for each replica.

        If a device assignment says which cores form a replica, each replica takes the part that is
        on one of its cores.
        """
        home = _home(variables, self._cores)
        if home is None and self._assigned:
            variables = _on_cores(variables, self._cores)
            home = _home(variables, self._cores)
        copies = [
            handle_of(part)
            for variable in variables
            if isinstance(variable, TPUReplicatedVariable)
            for part in variable.variables[1:]
        ]
        # The engine itself writes only copies, and needs their type.
        dtype = variables[0].dtype.as_datatype_enum if copies else None
        handles = [*map(_handle, variables)]
        return TracedVariable(
            handles, mirrored, key, name, home=home or 0, copies=copies, dtype=dtype
        )

    def AddOp(self, op: Any) -> None:
        """Mark operations that belong to the host, which are gradients of operations there."""
        if self._outside_compilation_cluster:
            set_attr(op, OUTSIDE, AttrValue(s=self._outside_compilation_cluster.encode()))

    def AddValue(self, val: Any) -> Any:
        """Return a tensor unchanged."""
        return val

    def AddInnerOp(self, op: Any) -> None:
        """Mark an operation of an inner context like `AddOp`."""
        self.AddOp(op)


@dataclasses.dataclass(frozen=True)
class CopyUse:
    """An operation of a replica function that takes the first copy of a variable by its handle.

    Attributes:
        operation: The operation.
        index: The index of the handle among the operation's inputs.
        handle: The placeholder of the handle, which is also the placeholder of the variable.
    """

    operation: Any
    index: int
    handle: Any


class TracingGraph(FuncGraph):  # type: ignore[misc]
    """The graph into which a replica function is traced; `tracing` knows its variables.

    A variable and its first copy have one handle, and so one placeholder. The graph tells their
    uses apart: it captures the handle of a copy once for each operation that takes it.
    """

    def __init__(self, options: CallOptions) -> None:
        super().__init__(f"tpu_replica_{next(_names)}")
        self._captured: list[tuple[int, Any]] = []
        self.refuses_lost_numbers = options.strictness.any
        self.tracing = ReplicaTracingContext(self, options)
        set_control_flow_context(self, self.tracing)

    def capture(self, tensor: Any, name: str | None = None, shape: Any = None) -> Any:
        """Return the placeholder of a tensor, and note a handle that an operation will take."""
        if isinstance(tensor, EagerTensor) and tensor.dtype == tf.resource:
            placeholder = super().capture(tensor, name=name, shape=shape)
            self._captured.append((len(self.get_operations()), placeholder))
            return placeholder
        return super().capture(tensor, name=name, shape=shape)

    def capture_variable(self, handle: Any) -> Any:
        """Return the placeholder of a variable, given the handle of its first copy."""
        return super().capture(handle)

    @contextlib.contextmanager
    def creating_variable(self) -> Iterator[None]:
        """Ignore the handles that are captured to give a new variable its first value."""
        before = len(self._captured)
        yield
        del self._captured[before:]

    @property
    def copy_uses(self) -> Iterator[CopyUse]:
        """The operations that take the first copy of a variable instead of the variable."""
        operations = self.get_operations()
        for number, placeholder in self._captured:
            if id(placeholder) not in self.tracing.variables:
                continue
            for operation in operations[number:]:
                indices = [k for k, tensor in enumerate(operation.inputs) if tensor is placeholder]
                if indices:
                    yield from (CopyUse(operation, index, placeholder) for index in indices)
                    break


@timed("replicate", "trace the replica function")
def trace(
    function: Callable[..., Any],
    structure: Any,
    columns: Sequence[Sequence[Any]],
    options: CallOptions,
) -> TracingGraph:
    """Trace a replica function with a placeholder for each argument.

    Args:
        function: Takes the arguments of one replica.
        structure: The nest of these arguments.
        columns: Each tensor of the arguments with its value on every replica.
        options: The properties of the strategy.
    """
    specs = []
    for column in (column for column in columns if column[0] is not None):
        shape = column[0].shape
        for tensor in column[1:]:
            shape = shape.most_specific_compatible_shape(tensor.shape)
        specs.append(tf.TensorSpec(shape, column[0].dtype))

    def call(*placeholders: Any) -> Any:
        values = iter(placeholders)
        flat = [None if column[0] is None else next(values) for column in columns]
        arguments = tf.nest.pack_sequence_as(structure, flat, expand_composites=True)
        with tpu_shard_context(len(options.cores)):
            return variable_utils.convert_variables_to_tensors(function(*arguments))

    graph = TracingGraph(options)
    watch_conversions()
    # The replica function's nodes belong to a core, regardless of the devices around the call.
    with ops.device(None):
        func_graph_from_py_func(graph.name, call, args=tuple(specs), kwargs={}, func_graph=graph)
    return graph
