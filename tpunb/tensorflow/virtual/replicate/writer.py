"""The writer of a replica function's nodes for all replicas.

A node is written once or for each replica. An update of a variable is written once for all copies,
and a collective as wiring. `control_flow.py` writes loops and branches. As many replicas run at a
time as there are processors.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from tpunb.tensorflow.virtual.graph.collectives import (
    check,
    groups,
    is_broadcast,
    source_target_pairs,
)
from tpunb.tensorflow.virtual.graph.function_def import (
    ASSIGNMENTS,
    BRANCHES,
    CONTROL_FLOW,
    READS,
    Reference,
    Returned,
    add_constant,
    argument_name,
    called_functions,
    control_inputs,
    data_inputs,
    instance,
    integer,
    is_stateful,
    reference,
    type_of,
)
from tpunb.tensorflow.virtual.private_names import AttrValue, NodeDef, dtypes
from tpunb.tensorflow.virtual.replicate.builder import Builder
from tpunb.tensorflow.virtual.replicate.joined_forms import Form
from tpunb.tensorflow.virtual.replicate.variance import (
    Role,
    Variance,
)
from tpunb.tensorflow.virtual.replicate.workarounds import guard, keep_arithmetic, keep_from_folding
from tpunb.tensorflow.virtual.runtime.devices import full_name

_FIRST_DEVICE = full_name("/device:CPU:0")


def write_copies(builder: Builder, node: NodeDef) -> None:
    """Write a node for each replica, or once if the replicas share the value."""
    for replica in builder.owners(node.name):
        write_copy(builder, node, replica)


def write_copy(builder: Builder, node: NodeDef, replica: int) -> NodeDef:
    """Write a node as it was traced, for one replica, and return it."""
    copy = builder.copy_of(node, replica)
    copy.input.extend(builder.tensor(source, replica) for source in data_inputs(node))
    copy.input.extend(builder.waits(node, replica))
    if node.op in CONTROL_FLOW:
        # Run as a kernel, its body stays on the replica's core. Lowered, the body does not, which
        # is right if it uses resources on several devices.
        lowered = _is_on_two_devices(builder, node) or _is_assertion(builder, node, copy.device)
        copy.attr["_lower_using_switch_merge"].b = lowered
    if builder.runs(node):
        keep_from_folding(builder.add, copy, in_body=bool(builder.path))
        keep_arithmetic(builder.add, node, copy, builder.nodes)
    builder.copies.specialize(copy, replica, builder.path + node.name)
    builder.sign(copy)
    if builder.shapes is not None:
        guarded = guard(builder.add, copy, builder.shapes.get(node.name))
        if guarded is not None:
            builder.give(node.name, ":output:0", replica, guarded)
    return copy


def _is_on_two_devices(builder: Builder, node: NodeDef) -> bool:
    """Return whether a node takes resources of the host and of a core, or of two cores."""
    resources = [source for source in data_inputs(node) if builder.is_resource(source)]
    return len({(builder.is_shared_resource(s), builder.home(s)) for s in resources}) > 1


def _is_assertion(builder: Builder, node: NodeDef, device: str) -> bool:
    """Return whether a node is a branch around an assertion, on the default device.

    A kernel that fails within a kernel first cancels the kernels of other replicas. One of these
    may report the cancellation before the failure is reported.
    """
    if node.op not in BRANCHES or device != _FIRST_DEVICE:
        return False
    bodies = map(builder.copies.library, called_functions(node))
    return any(inner.op == "Assert" for body in bodies for inner in body.node_def)


def write_update(builder: Builder, node: NodeDef) -> None:
    """Write an update that is the same on every core: computed once and broadcast."""
    name, dtype = node.name, node.attr["dtype"] if "dtype" in node.attr else node.attr["T"]
    handles = [source for source in data_inputs(node) if builder.is_resource(source)]
    many = any(len(builder.handles.holders(handle)) > 1 for handle in handles)
    # The node that changed the copy of a handle, by the handle's index and by the replica.
    written: dict[tuple[int, int], str] = {}
    values: list[str] = []
    if many and node.op in ASSIGNMENTS:
        values = [_assigned_value(builder, node, dtype)]
    else:
        copy = write_copy(builder, node, 0)
        known = set(copy.input)
        waits = [wait for handle in handles for wait in _waits_of_copy(builder, node, handle, 0)]
        copy.input.extend(wait for wait in dict.fromkeys(waits) if wait not in known)
        written.update(((index, 0), name) for index in range(len(handles)))
        if many:
            values = [
                _read_first(builder, f"{name}/updated_{index}", handle, [f"^{name}"], dtype)
                for index, handle in enumerate(handles)
            ]
    for index, (handle, value) in enumerate(zip(handles, values, strict=many)):
        for replica in builder.handles.holders(handle):
            if (index, replica) not in written:
                written[index, replica] = builder.add(
                    "AssignVariableOp",
                    instance(name, replica) + (f"/{index}" if index else ""),
                    builder.device_of(handle, replica),
                    [
                        builder.tensor(handle, replica),
                        value,
                        *_waits_of_copy(builder, node, handle, replica),
                    ],
                    dtype=dtype,
                )
    for replica in builder.replicas:
        holders = [builder.handles.holder(handle, replica) for handle in handles]
        changes = [written[index] for index in enumerate(holders)]
        builder.end(name, replica, dict.fromkeys(changes))


def _assigned_value(builder: Builder, node: NodeDef, dtype: AttrValue) -> str:
    """Return the new value of a variable, computed on the first core."""
    handle, value = data_inputs(node)
    if node.op == "AssignVariableOp":
        return builder.tensor(value, 0)
    old = _read_first(builder, f"{node.name}/old", handle, builder.waits(node, 0), dtype)
    op, name = "AddV2" if node.op == "AssignAddVariableOp" else "Sub", f"{node.name}/new"
    builder.add(op, name, builder.cores[0][0], [old, builder.tensor(value, 0)], T=dtype)
    return f"{name}:z:0"


def _waits_of_copy(
    builder: Builder, node: NodeDef, handle: Reference, replica: int
) -> Sequence[str]:
    """Return the control inputs of a copy's change: those for all replicas that share the copy."""
    return builder.all_waits(node, builder.handles.sharing(handle, replica))


def _read_first(
    builder: Builder, name: str, handle: Reference, waits: Sequence[str], dtype: AttrValue
) -> str:
    """Read the first replica's copy of a variable."""
    inputs = [builder.tensor(handle, 0), *waits]
    builder.add("ReadVariableOp", name, builder.device_of(handle, 0), inputs, dtype=dtype)
    return f"{name}:value:0"


def write_last_values(builder: Builder, argument: str, dtype: int) -> list[str]:
    """Copy a variable's last value to the other logical devices that hold it.

    Only a TPU needs the copies: every read here is from the first device.
    """
    changes = [
        node.name
        for node in builder.analysis.order
        if node.op not in READS and any(source.source == argument for source in data_inputs(node))
    ]
    if not changes:
        return []
    value_type = AttrValue(type=dtype)
    added = []
    for replica in builder.replicas:
        waits = [f"^{name}" for change in changes for name in builder.ends(change, replica)]
        name, logical = f"{argument}/replica_{replica}/last", builder.cores[replica]
        inputs = [argument_name(argument, replica), *dict.fromkeys(waits)]
        builder.add("ReadVariableOp", name, logical[0], inputs, dtype=value_type)
        for core in builder.further_cores():
            inputs = [argument_name(argument, replica, core), f"{name}:value:0"]
            copy = f"{argument}/replica_{replica}/copy_{core}"
            added.append(
                builder.add("AssignVariableOp", copy, logical[core], inputs, dtype=value_type)
            )
    return added


def write_collective(builder: Builder, node: NodeDef) -> None:
    """Write a cross-replica operation as wiring between the replicas."""
    check(node, builder.nodes, len(builder.cores))
    write = {
        "CrossReplicaSum": _write_sum,
        "AllToAll": _write_exchange,
        "CollectivePermute": _write_permutation,
    }
    write[node.op](builder, node)


def _write_sum(builder: Builder, node: NodeDef) -> None:
    value = data_inputs(node)[0]
    joined = groups(node, builder.nodes)
    form = builder.analysis.form_of(value, builder.analysis.plans)
    if (value.source in builder.analysis.plans or form is Form.SUMMED) and len(joined) == 1:
        # The replicas' values are joined in one tensor, or summed already.
        total = builder.joined.in_form(value, Form.SUMMED)
        inputs = [total, *builder.all_waits(node, builder.replicas)]
        name, device = instance(node.name, 0), builder.cores[0][0]
        builder.add("Identity", name, device, inputs, T=node.attr["T"])
        return
    for group in joined:
        first = group[0]
        name = instance(node.name, first if len(joined) > 1 else 0)
        inputs = [builder.tensor(value, replica) for replica in group]
        if _is_held_in_turns(builder, node, group):
            inputs = _added_as_they_come(builder, name, inputs, node.attr["T"])
        device, count = builder.cores[first][0], integer(len(inputs))
        inputs += builder.all_waits(node, group)
        builder.add("AddN", name, device, inputs, T=node.attr["T"], N=count)
        _hand_out(builder, node, f"{name}:sum:0", group)


def _hand_out(builder: Builder, node: NodeDef, tensor: str, group: Sequence[int]) -> None:
    """Give the replicas of a group the result that its first replica computes."""
    name = reference(tensor).source
    for replica in group:
        builder.give(node.name, ":output:0", replica, tensor)
        builder.end(node.name, replica, [name])


_SUMS = 8
"""The number of partial sums, made one after the other, if replicas take turns.

An eighth of the replicas' values is held at a time. More sums would save little memory more.
"""


def _is_held_in_turns(builder: Builder, node: NodeDef, group: Sequence[int]) -> bool:
    """Return whether replicas that take turns would hold much memory until the last has a value."""
    if builder.at_once is None or len(group) < 3:
        return False
    return builder.analysis.statics.bytes_of(node) * len(group) > _LITTLE


def _added_as_they_come(
    builder: Builder, name: str, values: Sequence[str], dtype: AttrValue
) -> list[str]:
    """Add all values but the last, an eighth at a time, in the replicas' order."""
    some = -(-len(values) // _SUMS)
    inputs = list(values[: some + 1])
    for start in range(some + 1, len(values), some):
        part, count = f"{name}/first_{start}", integer(len(inputs))
        builder.add("AddN", part, builder.cores[0][0], inputs, T=dtype, N=count)
        inputs = [f"{part}:sum:0", *values[start : start + some]]
    return inputs


def _write_exchange(builder: Builder, node: NodeDef) -> None:
    value = data_inputs(node)[0]
    split_axis, concat_axis, count = (
        node.attr[key].i for key in ("split_dimension", "concat_dimension", "split_count")
    )
    dtype = node.attr["T"]
    for replica in builder.replicas:
        name, device = instance(node.name, replica), builder.cores[replica][0]
        axis = add_constant(builder.add, f"{name}/split_dim", device, split_axis)
        inputs = [axis, builder.tensor(value, replica), *builder.waits(node, replica)]
        builder.add("Split", f"{name}/split", device, inputs, T=dtype, num_split=integer(count))
    for group in groups(node, builder.nodes):
        for index, replica in enumerate(group):
            name, device = instance(node.name, replica), builder.cores[replica][0]
            axis = add_constant(builder.add, f"{name}/concat_dim", device, concat_axis)
            parts = [f"{instance(node.name, k)}/split:output:{index}" for k in group]
            builder.give(node.name, ":output:0", replica, f"{name}:output:0")
            if len(parts) == 1:  # TensorFlow does not concatenate a single part
                builder.add("Identity", name, device, parts, T=dtype)
                continue
            builder.add(
                "ConcatV2",
                name,
                device,
                [*parts, axis],
                T=dtype,
                N=integer(len(parts)),
                Tidx=type_of(dtypes.int32),
            )


def _write_permutation(builder: Builder, node: NodeDef) -> None:
    value = data_inputs(node)[0]
    if is_broadcast(node, builder.nodes):
        name, device = instance(node.name, 0), builder.cores[0][0]
        inputs = [builder.tensor(value, 0), *builder.all_waits(node, builder.replicas)]
        builder.add("Identity", name, device, inputs, T=node.attr["T"])
        _hand_out(builder, node, f"{name}:output:0", builder.replicas)
        return
    origin = {target: source for source, target in source_target_pairs(node, builder.nodes)}
    for replica in builder.replicas:
        name, device = instance(node.name, replica), builder.cores[replica][0]
        # A core that receives nothing gets zeros, as on a TPU.
        op = "Identity" if replica in origin else "ZerosLike"
        inputs = [builder.tensor(value, origin.get(replica, replica))]
        builder.add(op, name, device, inputs + builder.waits(node, replica), T=node.attr["T"])
        output = ":output:0" if replica in origin else ":y:0"
        builder.give(node.name, ":output:0", replica, name + output)


_ANYTIME = -1
"""The part of nodes that wait for no replica: constants and reads, which need no memory."""

_LITTLE = 2**24
"""The most bytes of all replicas together for which a part takes no turns.

16 MiB are little beside TensorFlow's own memory, and a turn costs two nodes for each replica.
"""


def take_turns(builder: Builder) -> None:
    """Make the replicas' nodes, which are written already, wait for earlier replicas' nodes."""
    if builder.at_once is None or builder.at_once >= len(builder.replicas):
        return
    pairs = list(zip(builder.replicas, builder.replicas[builder.at_once :], strict=False))
    parts = _Parts(builder)
    written = {node.name: node for node in builder.result.node_def}
    for part, starts in parts.starts.items():
        if parts.bytes[part] * len(builder.cores) <= _LITTLE:
            continue
        for earlier, later in pairs:
            ended = f"tpunb_turn_{part}_ended/replica_{earlier}"
            began = f"tpunb_turn_{part}/replica_{later}"
            waits = [f"^{instance(name, earlier)}" for name in parts.ends[part]]
            builder.add("NoOp", ended, builder.cores[earlier][0], waits)
            builder.add("NoOp", began, builder.cores[later][0], [f"^{ended}"])
            for name in starts:
                written[instance(name, later)].input.append(f"^{began}")


class _Parts:
    """A replica function in parts that end where the replicas meet.

    A part may depend on earlier parts of any replica, and on the same part only of its own replica.
    So no part waits for itself, in any order of the replicas.

    Attributes:
        starts: For each part, the nodes that wait for nothing else in it.
        ends: For each part, the nodes that nothing else in it waits for.
        bytes: For each part, the most memory that a replica's own nodes take.
    """

    def __init__(self, builder: Builder) -> None:
        self.starts: dict[int, list[str]] = defaultdict(list)
        self.ends: dict[int, dict[str, None]] = defaultdict(dict)
        self.bytes: dict[int, float] = defaultdict(float)
        self._builder = builder
        self._parts: dict[str, int] = {}
        self._inside: set[str] = set()
        for node in builder.analysis.order:
            if builder.runs(node):
                self._visit(node)

    def _visit(self, node: NodeDef) -> None:
        builder = self._builder
        own = self._is_own(node.name)
        sources = [source.source for source in data_inputs(node)] + control_inputs(node)
        sources = [name for name in sources if name in self._parts]
        part = max(map(self._after, sources), default=_ANYTIME)
        if own and builder.analysis.variances[node.name] is Variance.VARYING:
            part = max(part, 0)
        self._parts[node.name] = part
        if not own or part == _ANYTIME:
            return
        self.bytes[part] += self._bytes(node)
        before = [name for name in sources if name in self._inside and self._parts[name] == part]
        if not before:
            if builder.analysis.variances[node.name] is not Variance.VARYING:
                return
            self.starts[part].append(node.name)
        self._inside.add(node.name)
        for name in before:
            self.ends[part].pop(name, None)
        self.ends[part][node.name] = None

    def _bytes(self, node: NodeDef) -> float:
        """Return the most memory that a node takes; infinity if it is not known."""
        if is_stateful(node) and node.op not in READS | ASSIGNMENTS:
            return math.inf
        return self._builder.analysis.statics.bytes_of(node)

    def _is_own(self, name: str) -> bool:
        """Return whether every replica has its own node, so that the replicas do not meet there."""
        builder = self._builder
        return builder.analysis.roles[name] is Role.COMPUTE and builder.is_repeated(name)

    def _after(self, name: str) -> int:
        """Return the first part in which the nodes after a node can be."""
        part = self._parts[name]
        return part if part == _ANYTIME or self._is_own(name) else part + 1


def write_results(
    builder: Builder, results: Sequence[Returned], variances: Sequence[Variance]
) -> None:
    """Write what the function returns: `VARYING` results once per replica."""
    for index, (result, variance) in enumerate(zip(results, variances, strict=True)):
        for replica in builder.own(result.source, variance):
            name = f"output_{index}_{replica}"
            builder.return_tensor(name, result.type, builder.tensor(result.source, replica))


def write_effects(builder: Builder) -> None:
    """Name the nodes that must run although their results are not read.

    They include reads, even reads that only the first core makes. Once the call is inlined, an
    update after the call waits for nothing else.
    """
    targets = dict.fromkeys(builder.function.control_ret.values())
    effects = dict.fromkeys(name for target in targets for name in builder.ends(target, 0))
    for replica in builder.replicas[1:]:
        ends = {name for target in targets for name in builder.ends(target, replica)}
        waits = [f"^{name}" for name in sorted(ends - effects.keys())]
        if len(waits) > 1:
            # One node waits for all nodes on a replica, because everything after the call waits for
            # each effect.
            name, device = f"tpunb_end/replica_{replica}", builder.cores[replica][0]
            waits = [builder.add("NoOp", name, device, waits)]
        effects.update(dict.fromkeys(name.lstrip("^") for name in waits))
    for name, argument in sorted(builder.analysis.arguments.items()):
        if argument.copy_type is not None:
            copied = write_last_values(builder, name, argument.copy_type)
            effects.update(dict.fromkeys(copied))
    builder.keep(effects)
