"""Nodes written as they were traced, once or once for each replica."""

from __future__ import annotations

from tpunb.virtual._tensorflow import NodeDef
from tpunb.virtual.devices import full_name
from tpunb.virtual.graph.function_def import BRANCHES, CONTROL_FLOW, called_functions, data_inputs
from tpunb.virtual.graph.nodes import instance
from tpunb.virtual.replicate.builder import Builder
from tpunb.virtual.replicate.empty_batches import guard
from tpunb.virtual.replicate.folding import keep_from_folding

_FIRST_DEVICE = full_name("/device:CPU:0")


def write_copies(builder: Builder, node: NodeDef) -> None:
    """Writes a node for each replica, or for the first if all share its value."""
    for replica in builder.replicas if builder.is_repeated(node.name) else (0,):
        write_copy(builder, node, replica)


def write_copy(builder: Builder, node: NodeDef, replica: int) -> NodeDef:
    """Writes a node as it was traced, for one replica, and gives it."""
    copy = builder.result.node_def.add()
    copy.CopyFrom(node)
    copy.name = instance(node.name, replica)
    copy.device = builder.device(node, replica)
    del copy.input[:]
    copy.input.extend(builder.tensor(source, replica) for source in data_inputs(node))
    repeated = builder.is_repeated(node.name)
    copy.input.extend(builder.waits(node, replica) if repeated else builder.waits_of_one(node))
    # It asks to be on a device with nodes that may have other names here.
    copy.attr.pop("_class", None)
    if node.op in CONTROL_FLOW:
        # Run as a kernel its body stays on the replica's core; lowered, it would not. That
        # is wanted where it uses what is on several devices.
        lowered = _is_on_two_devices(builder, node) or _is_assertion(builder, node, copy.device)
        copy.attr["_lower_using_switch_merge"].b = lowered
    if builder.runs(node):
        keep_from_folding(builder.add, copy, in_body=bool(builder.path))
    functions = builder.setting.function_copies
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
    bodies = map(builder.setting.library, called_functions(node))
    return any(inner.op == "Assert" for body in bodies for inner in body.node_def)
