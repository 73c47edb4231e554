"""Updates of variables that are the same on every core, and copies of variables."""

from __future__ import annotations

from collections.abc import Sequence

from tpunb.virtual._tensorflow import AttrValue, NodeDef
from tpunb.virtual.replicate.builder import Builder
from tpunb.virtual.replicate.effects import ASSIGNMENTS, READS
from tpunb.virtual.replicate.graphs import Reference, data_inputs
from tpunb.virtual.replicate.nodes import argument_name, instance
from tpunb.virtual.replicate.write_copies import write_copy


def write_update(builder: Builder, node: NodeDef) -> None:
    """Writes an update that is the same on every core: computed once and broadcast."""
    sources = data_inputs(node)
    handles = [source for source in sources if builder.is_resource(source)]
    kind = node.attr["dtype"] if "dtype" in node.attr else node.attr["T"]
    name, device = instance(node.name, 0), builder.cores[0][0]
    if node.op in ASSIGNMENTS:
        values = [_assigned(builder, node, name, device, kind)]
        first = 0
    else:
        write_copy(builder, node, 0)
        values = [
            _read(builder, f"{name}/updated_{k}", handle, kind, [f"^{name}"])
            for k, handle in enumerate(handles)
        ]
        builder.controls[node.name, 0] = [name]
        first = 1
    for replica in builder.replicas[first:]:
        builder.controls[node.name, replica] = [
            builder.add(
                "AssignVariableOp",
                instance(node.name, replica) + (f"/{k}" if k else ""),
                builder.device_of(handle, replica),
                [
                    builder.tensor(handle, replica),
                    builder.broadcast(value, kind, replica),
                    *builder.waits(node, replica),
                ],
                dtype=kind,
            )
            for k, (handle, value) in enumerate(zip(handles, values, strict=True))
        ]


def _assigned(builder: Builder, node: NodeDef, name: str, device: str, kind: AttrValue) -> str:
    """The new value of a variable, computed on the first core."""
    handle, value = data_inputs(node)
    if node.op == "AssignVariableOp":
        return builder.tensor(value, 0)
    old = _read(builder, f"{name}/old", handle, kind, builder.waits(node, 0))
    op = "AddV2" if node.op == "AssignAddVariableOp" else "Sub"
    builder.add(op, f"{name}/new", device, [old, builder.tensor(value, 0)], T=kind)
    return f"{name}/new:z:0"


def _read(
    builder: Builder, name: str, handle: Reference, kind: AttrValue, waits: Sequence[str]
) -> str:
    inputs = [builder.tensor(handle, 0), *waits]
    builder.add("ReadVariableOp", name, builder.device_of(handle, 0), inputs, dtype=kind)
    return f"{name}:value:0"


def write_last_values(builder: Builder, argument: str, dtype: int) -> list[str]:
    """Copies a variable's last value to the other logical devices that hold it.

    Only a TPU needs the copies: every read here is from the first device.

    Args:
        builder: Has written the function's nodes.
        argument: The variable's handle.
        dtype: The type of its value.

    Returns:
        The names of the nodes that copy.
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
