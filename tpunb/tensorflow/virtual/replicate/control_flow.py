"""The nodes of a function for all replicas, with its loops and branches.

Control flow around a collective becomes one loop or branch for all replicas: it takes and gives a
value of each replica, and its condition must be the same on all of them. Joined control flow
computes the values of all replicas in one tensor. Other control flow is written for each replica.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpunb.tensorflow.virtual.graph.function_def import (
    LOOPS,
    Reference,
    add_constant,
    data_inputs,
    function_attributes,
    integer,
    reference,
    returned,
    set_types,
    type_of,
    types_of,
)
from tpunb.tensorflow.virtual.private_names import AttrValue, NodeDef, dtypes
from tpunb.tensorflow.virtual.replicate.builder import Builder
from tpunb.tensorflow.virtual.replicate.variance import (
    Body,
    Role,
    Variance,
    analyze,
    body_arguments,
)
from tpunb.tensorflow.virtual.replicate.workarounds import keep_arithmetic, keep_from_folding
from tpunb.tensorflow.virtual.replicate.writer import (
    take_turns,
    write_collective,
    write_copies,
    write_effects,
    write_results,
    write_update,
)


def write_lifted(builder: Builder, node: NodeDef) -> None:
    """Write control flow containing collectives, widened to all replicas."""
    analysis, is_loop = builder.analysis, node.op in LOOPS
    sources = data_inputs(node) if is_loop else data_inputs(node)[1:]
    outputs = analysis.output_variances[node.name]
    variances = outputs if is_loop else [*map(analysis.variance, sources)]
    copy = builder.copy_of(node, 0)
    copy.device = builder.cores[0][0]
    if not is_loop:
        # An `If` takes any type for true or false; a `Case` takes an index.
        dtype = dtypes.as_dtype(node.attr["Tcond"].type) if "Tcond" in node.attr else dtypes.int32
        last = len(node.attr["branches"].list.func) - 1 if "branches" in node.attr else None
        predicate = data_inputs(node)[0]
        copy.input.append(_agreed(builder, f"{node.name}/agreed", predicate, dtype, last))
    types = _widened(builder, node.attr["T" if is_loop else "Tin"], sources, variances)
    for source, variance in zip(sources, variances, strict=True):
        replicas = builder.own(source, variance)
        copy.input.extend(builder.tensor(source, replica) for replica in replicas)
    copy.input.extend(builder.all_waits(node, builder.replicas))
    # A loop returns what it takes, including handles of variables.
    results = (
        sources if is_loop else [Reference(node.name, f":output:{k}") for k in range(len(outputs))]
    )
    result_types = _widened(builder, node.attr["T" if is_loop else "Tout"], results, outputs)
    set_types(copy, types, result_types)
    for function in function_attributes(copy):
        is_condition = is_loop and function.name == node.attr["cond"].func.name
        body = builder.copies.library(function.name)
        names = [argument.name for argument in body.signature.input_arg]
        arguments = body_arguments(names, sources, variances, analysis.arguments)
        inner = analyze(body, arguments, builder.copies.library)
        inside = builder.for_body(body, inner, f"{builder.path}{node.name}/")
        write_nodes(inside)
        if is_condition:
            _write_condition(inside)
        else:
            write_results(inside, returned(body), outputs)
            write_effects(inside)
        function.name = builder.lift(inside)
    copy.attr["_lower_using_switch_merge"].b = True
    first = 0
    for index, (source, variance) in enumerate(zip(results, outputs, strict=True)):
        outputs_of = {owner: first + k for k, owner in enumerate(builder.own(source, variance))}
        for replica in builder.replicas:
            output = outputs_of.get(builder.handles.holder(source, replica), first)
            text = f"{copy.name}:output:{output}"
            builder.give(node.name, f":output:{index}", replica, text)
        first += len(outputs_of)
    for replica in builder.replicas:
        builder.end(node.name, replica, [copy.name])


def _widened(
    builder: Builder,
    types: AttrValue,
    sources: Sequence[Reference],
    variances: Sequence[Variance],
) -> list[int]:
    """Return the types of control flow's inputs or outputs, once for each replica with its own."""
    return [
        dtype
        for dtype, source, variance in zip(types.list.type, sources, variances, strict=True)
        for _ in builder.own(source, variance)
    ]


def _write_condition(builder: Builder) -> None:
    """Write the result of a loop's condition; all replicas must agree on it."""
    output = builder.function.signature.output_arg[0]
    source = reference(builder.function.ret[output.name])
    agreed = _agreed(builder, f"{builder.path}agreed", source, dtypes.bool)
    builder.return_tensor(output.name, output.type, agreed)


_DISAGREEMENT = (
    "The replicas disagree about a condition around a cross-replica operation. A TPU hangs if only "
    "some of them reach the operation. The condition on each replica:"
)
"""The error of a step whose replicas disagree about a condition."""


def _agreed(
    builder: Builder, name: str, source: Reference, dtype: dtypes.DType, last: int | None = None
) -> str:
    """Return a condition that fails at run time unless it is the same on every replica.

    Args:
        builder: The builder of the function.
        name: The name of the new node.
        source: The condition, a scalar.
        dtype: The type of the condition.
        last: The last branch, which also serves every index outside of the list; None if the
            condition is not an index.
    """
    if builder.analysis.variance(source) is not Variance.VARYING:
        return builder.tensor(source, 0)
    values = [builder.tensor(source, replica) for replica in builder.replicas]
    device = builder.cores[0][0]
    if last is not None:
        values = _branches(builder, name, values, last)
    attribute, number = type_of(dtype), integer(len(values))
    builder.add("Pack", f"{name}/all", device, values, T=attribute, N=number, axis=integer(0))
    builder.add("Identity", f"{name}/first", device, values[:1], T=attribute)
    compared = [f"{name}/all:output:0", f"{name}/first:output:0"]
    builder.add("Equal", f"{name}/equal", device, compared, T=attribute)
    axis = add_constant(builder.add, f"{name}/axis", device, 0, dtypes.int32)
    builder.add("All", f"{name}/each", device, [f"{name}/equal:z:0", axis])
    text = add_constant(builder.add, f"{name}/text", device, _DISAGREEMENT, dtypes.string)
    checked = builder.add(
        "Assert",
        f"{name}/assert",
        device,
        [f"{name}/each:output:0", text, f"{name}/all:output:0"],
        T=types_of([dtypes.string, dtype]),
        summarize=number,
    )
    inputs = [f"{name}/first:output:0", f"^{checked}"]
    builder.add("Identity", name, device, inputs, T=attribute)
    return f"{name}:output:0"


def _branches(builder: Builder, name: str, values: Sequence[str], last: int) -> list[str]:
    """Return the index of the branch that each replica takes, from any index."""
    device = builder.cores[0][0]
    limit = add_constant(builder.add, f"{name}/last", device, last, dtypes.int32)
    # As a number without a sign, a negative index is larger than every other index.
    unsigned = {"T": type_of(dtypes.int32), "type": type_of(dtypes.uint32)}
    back = {"T": type_of(dtypes.uint32), "type": type_of(dtypes.int32)}
    builder.add("Bitcast", f"{name}/limit", device, [limit], **unsigned)
    branches = []
    for replica, value in zip(builder.replicas, values, strict=True):
        whole, least, index = (f"{name}/{part}_{replica}" for part in ("whole", "least", "index"))
        builder.add("Bitcast", whole, device, [value], **unsigned)
        inputs = [f"{whole}:output:0", f"{name}/limit:output:0"]
        builder.add("Minimum", least, device, inputs, T=type_of(dtypes.uint32))
        builder.add("Bitcast", index, device, [f"{least}:z:0"], **back)
        branches.append(f"{index}:output:0")
    return branches


def write_joined(builder: Builder, node: NodeDef) -> None:
    """Write the node that replaces the nodes of all replicas, following its plan."""
    plan = builder.analysis.plans[node.name]
    joined = builder.copy_of(node, 0)
    if plan.op:
        joined.op = plan.op
        joined.attr.clear()
    for key, value in plan.attributes.items():
        joined.attr[key].CopyFrom(value)
    if plan.bodies:
        names = {name: _write_body(builder, node, body) for name, body in plan.bodies.items()}
        for function in function_attributes(joined):
            function.name = names[function.name]
        keys = ("T", "T") if node.op in LOOPS else ("Tin", "Tout")
        set_types(joined, *(list(node.attr[key].list.type) for key in keys))
        # As a kernel it runs its functions unchanged.
        joined.attr["_lower_using_switch_merge"].b = False
    sources = data_inputs(node)
    joined.input.extend(
        builder.joined.input(sources[index], take)
        if take.constant is None
        else builder.joined.constant(take)
        for index, take in enumerate(plan.takes)
    )
    keep_arithmetic(builder.add, node, joined, builder.nodes)
    joined.input.extend(builder.waits(node, 0))
    builder.sign(joined)
    if plan.bodies:
        keep_from_folding(builder.add, joined)


def _write_body(builder: Builder, node: NodeDef, body: Body) -> str:
    """Write a function of joined control flow for all replicas and return its name."""
    inside = builder.for_body(body.function, body.analysis, f"{builder.path}{node.name}/")
    write_nodes(inside)
    for index, (result, form) in enumerate(zip(returned(body.function), body.gives, strict=True)):
        tensor = inside.joined.in_form(result.source, form)
        inside.return_tensor(f"output_{index}", result.type, tensor)
    write_effects(inside)
    for inner_node in list(inside.result.node_def):
        if inner_node.op == "Pack" and not inner_node.input[0].endswith("/hidden:output:0"):
            keep_from_folding(inside.add, inner_node, in_body=True)
    return builder.lift(inside)


_WIRED = frozenset({Role.COLLECTIVE, Role.LIFTED})
"""The roles of nodes that are checked even if nothing needs them, so they need their inputs."""


def write_nodes(builder: Builder) -> None:
    """Write the nodes of a function in their roles."""
    write = {
        Role.COLLECTIVE: write_collective,
        Role.UPDATE: write_update,
        Role.LIFTED: write_lifted,
        Role.JOINED: write_joined,
        Role.COMPUTE: write_copies,
    }
    nodes, roles = builder.analysis.order, builder.analysis.roles
    unused = {node.name for node in nodes if not builder.runs(node)}
    if not any(roles[name] in _WIRED for name in unused):
        # TensorFlow would prune them, but from a graph that is larger by all replicas' copies.
        nodes = [node for node in nodes if node.name not in unused]
    for node in nodes:
        write[roles[node.name]](builder, node)
    take_turns(builder)
