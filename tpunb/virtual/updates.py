"""Updates of variables that are the same on every core, and copies of variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpunb.virtual._tensorflow import AttrValue, NodeDef, dtypes
from tpunb.virtual.graphs import Reference, data_inputs
from tpunb.virtual.nodes import argument_name, instance
from tpunb.virtual.spread import ASSIGNMENTS, READS

if TYPE_CHECKING:
    from tpunb.virtual.writer import Writer

_RESOURCE = dtypes.resource.as_datatype_enum


def write_update(writer: Writer, node: NodeDef) -> None:
    """Writes an update that is the same on every core: computed once, handed to all."""
    sources = data_inputs(node)
    handles = [s for s in sources if writer.types.get(s.source) == _RESOURCE]
    kind = node.attr["dtype"] if "dtype" in node.attr else node.attr["T"]
    name, device = instance(node.name, 0), writer.cores[0][0]
    if node.op in ASSIGNMENTS:
        values = [_assigned(writer, node, name, device, kind)]
        first = 0
    else:
        writer.copy(node, 0)
        values = [
            _read(writer, f"{name}/updated_{k}", handle, kind, [f"^{name}"])
            for k, handle in enumerate(handles)
        ]
        writer.controls[node.name, 0] = [name]
        first = 1
    for replica in writer.replicas[first:]:
        writer.controls[node.name, replica] = [
            writer.add(
                "AssignVariableOp",
                instance(node.name, replica) + (f"/{k}" if k else ""),
                writer.device_of(handle, replica),
                [
                    writer.tensor(handle, replica),
                    writer.handed_on(value, kind, replica),
                    *writer.waits(node, replica),
                ],
                dtype=kind,
            )
            for k, (handle, value) in enumerate(zip(handles, values, strict=True))
        ]


def _assigned(writer: Writer, node: NodeDef, name: str, device: str, kind: AttrValue) -> str:
    """The new value of a variable, computed on the first core."""
    handle, value = data_inputs(node)
    if node.op == "AssignVariableOp":
        return writer.tensor(value, 0)
    old = _read(writer, f"{name}/old", handle, kind, writer.waits(node, 0))
    op = "AddV2" if node.op == "AssignAddVariableOp" else "Sub"
    writer.add(op, f"{name}/new", device, [old, writer.tensor(value, 0)], T=kind)
    return f"{name}/new:z:0"


def _read(
    writer: Writer, name: str, handle: Reference, kind: AttrValue, waits: Sequence[str]
) -> str:
    inputs = [writer.tensor(handle, 0), *waits]
    writer.add("ReadVariableOp", name, writer.device_of(handle, 0), inputs, dtype=kind)
    return f"{name}:value:0"


def copied(writer: Writer, argument: str) -> list[str]:
    """Hands a variable's last value on to the other logical devices that hold it.

    They are a TPU's concern alone: every read is from the first.
    """
    changes = [
        node.name
        for node in writer.found.order
        if node.op not in READS and any(source.source == argument for source in data_inputs(node))
    ]
    if not changes:
        return []
    kind = AttrValue(type=writer.copies[argument])
    added = []
    for replica in writer.replicas:
        waits = [f"^{name}" for change in changes for name in writer.ends(change, replica)]
        name, logical = f"{argument}/replica_{replica}/last", writer.cores[replica]
        inputs = [argument_name(argument, replica), *dict.fromkeys(waits)]
        writer.add("ReadVariableOp", name, logical[0], inputs, dtype=kind)
        for core in writer.further_cores():
            inputs = [argument_name(argument, replica, core), f"{name}:value:0"]
            copy = f"{argument}/replica_{replica}/copy_{core}"
            added.append(writer.add("AssignVariableOp", copy, logical[core], inputs, dtype=kind))
    return added
