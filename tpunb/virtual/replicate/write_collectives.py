"""Cross-replica operations, written as wiring between the replicas' nodes."""

from __future__ import annotations

from tpunb.virtual._tensorflow import NodeDef, dtypes
from tpunb.virtual.graph.collectives import (
    check,
    groups,
    is_broadcast,
    source_target_pairs,
)
from tpunb.virtual.graph.function_def import Reference, data_inputs
from tpunb.virtual.graph.nodes import add_constant, instance, integer, type_of
from tpunb.virtual.replicate.builder import Builder
from tpunb.virtual.replicate.joined_forms import Form


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
