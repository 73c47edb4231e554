"""Nodes that do once, on joined tensors, what would be done on each replica."""

from __future__ import annotations

from collections.abc import Iterator

from tpunb.virtual._tensorflow import NodeDef
from tpunb.virtual.graph.function_def import data_inputs
from tpunb.virtual.graph.nodes import instance
from tpunb.virtual.replicate.builder import Builder
from tpunb.virtual.replicate.joined_forms import Plan


def write_joined(builder: Builder, node: NodeDef) -> None:
    """Writes a node that stands for those of all replicas, as its plan says."""
    plan = builder.analysis.plans[node.name]
    joined = builder.result.node_def.add()
    joined.CopyFrom(node)
    joined.name = instance(node.name, 0)
    joined.device = builder.device(node, 0)
    if plan.op:
        joined.op = plan.op
        joined.attr.clear()
    joined.attr.pop("_class", None)
    for key, value in plan.attributes.items():
        joined.attr[key].CopyFrom(value)
    del joined.input[:]
    joined.input.extend(_inputs(builder, node, plan))
    joined.input.extend(builder.waits_of_one(node))


def _inputs(builder: Builder, node: NodeDef, plan: Plan) -> Iterator[str]:
    sources = data_inputs(node)
    for place, take in enumerate(plan.takes):
        if take.constant is not None:
            yield builder.joined.constant(take)
        else:
            yield builder.joined.input(sources[place], take)
