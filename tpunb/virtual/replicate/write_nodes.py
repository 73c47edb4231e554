"""Writes single nodes: once or for each replica, updates of variables, collectives as wiring."""

from __future__ import annotations

from collections.abc import Sequence

from tpunb.virtual._tensorflow import AttrValue, NodeDef, dtypes
from tpunb.virtual.devices import full_name
from tpunb.virtual.graph.collectives import (
    check,
    groups,
    is_broadcast,
    source_target_pairs,
)
from tpunb.virtual.graph.function_def import (
    ASSIGNMENTS,
    BRANCHES,
    CONTROL_FLOW,
    READS,
    Reference,
    add_constant,
    argument_name,
    called_functions,
    data_inputs,
    instance,
    integer,
    type_of,
)
from tpunb.virtual.replicate.builder import Builder
from tpunb.virtual.replicate.joined_forms import Form
from tpunb.virtual.replicate.workarounds import guard, keep_from_folding

_FIRST_DEVICE = full_name("/device:CPU:0")


def write_copies(builder: Builder, node: NodeDef) -> None:
    """Writes a node for each replica, or for the first if all share its value."""
    for replica in builder.replicas if builder.is_repeated(node.name) else (0,):
        write_copy(builder, node, replica)


def write_copy(builder: Builder, node: NodeDef, replica: int) -> NodeDef:
    """Writes a node as it was traced, for one replica, and gives it."""
    copy = builder.copy_of(node, replica)
    copy.input.extend(builder.tensor(source, replica) for source in data_inputs(node))
    repeated = builder.is_repeated(node.name)
    copy.input.extend(builder.waits(node, replica) if repeated else builder.waits_of_one(node))
    if node.op in CONTROL_FLOW:
        # Run as a kernel its body stays on the replica's core; lowered, it would not. That
        # is wanted where it uses what is on several devices.
        lowered = _is_on_two_devices(builder, node) or _is_assertion(builder, node, copy.device)
        copy.attr["_lower_using_switch_merge"].b = lowered
    if builder.runs(node):
        keep_from_folding(builder.add, copy, in_body=bool(builder.path))
    functions = builder.copies
    functions.specialize(copy, replica, builder.path + node.name)
    if builder.path:
        functions.sign(copy, builder.path + copy.name)
    if builder.shapes is not None:
        guarded = guard(builder.add, copy, builder.shapes.get(node.name))
        if guarded is not None:
            builder.tensors[node.name, ":output:0", replica] = guarded
    return copy


def _is_on_two_devices(builder: Builder, node: NodeDef) -> bool:
    """Whether a node takes resources of the host and of a core, or of two cores."""
    resources = [source for source in data_inputs(node) if builder.is_resource(source)]
    return len({(builder.is_shared_resource(s), builder.home(s)) for s in resources}) > 1


def _is_assertion(builder: Builder, node: NodeDef, device: str) -> bool:
    """Whether a node is a branch around an assertion, on the device where all is that has none.

    A kernel that fails within a kernel cancels those of other replicas first, of which one may
    report that it was cancelled before the failure is reported.
    """
    if node.op not in BRANCHES or device != _FIRST_DEVICE:
        return False
    bodies = map(builder.copies.library, called_functions(node))
    return any(inner.op == "Assert" for body in bodies for inner in body.node_def)


def write_update(builder: Builder, node: NodeDef) -> None:
    """Writes an update that is the same on every core: computed once and broadcast."""
    name, kind = node.name, node.attr["dtype"] if "dtype" in node.attr else node.attr["T"]
    handles = [source for source in data_inputs(node) if builder.is_resource(source)]
    many = any(len(builder.handles.holders(handle)) > 1 for handle in handles)
    # What changed the copy of a handle, by its place and by the replica.
    written: dict[tuple[int, int], str] = {}
    values: list[str] = []
    if many and node.op in ASSIGNMENTS:
        values = [_assigned_value(builder, node, kind)]
    else:
        copy = write_copy(builder, node, 0)
        known = set(copy.input)
        waits = [wait for handle in handles for wait in _waits_of_copy(builder, node, handle, 0)]
        copy.input.extend(wait for wait in dict.fromkeys(waits) if wait not in known)
        written.update(((place, 0), name) for place in range(len(handles)))
        if many:
            values = [
                _read_first(builder, f"{name}/updated_{place}", handle, [f"^{name}"], kind)
                for place, handle in enumerate(handles)
            ]
    for place, (handle, value) in enumerate(zip(handles, values, strict=many)):
        for replica in builder.handles.holders(handle):
            if (place, replica) not in written:
                written[place, replica] = builder.add(
                    "AssignVariableOp",
                    instance(name, replica) + (f"/{place}" if place else ""),
                    builder.device_of(handle, replica),
                    [
                        builder.tensor(handle, replica),
                        builder.broadcast(value, kind, replica),
                        *_waits_of_copy(builder, node, handle, replica),
                    ],
                    dtype=kind,
                )
    for replica in builder.replicas:
        holders = [builder.handles.holder(handle, replica) for handle in handles]
        changes = [written[place] for place in enumerate(holders)]
        builder.controls[name][replica] = list(dict.fromkeys(changes))


def _assigned_value(builder: Builder, node: NodeDef, kind: AttrValue) -> str:
    """The new value of a variable, computed on the first core."""
    handle, value = data_inputs(node)
    if node.op == "AssignVariableOp":
        return builder.tensor(value, 0)
    old = _read_first(builder, f"{node.name}/old", handle, builder.waits(node, 0), kind)
    op, name = "AddV2" if node.op == "AssignAddVariableOp" else "Sub", f"{node.name}/new"
    builder.add(op, name, builder.cores[0][0], [old, builder.tensor(value, 0)], T=kind)
    return f"{name}:z:0"


def _waits_of_copy(
    builder: Builder, node: NodeDef, handle: Reference, replica: int
) -> Sequence[str]:
    """The control inputs of what changes a copy: those of all replicas that have it."""
    return builder.all_waits(node, builder.handles.sharing(handle, replica))


def _read_first(
    builder: Builder, name: str, handle: Reference, waits: Sequence[str], kind: AttrValue
) -> str:
    """Reads the first replica's copy of a variable."""
    inputs = [builder.tensor(handle, 0), *waits]
    builder.add("ReadVariableOp", name, builder.device_of(handle, 0), inputs, dtype=kind)
    return f"{name}:value:0"


def write_last_values(builder: Builder, argument: str, dtype: int) -> list[str]:
    """Copies a variable's last value to the other logical devices that hold it.

    Only a TPU needs the copies: every read here is from the first device.
    """
    changes = [
        node.name
        for node in builder.analysis.order
        if node.op not in READS and any(source.source == argument for source in data_inputs(node))
    ]
    if not changes:
        return []
    kind = AttrValue(type=dtype)
    added = []
    for replica in builder.replicas:
        waits = [f"^{name}" for change in changes for name in builder.ends(change, replica)]
        name, logical = f"{argument}/replica_{replica}/last", builder.cores[replica]
        inputs = [argument_name(argument, replica), *dict.fromkeys(waits)]
        builder.add("ReadVariableOp", name, logical[0], inputs, dtype=kind)
        for core in builder.further_cores():
            inputs = [argument_name(argument, replica, core), f"{name}:value:0"]
            copy = f"{argument}/replica_{replica}/copy_{core}"
            added.append(builder.add("AssignVariableOp", copy, logical[core], inputs, dtype=kind))
    return added


def write_collective(builder: Builder, node: NodeDef) -> None:
    """Writes what a cross-replica operation does as wiring between the replicas."""
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
    if value.source in builder.analysis.plans and len(joined) == 1:
        _write_joined_sum(builder, node, value)
        return
    for group in joined:
        first = group[0]
        name = instance(node.name, first if len(joined) > 1 else 0)
        inputs = [builder.tensor(value, replica) for replica in group]
        inputs += builder.all_waits(node, group)
        device = builder.cores[first][0]
        builder.add("AddN", name, device, inputs, T=node.attr["T"], N=integer(len(group)))
        for replica in group:
            total = builder.broadcast(f"{name}:sum:0", node.attr["T"], replica, first)
            builder.tensors[node.name, ":output:0", replica] = total
            builder.controls[node.name][replica] = [name]


def _write_joined_sum(builder: Builder, node: NodeDef, value: Reference) -> None:
    """Writes the sum of what is one tensor, or is a sum already."""
    name, device = instance(node.name, 0), builder.cores[0][0]
    inputs = [builder.joined.taken(value, Form.SUMMED), *builder.all_waits(node, builder.replicas)]
    builder.add("Identity", name, device, inputs, T=node.attr["T"])


def _write_exchange(builder: Builder, node: NodeDef) -> None:
    value = data_inputs(node)[0]
    split, concat, count = (
        node.attr[key].i for key in ("split_dimension", "concat_dimension", "split_count")
    )
    kind = node.attr["T"]
    for replica in builder.replicas:
        name, device = instance(node.name, replica), builder.cores[replica][0]
        axis = add_constant(builder.add, f"{name}/split_dim", device, split)
        inputs = [axis, builder.tensor(value, replica), *builder.waits(node, replica)]
        builder.add("Split", f"{name}/split", device, inputs, T=kind, num_split=integer(count))
    for group in groups(node, builder.nodes):
        for place, replica in enumerate(group):
            name, device = instance(node.name, replica), builder.cores[replica][0]
            axis = add_constant(builder.add, f"{name}/concat_dim", device, concat)
            parts = [f"{instance(node.name, k)}/split:output:{place}" for k in group]
            builder.tensors[node.name, ":output:0", replica] = f"{name}:output:0"
            if len(parts) == 1:  # of which TensorFlow makes no concatenation
                builder.add("Identity", name, device, parts, T=kind)
                continue
            builder.add(
                "ConcatV2",
                name,
                device,
                [*parts, axis],
                T=kind,
                N=integer(len(parts)),
                Tidx=type_of(dtypes.int32),
            )


def _write_permutation(builder: Builder, node: NodeDef) -> None:
    value = data_inputs(node)[0]
    if is_broadcast(node, builder.nodes):
        name, device = instance(node.name, 0), builder.cores[0][0]
        inputs = [builder.tensor(value, 0), *builder.all_waits(node, builder.replicas)]
        builder.add("Identity", name, device, inputs, T=node.attr["T"])
        return
    origin = {target: source for source, target in source_target_pairs(node, builder.nodes)}
    for replica in builder.replicas:
        name, device = instance(node.name, replica), builder.cores[replica][0]
        # A core that receives nothing gets zeros, as on a TPU.
        op = "Identity" if replica in origin else "ZerosLike"
        inputs = [builder.tensor(value, origin.get(replica, replica))]
        builder.add(op, name, device, inputs + builder.waits(node, replica), T=node.attr["T"])
        output = ":output:0" if replica in origin else ":y:0"
        builder.tensors[node.name, ":output:0", replica] = name + output
