"""Nodes that do once, on joined tensors, what would be done on each replica."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tpunb.virtual._tensorflow import NodeDef
from tpunb.virtual.graph.function_def import LOOPS, data_inputs, returned
from tpunb.virtual.graph.nodes import instance, set_types
from tpunb.virtual.replicate.builder import Builder
from tpunb.virtual.replicate.folding import keep_from_folding
from tpunb.virtual.replicate.joined_forms import Plan
from tpunb.virtual.replicate.variance import Body
from tpunb.virtual.replicate.write_results import write_effects

_TYPES = {True: ("T", "T"), False: ("Tin", "Tout")}
"""The attributes that are the types of what a loop, or a branch, takes and gives."""


def write_joined(builder: Builder, node: NodeDef, write_nodes: Callable[[Builder], None]) -> None:
    """Writes a node that stands for those of all replicas, as its plan says.

    Args:
        builder: Where it is written.
        node: The node.
        write_nodes: Writes the nodes of a body.
    """
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
    if plan.bodies:
        _write_bodies(builder, node, joined, write_nodes)
    del joined.input[:]
    joined.input.extend(_inputs(builder, node, plan))
    joined.input.extend(builder.waits_of_one(node))
    if builder.path:
        builder.setting.function_copies.sign(joined, builder.path + joined.name)
    if plan.bodies:
        keep_from_folding(builder.add, joined)


def _inputs(builder: Builder, node: NodeDef, plan: Plan) -> Iterator[str]:
    sources = data_inputs(node)
    for place, take in enumerate(plan.takes):
        if take.constant is not None:
            yield builder.joined.constant(take)
        else:
            yield builder.joined.input(sources[place], take)


def _write_bodies(
    builder: Builder, node: NodeDef, joined: NodeDef, write_nodes: Callable[[Builder], None]
) -> None:
    """Writes the functions of a loop or a branch, and names them in it."""
    plan = builder.analysis.plans[node.name]
    names = {name: _written(builder, node, body, write_nodes) for name, body in plan.bodies.items()}
    for value in joined.attr.values():
        functions = [value.func] if value.WhichOneof("value") == "func" else value.list.func
        for function in functions:
            function.name = names[function.name]
    kinds = [list(node.attr[key].list.type) for key in _TYPES[node.op in LOOPS]]
    set_types(joined, *kinds)
    # As a kernel it runs its functions as they are.
    joined.attr["_lower_using_switch_merge"].b = False


def _written(
    builder: Builder, node: NodeDef, body: Body, write_nodes: Callable[[Builder], None]
) -> str:
    """Writes a function for all replicas and gives its name."""
    inside = builder.for_body(body.function, body.analysis, f"{builder.path}{node.name}/")
    write_nodes(inside)
    for index, (result, form) in enumerate(zip(returned(body.function), body.gives, strict=True)):
        added = inside.result.signature.output_arg.add(name=f"output_{index}", type=result.type)
        inside.result.ret[added.name] = inside.joined.taken(result.source, form)
    write_effects(inside)
    for one in list(inside.result.node_def):
        if one.op == "Pack" and not one.input[0].endswith("/hidden:output:0"):
            keep_from_folding(inside.add, one, in_body=True)
    builder.lifted += [*inside.lifted, inside.result]
    return str(inside.result.signature.name)
