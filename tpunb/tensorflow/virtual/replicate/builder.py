"""A function for all replicas while it is written: its tensors, its handles, its nodes."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tpunb.tensorflow.virtual.copies.variable_copies import Resource, leads
from tpunb.tensorflow.virtual.graph.function_def import (
    FRESH,
    Add,
    Reference,
    Sizes,
    add_constant,
    add_node,
    argument_name,
    control_inputs,
    data_inputs,
    instance,
    integer,
    needed,
    type_of,
)
from tpunb.tensorflow.virtual.private_names import (
    AttrValue,
    FunctionDef,
    NodeDef,
    dtypes,
    op_def_registry,
)
from tpunb.tensorflow.virtual.replicate.function_copies import (
    FunctionCopies,
    assigned_device,
    logical_core,
)
from tpunb.tensorflow.virtual.replicate.joined_forms import Form, Take, listed_shape
from tpunb.tensorflow.virtual.replicate.variance import (
    Analysis,
    Argument,
    Arguments,
    Role,
    Variance,
)

_INT32 = type_of(dtypes.int32)


class JoinedTensors:
    """The tensors of a function, converted from one form to another, each at most once per form."""

    def __init__(
        self,
        analysis: Analysis,
        add: Add,
        device: str,
        replicas: int,
        tensor: Callable[[Reference, int], str],
    ) -> None:
        self._analysis = analysis
        self._statics = analysis.statics
        self._add = add
        self._device = device
        self._replicas = replicas
        self._tensor = tensor
        self._known: dict[tuple[Reference, Form], str] = {}
        self._constants: dict[tuple[str, Sizes, bytes], str] = {}
        self._widened: dict[str, str] = {}
        self._parts: dict[Reference, str] = {}

    def of_replica(self, source: Reference, replica: int) -> str:
        """Return a replica's part of a joined node's output."""
        form = self._analysis.form_of(source, self._analysis.plans)
        if form is None or form is Form.SHARED:
            return self.in_form(source, Form.SHARED)
        if source not in self._parts:
            self._parts[source] = self._part(source, form)
        return f"{self._parts[source]}:output:{replica}"

    def constant(self, take: Take) -> str:
        """Return the integers that a joined node takes."""
        return self._integers(take.constant, take.dtype)

    def input(self, source: Reference, take: Take) -> str:
        """Return a tensor in the form that a joined node takes."""
        text = self.in_form(source, take.form)
        if take.sizes is None or take.sizes == self._sizes(source):
            return text
        # Only axes of size 1 are added in front, so their number identifies the shape.
        name = f"{self._name(source, take.form)}_of_{len(take.sizes)}_axes"
        if name not in self._widened:
            sizes = (self._replicas, *take.sizes)
            self._widened[name] = self._reshaped(name, source, text, sizes)
        return self._widened[name]

    def in_form(self, source: Reference, form: Form) -> str:
        """Return a tensor in a form, converting it if necessary."""
        key = source, form
        if key not in self._known:
            self._known[key] = self._written(source, form)
        return self._known[key]

    def _written(self, source: Reference, form: Form) -> str:
        present = self._analysis.form_of(source, self._analysis.plans)
        if present is form:
            return self._output(source)
        if form is Form.SHARED:
            return self._tensor(source, 0)
        if form is Form.LISTED:
            return self._list(source)
        if present is None or (present is Form.SHARED and form is Form.SUMMED):
            return self._joined(source, form)
        if form is Form.INNER or (present is Form.INNER and form is Form.STACKED):
            return self._turned(source, form)
        if present is Form.SHARED:
            return self._repeated(source, form)
        name = self._name(source, form)
        if form is Form.SUMMED:
            inputs = [self.in_form(source, Form.STACKED), self._integers(0)]
            return self._node("Sum", name, source, inputs, Tidx=_INT32)
        text = self.in_form(source, Form.STACKED if present is Form.INNER else present)
        return self._reshaped(name, source, text, self._whole(source, form))

    def _output(self, source: Reference) -> str:
        """Return the name of a joined node's output."""
        if self._analysis.is_stacked(source):
            return argument_name(source.source)
        plan = self._analysis.plans.get(source.source)
        if plan is None:
            return self._tensor(source, 0)
        return f"{source.source}{plan.output or source.suffix}"

    def _sizes(self, source: Reference) -> Sizes:
        sizes = self._statics.sizes(source)
        if sizes is None:
            raise AssertionError(f"The shape of {source} is not known.")
        return sizes

    def _whole(self, source: Reference, form: Form) -> Sizes:
        """Return the shape of all replicas' values in a form."""
        sizes = self._sizes(source)
        if form is Form.ROWS:
            return (self._replicas * sizes[0], *sizes[1:])
        if form is Form.INNER:
            rows = [self._replicas * size for size in sizes[1:2]] or [self._replicas]
            return (sizes[0], *rows, *sizes[2:])
        return (self._replicas, *sizes)

    def _type(self, source: Reference) -> AttrValue:
        return type_of(self._statics.dtype(source))

    def _name(self, source: Reference, form: Form | None = None) -> str:
        """Return the name of the nodes that are written for a tensor."""
        parts = [part for part in source.suffix.split(":") if part]
        return "/".join(
            [source.source, "_".join(["joined", *parts, form.name.lower() if form else "parts"])]
        )

    # Writing nodes.

    def _node(
        self, op: str, name: str, source: Reference, inputs: Sequence[str], **attributes: AttrValue
    ) -> str:
        """Write a node of a tensor's type and return its only tensor."""
        self._add(op, name, self._device, inputs, T=self._type(source), **attributes)
        return f"{name}:{op_def_registry.get(op).output_arg[0].name}:0"

    def _joined(self, source: Reference, form: Form) -> str:
        """Join the values that replicas have of their own."""
        values = [self._tensor(source, replica) for replica in range(self._replicas)]
        name, count = self._name(source, form), integer(self._replicas)
        if form is Form.SUMMED:
            return self._node("AddN", name, source, values, N=count)
        axis = int(form is Form.INNER)
        if form is Form.ROWS or (axis and len(self._sizes(source)) > 1):
            inputs = [*values, self._integers(axis)]
            return self._node("ConcatV2", name, source, inputs, N=count, Tidx=_INT32)
        if form is Form.STACKED and self._statics.sizes(source):
            # Joined as rows, it can have both forms, and is copied once.
            rows = self.in_form(source, Form.ROWS)
            return self._reshaped(name, source, rows, self._whole(source, form))
        return self._node("Pack", name, source, values, N=count, axis=integer(axis))

    def _turned(self, source: Reference, form: Form) -> str:
        """Move the replicas from the first axis to the second, or back."""
        name, sizes = self._name(source, form), self._sizes(source)
        back = form is Form.STACKED
        text = self.in_form(source, Form.INNER if back else Form.STACKED)
        if back:
            by_replica = (sizes[0], self._replicas, *sizes[1:])
            text = self._reshaped(f"{name}/by_replica", source, text, by_replica)
        order = self._integers([1, 0, *range(2, len(sizes) + 1)])
        text = self._node("Transpose", f"{name}/turned", source, [text, order], Tperm=_INT32)
        return text if back else self._reshaped(name, source, text, self._whole(source, form))

    def _list(self, source: Reference) -> str:
        """Make one list without elements for all replicas, where each would make its own."""
        node = self._statics.node(source)
        if node is None or node.op not in FRESH:
            raise AssertionError(f"{source} is not a new list.")
        shape, length = data_inputs(node)
        name = self._name(source, Form.LISTED)
        whole = self._integers(listed_shape(self._statics.value(shape), self._replicas))
        inputs = [whole, self.in_form(length, Form.SHARED)]
        dtype = node.attr["element_dtype"]
        self._add(node.op, name, self._device, inputs, shape_type=_INT32, element_dtype=dtype)
        return f"{name}:handle:0"

    def _repeated(self, source: Reference, form: Form) -> str:
        """Repeat a value that all replicas share, once for each."""
        name = self._name(source, form)
        text = self.in_form(source, Form.SHARED)
        if self._statics.sizes(source) is None:
            count = integer(self._replicas)
            return self._node("Pack", name, source, [text] * self._replicas, N=count)
        inputs = [text, self._integers(self._whole(source, Form.STACKED))]
        text = self._node("BroadcastTo", f"{name}/all", source, inputs, Tidx=_INT32)
        if form is Form.STACKED:
            return text
        return self._reshaped(name, source, text, self._whole(source, form))

    def _part(self, source: Reference, form: Form) -> str:
        """Split a tensor into the replicas' parts; return the node that does it."""
        name, count = self._name(source), integer(self._replicas)
        text, axis = self.in_form(source, form), int(form is Form.INNER)
        if form is Form.ROWS or (axis and len(self._sizes(source)) > 1):
            self._node("Split", name, source, [self._integers(axis), text], num_split=count)
        else:
            self._node("Unpack", name, source, [text], num=count, axis=integer(axis))
        return name

    def _reshaped(self, name: str, source: Reference, text: str, sizes: Sizes) -> str:
        return self._node("Reshape", name, source, [text, self._integers(sizes)], Tshape=_INT32)

    def _integers(
        self, values: int | Sequence[int] | np.ndarray | None, dtype: dtypes.DType = dtypes.int32
    ) -> str:
        """Write integers once for all nodes that take them."""
        array = np.asarray(values, dtype.as_numpy_dtype)
        key = dtype.name, array.shape, array.tobytes()
        if key not in self._constants:
            name = f"tpunb_joined_integers_{len(self._constants)}"
            self._constants[key] = add_constant(self._add, name, self._device, array, dtype)
        return self._constants[key]


class Handles:
    """The handles of a function's variables."""

    def __init__(self, arguments: Arguments, devices: Sequence[str], add: Add) -> None:
        self._arguments = arguments
        self._add = add
        self._leads = leads(devices)
        self._firsts = sorted(set(self._leads))
        self._written: dict[tuple[str, int], str] = {}

    def are_together(self, source: Reference) -> bool:
        """Return whether a tensor is the handle of a copy that the replicas share."""
        argument = self._arguments.get(source.source)
        return argument is not None and argument.is_together

    def holder(self, source: Reference, replica: int) -> int:
        """Return the replica whose copy a replica uses: the first that shares it, or itself."""
        return self._leads[replica] if self.are_together(source) else replica

    def holders(self, source: Reference) -> Sequence[int]:
        """Return the replicas whose copies exist."""
        return self._firsts if self.are_together(source) else range(len(self._leads))

    def sharing(self, source: Reference, replica: int) -> Sequence[int]:
        """Return the replicas that use a replica's copy."""
        if not self.are_together(source):
            return [replica]
        return [sharer for sharer, lead in enumerate(self._leads) if lead == replica]

    def passed(self, argument: Argument) -> Sequence[int]:
        """Return the replicas whose handle of a variable is an argument of the function."""
        return self._firsts if argument.traced_together else range(len(self._leads))

    def tensor(self, name: str, replica: int) -> str:
        """Return a replica's handle of a variable whose copies are or were together."""
        resources = self._arguments[name].resources
        resource = resources[replica] if resources else None
        if resource is None:
            return argument_name(name, self._leads[replica])
        if (name, replica) not in self._written:
            self._written[name, replica] = self._find(f"{name}/of_replica_{replica}", resource)
        return self._written[name, replica]

    def _find(self, name: str, resource: Resource) -> str:
        """Write a node that finds a resource of the runtime, because it is not an argument."""
        self._add(
            "VarHandleOp",
            name,
            resource.handle.device,
            [],
            dtype=type_of(resource.dtype),
            shape=AttrValue(shape=resource.shape.as_proto()),
            shared_name=AttrValue(s=resource.name.encode()),
        )
        return f"{name}:resource:0"


_RESOURCE = dtypes.resource.as_datatype_enum


class Builder:
    """A function for all replicas while it is written.

    Args:
        function: The function of one replica, its calls inlined.
        analysis: The parts of the function that vary between the replicas.
        cores: The devices of each replica, its logical devices in order.
        copies: Makes the per-replica copies of called functions.
        name: The name of the function for all replicas.
        at_once: The number of replicas that run at a time; None for all.
        path: The names of the nodes around a body, as a prefix.
        shapes: The shapes of convolutions of unknown batches; None if all sizes are known.

    Attributes:
        result: The part of the function for all replicas that is written so far.
        bodies: The functions of its control flow.
        handles: The handles of the replicas' copies of variables.
    """

    def __init__(
        self,
        function: FunctionDef,
        analysis: Analysis,
        cores: Sequence[Sequence[str]],
        copies: FunctionCopies,
        name: str,
        at_once: int | None,
        *,
        path: str = "",
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.function = function
        self.analysis = analysis
        self.cores = cores
        self.copies = copies
        self.at_once = at_once
        self.path = path
        self.shapes = shapes
        self.replicas = range(len(cores))
        self.nodes = {node.name: node for node in analysis.order}
        self._needed = needed(function)
        self.result = FunctionDef()
        self.bodies: list[FunctionDef] = []
        self._given: dict[tuple[str, str, int], str] = {}
        self._ends: dict[str, dict[int, list[str]]] = defaultdict(dict)
        self._one_end: dict[str, bool] = {}
        self._types = {a.name: a.type for a in function.signature.input_arg}
        self.handles = Handles(analysis.arguments, [core[0] for core in self.cores], self.add)
        self._write_signature(name)

    def for_body(self, body: FunctionDef, analysis: Analysis, path: str) -> Builder:
        """Return a builder for a body that is lifted out of this function's control flow."""
        name = self.copies.new_name()
        # The shapes within a body are not known, but it is guarded nevertheless.
        shapes: dict[str, Sequence[int]] | None = None if self.shapes is None else {}
        return Builder(
            body, analysis, self.cores, self.copies, name, self.at_once, path=path, shapes=shapes
        )

    @functools.cached_property
    def joined(self) -> JoinedTensors:
        """The values of all replicas in one tensor."""
        device = self.cores[0][0]
        return JoinedTensors(self.analysis, self.add, device, len(self.cores), self.tensor)

    def _write_signature(self, name: str) -> None:
        """Write the arguments, once or once for each replica."""
        self.result.signature.name = name
        self.result.signature.is_stateful = True
        for traced in self.function.signature.input_arg:
            argument = self.analysis.arguments[traced.name]
            names = [argument_name(traced.name)]
            if argument.per_replica:
                passed = self.handles.passed(argument)
                names = [argument_name(traced.name, replica) for replica in passed]
            if argument.copy_type is not None:
                pairs = itertools.product(self.replicas, self.further_cores())
                names += [argument_name(traced.name, *pair) for pair in pairs]
            for new_name in names:
                self.result.signature.input_arg.add(name=new_name, type=traced.type)

    def runs(self, node: NodeDef) -> bool:
        """Return whether anything needs a node; TensorFlow prunes it otherwise."""
        return node.name in self._needed

    # The nodes that stand for the replica function's nodes.
    #
    # A node is written for each replica, or once if the replicas share the value or it is joined. A
    # replica reads the node that its owner has, unless `give` names another tensor, and waits for
    # it, unless `end` names other nodes.

    def repeated(self) -> frozenset[str]:
        """Return the nodes that compute a value for each replica, separately or in one tensor."""
        roles = self.analysis.roles.items()
        copied = {n for n, role in roles if role is Role.COMPUTE and self.is_repeated(n)}
        return frozenset(copied.union(self.analysis.plans))

    def is_repeated(self, name: str) -> bool:
        """Return whether the result has a node once per replica."""
        varies = self.analysis.variances[name] is Variance.VARYING
        return varies and name not in self.analysis.plans

    def owners(self, name: str) -> Sequence[int]:
        """Return the replicas that have an instance of a node: all, or the first."""
        return self.replicas if self.is_repeated(name) else [0]

    def _owner(self, name: str, replica: int) -> int:
        """Return the replica whose instance of a node a replica uses."""
        return replica if self.is_repeated(name) else 0

    def tensor(self, source: Reference, replica: int) -> str:
        """Return the tensor that a replica reads for a tensor of the replica function."""
        name = source.source
        argument = self.analysis.arguments.get(name)
        if self.analysis.is_stacked(source) or name in self.analysis.plans:
            return self.joined.of_replica(source, replica)
        if argument is not None and argument.traced_together:
            return self.handles.tensor(name, replica)
        if argument is not None:
            return argument_name(name, replica) if argument.per_replica else argument_name(name)
        given = self._given.get((name, source.suffix, self._owner(name, replica)))
        return given or self._instance(name, replica) + source.suffix

    def give(self, name: str, suffix: str, replica: int, tensor: str) -> None:
        """Let a replica read a tensor instead of an output of its own copy of a node."""
        self._given[name, suffix, replica] = tensor

    def ends(self, name: str, replica: int) -> list[str]:
        """Return the nodes after which a replica is done with a node."""
        if name in self._ends and replica in self._ends[name]:
            return self._ends[name][replica]
        return [self._instance(name, replica)]

    def end(self, name: str, replica: int, nodes: Iterable[str]) -> None:
        """Let a replica be done with a node after other nodes than its own copy."""
        self._ends[name][replica] = list(nodes)

    def waits(self, node: NodeDef, replica: int) -> list[str]:
        """Return the control inputs of a replica's instance of a node.

        An instance that is written once waits for all replicas.
        """
        return self.all_waits(node, [replica] if self.is_repeated(node.name) else self.replicas)

    def all_waits(self, node: NodeDef, replicas: Sequence[int]) -> list[str]:
        """Return the control inputs of a node that represents several replicas."""
        waits: dict[str, None] = {}
        for name in control_inputs(node):
            for replica in replicas[:1] if self._is_one_end(name) else replicas:
                waits.update(dict.fromkeys(self.ends(name, replica)))
        return [f"^{name}" for name in waits]

    def _is_one_end(self, name: str) -> bool:
        """Return whether all replicas are done with a node after the same nodes."""
        if name not in self._one_end:
            first = self.ends(name, 0)
            self._one_end[name] = all(self.ends(name, k) == first for k in self.replicas)
        return self._one_end[name]

    def _instance(self, name: str, replica: int) -> str:
        return instance(name, self._owner(name, replica))

    def own(self, source: Reference, variance: Variance) -> Sequence[int]:
        """Return the replicas with a tensor or handle of their own; the first if all share it."""
        argument = self.analysis.arguments.get(source.source)
        many = variance is Variance.VARYING or (argument is not None and argument.is_component)
        return self.handles.holders(source) if many else (0,)

    # Devices.

    def further_cores(self) -> range:
        """Return the logical devices of a replica after the first."""
        return range(1, len(self.cores[0]))

    def home(self, source: Reference) -> int:
        """Return the logical device that holds a handle's variable; 0 for other tensors."""
        argument = self.analysis.arguments.get(source.source)
        return argument.home if argument is not None else 0

    def device_of(self, handle: Reference, replica: int) -> str:
        """Return the device of a variable's component."""
        return self.cores[replica][self.home(handle)]

    def is_resource(self, source: Reference) -> bool:
        """Return whether a tensor is an argument of type resource."""
        return bool(self._types.get(source.source) == _RESOURCE)

    def is_shared_resource(self, source: Reference) -> bool:
        """Return whether a tensor is a resource that all replicas use."""
        argument = self.analysis.arguments.get(source.source)
        return argument is not None and not argument.per_replica and self.is_resource(source)

    def device(self, node: NodeDef, replica: int) -> str:
        """Return the device where a replica's instance of a node runs."""
        logical = self.cores[replica]
        sources = data_inputs(node)
        home = next(filter(None, map(self.home, sources)), 0)
        if home:
            # A variable's operations run on the variable's device, even if the user asks for
            # another.
            return logical[home]
        core = logical_core(node.device)
        if core is None:
            core = assigned_device(node)
        if core is not None:
            return logical[core]
        if node.device:
            return str(node.device)
        if any(map(self.is_shared_resource, sources)):
            # TensorFlow runs the operations of a table or an iterator on its device.
            return ""
        return logical[0]

    # Writing nodes.

    def add(
        self, op: str, name: str, device: str, inputs: Sequence[str], **attributes: AttrValue
    ) -> str:
        """Write a new node and return its name."""
        return add_node(self.result, op, name, device, inputs, **attributes)

    def sign(self, node: NodeDef) -> None:
        """Give a node of a body its name in the whole function, for errors."""
        if self.path:
            self.copies.sign(node, self.path + node.name)

    def lift(self, body: Builder) -> str:
        """Add the function of a body of control flow, and return its name."""
        self.bodies += [*body.bodies, body.result]
        return str(body.result.signature.name)

    def return_tensor(self, name: str, dtype: int, tensor: str) -> None:
        """Return a tensor from the function."""
        self.result.signature.output_arg.add(name=name, type=dtype)
        self.result.ret[name] = tensor

    def keep(self, names: Iterable[str]) -> None:
        """Let nodes run although the function returns none of their outputs."""
        for number, name in enumerate(names):
            self.result.control_ret[f"effect_{number}"] = name
            self.result.signature.control_output.append(f"effect_{number}")

    def copy_of(self, node: NodeDef, replica: int) -> NodeDef:
        """Write a replica's instance of a node, without its inputs, and return it."""
        copy = self.result.node_def.add()
        copy.CopyFrom(node)
        copy.name = instance(node.name, replica)
        copy.device = self.device(node, replica)
        # The attribute colocates the node with nodes that may have other names here.
        copy.attr.pop("_class", None)
        del copy.input[:]
        return copy
