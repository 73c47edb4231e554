"""Cross-replica operations, written as wiring between the replicas' nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpunb.virtual._tensorflow import NodeDef, dtypes
from tpunb.virtual.collectives import check, groups, is_broadcast, source_target_pairs
from tpunb.virtual.graphs import data_inputs
from tpunb.virtual.nodes import instance, integer, type_of

if TYPE_CHECKING:
    from tpunb.virtual.writer import Writer


def write_collective(writer: Writer, node: NodeDef) -> None:
    """Writes what a cross-replica operation does as wiring between the replicas."""
    check(node, writer.nodes, len(writer.cores))
    write = {
        "CrossReplicaSum": _write_sum,
        "AllToAll": _write_exchange,
        "CollectivePermute": _write_permutation,
    }
    write[node.op](writer, node)


def _write_sum(writer: Writer, node: NodeDef) -> None:
    value = data_inputs(node)[0]
    joined = groups(node, writer.nodes)
    for group in joined:
        first = group[0]
        name = instance(node.name, first if len(joined) > 1 else 0)
        inputs = [writer.tensor(value, replica) for replica in group]
        inputs += writer.all_waits(node, group)
        device = writer.cores[first][0]
        writer.add("AddN", name, device, inputs, T=node.attr["T"], N=integer(len(group)))
        for replica in group:
            total = writer.handed_on(f"{name}:sum:0", node.attr["T"], replica, first)
            writer.tensors[node.name, ":output:0", replica] = total
            writer.controls[node.name, replica] = [name]


def _write_exchange(writer: Writer, node: NodeDef) -> None:
    value = data_inputs(node)[0]
    split, concat, count = (
        node.attr[key].i for key in ("split_dimension", "concat_dimension", "split_count")
    )
    kind = node.attr["T"]
    for replica in writer.replicas:
        name, device = instance(node.name, replica), writer.cores[replica][0]
        axis = writer.constant(f"{name}/split_dim", device, split)
        inputs = [axis, writer.tensor(value, replica), *writer.waits(node, replica)]
        writer.add("Split", f"{name}/split", device, inputs, T=kind, num_split=integer(count))
    for group in groups(node, writer.nodes):
        for place, replica in enumerate(group):
            name, device = instance(node.name, replica), writer.cores[replica][0]
            axis = writer.constant(f"{name}/concat_dim", device, concat)
            parts = [f"{instance(node.name, k)}/split:output:{place}" for k in group]
            writer.add(
                "ConcatV2",
                name,
                device,
                [*parts, axis],
                T=kind,
                N=integer(len(parts)),
                Tidx=type_of(dtypes.int32),
            )
            writer.tensors[node.name, ":output:0", replica] = f"{name}:output:0"


def _write_permutation(writer: Writer, node: NodeDef) -> None:
    value = data_inputs(node)[0]
    if is_broadcast(node, writer.nodes):
        name, device = instance(node.name, 0), writer.cores[0][0]
        inputs = [writer.tensor(value, 0), *writer.waits(node, 0)]
        writer.add("Identity", name, device, inputs, T=node.attr["T"])
        return
    origin = {target: source for source, target in source_target_pairs(node, writer.nodes)}
    for replica in writer.replicas:
        name, device = instance(node.name, replica), writer.cores[replica][0]
        # A core that nobody sends to gets zeros, as on a TPU.
        op = "Identity" if replica in origin else "ZerosLike"
        inputs = [writer.tensor(value, origin.get(replica, replica))]
        writer.add(op, name, device, inputs + writer.waits(node, replica), T=node.attr["T"])
        output = ":output:0" if replica in origin else ":y:0"
        writer.tensors[node.name, ":output:0", replica] = name + output
