"""Control flow in which replicas talk: one loop or branch for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpunb.virtual._tensorflow import AttrValue, FunctionDef, NodeDef, dtypes
from tpunb.virtual.graphs import LOOPS, Reference, data_inputs, reference
from tpunb.virtual.nodes import instance, integer, set_types, type_of, types_of
from tpunb.virtual.spread import Argument, Kind, body_arguments, spread

if TYPE_CHECKING:
    from tpunb.virtual.writer import Writer


def write_lifted(writer: Writer, node: NodeDef) -> None:
    """Writes a loop or a branch in which replicas talk, widened to all of them."""
    sources, lists = data_inputs(node), writer.found.output_kinds[node.name]
    looped = node.op in LOOPS
    state = sources if looped else sources[1:]
    kinds = list(lists) if looped else [writer.found.kind(source) for source in state]
    copy = writer.result.node_def.add()
    copy.CopyFrom(node)
    copy.name = instance(node.name, 0)
    copy.device = writer.cores[0][0]
    del copy.input[:]
    if not looped:
        copy.input.append(_agreed(writer, node, sources[0]))
    types: list[int] = []
    for source, kind in zip(state, kinds, strict=True):
        values = _spread_input(writer, source, kind)
        copy.input.extend(values)
        types.extend([_type_of(writer, node, source, state)] * len(values))
    copy.input.extend(writer.all_waits(node, writer.replicas))
    set_types(copy, types, _output_types(writer, node, lists, looped, types))
    for key in sorted(copy.attr):
        path = f"{writer.path}{node.name}/"
        _lift_bodies(writer, copy.attr[key], key, path, state, kinds, lists)
    copy.attr["_lower_using_switch_merge"].b = True
    _name_lifted_outputs(writer, node, lists)


def _spread_input(writer: Writer, source: Reference, kind: Kind) -> list[str]:
    argument = writer.found.arguments.get(source.source)
    if kind is Kind.VARYING or (argument is not None and argument.per_replica):
        return [writer.tensor(source, replica) for replica in writer.replicas]
    return [writer.tensor(source, 0)]


def _type_of(writer: Writer, node: NodeDef, source: Reference, state: Sequence[Reference]) -> int:
    key = "T" if node.op in LOOPS else "Tin"
    return int(node.attr[key].list.type[list(state).index(source)])


def _output_types(
    writer: Writer, node: NodeDef, kinds: Sequence[Kind], looped: bool, inputs: list[int]
) -> list[int]:
    if looped:
        return inputs
    return [
        kind
        for kind, many in zip(node.attr["Tout"].list.type, kinds, strict=True)
        for _ in (writer.replicas if many is Kind.VARYING else (0,))
    ]


def _lift_bodies(
    writer: Writer,
    value: AttrValue,
    key: str,
    path: str,
    sources: Sequence[Reference],
    kinds: Sequence[Kind],
    outputs: Sequence[Kind],
) -> None:
    functions = [value.func] if value.WhichOneof("value") == "func" else value.list.func
    for function in functions:
        function.name = _lifted_body(writer, function.name, key, path, sources, kinds, outputs)


def _lifted_body(
    writer: Writer,
    name: str,
    key: str,
    path: str,
    sources: Sequence[Reference],
    kinds: Sequence[Kind],
    outputs: Sequence[Kind],
) -> str:
    body = writer.library(name)
    names = [argument.name for argument in body.signature.input_arg]
    arguments = body_arguments(names, sources, kinds, writer.found.arguments)
    diverged = frozenset(
        inner
        for inner, source in zip(names, sources, strict=True)
        if source.source in writer.found.diverged
    )
    found = spread(body, arguments, writer.library, diverged)
    homes = {
        inner: writer.homes[source.source]
        for inner, source in zip(names, sources, strict=True)
        if source.source in writer.homes
    }
    inside = writer.inside(body, found, homes, path)
    definition = _write_condition(inside) if key == "cond" else inside.write(outputs)
    writer.bodies += [*inside.bodies, definition]
    return str(definition.signature.name)


def _name_lifted_outputs(writer: Writer, node: NodeDef, kinds: Sequence[Kind]) -> None:
    place = 0
    for index, kind in enumerate(kinds):
        source = reference(f"{node.name}:output:{index}")
        handle = _is_handle_output(writer, node, index)
        for replica in writer.replicas:
            own = replica if kind is Kind.VARYING or handle else 0
            text = f"{instance(node.name, 0)}:output:{place + own}"
            writer.tensors[node.name, source.suffix, replica] = text
        place += len(writer.replicas) if kind is Kind.VARYING or handle else 1
    for replica in writer.replicas:
        writer.controls[node.name, replica] = [instance(node.name, 0)]


def _is_handle_output(writer: Writer, node: NodeDef, index: int) -> bool:
    if node.op not in LOOPS:
        return False
    argument = writer.found.arguments.get(data_inputs(node)[index].source)
    return argument in {Argument.MIRRORED, Argument.LOCAL}


def _agreed(writer: Writer, node: NodeDef, predicate: Reference) -> str:
    """A condition that all replicas must agree on."""
    if writer.found.kind(predicate) is not Kind.VARYING:
        return writer.tensor(predicate, 0)
    # An `If` takes any type for true or false; a `Case` takes an index.
    kind = dtypes.as_dtype(node.attr["Tcond"].type) if "Tcond" in node.attr else dtypes.int32
    values = [writer.tensor(predicate, replica) for replica in writer.replicas]
    return _assert_equal(writer, f"{node.name}/agreed", values, kind)


def _assert_equal(writer: Writer, name: str, values: Sequence[str], kind: dtypes.DType) -> str:
    """Fails unless scalars are equal, and gives the first of them."""
    device, attribute = writer.cores[0][0], type_of(kind)
    first = f"{name}/first"
    writer.add("Identity", first, device, [values[0]], T=attribute)
    checks = []
    for replica, value in enumerate(values[1:], 1):
        check = f"{name}/equal_{replica}"
        writer.add("Equal", check, device, [f"{first}:output:0", value], T=attribute)
        message = writer.text(f"{name}/message_{replica}", device, _disagreement(replica))
        writer.add(
            "Assert",
            f"{name}/assert_{replica}",
            device,
            [f"{check}:z:0", message],
            T=types_of([dtypes.string]),
            summarize=integer(1),
        )
        checks.append(f"^{name}/assert_{replica}")
    writer.add("Identity", name, device, [f"{first}:output:0", *checks], T=attribute)
    return f"{name}:output:0"


def _write_condition(writer: Writer) -> FunctionDef:
    """Writes a loop's condition, on which all replicas must agree."""
    writer.write_signature()
    for node in writer.found.order:
        writer.write_node(node)
    output = writer.function.signature.output_arg[0]
    source = reference(writer.function.ret[output.name])
    text = writer.tensor(source, 0)
    if writer.found.kind(source) is Kind.VARYING:
        values = [writer.tensor(source, replica) for replica in writer.replicas]
        text = _assert_equal(writer, "tpunb_agreed", values, dtypes.bool)
    writer.result.signature.output_arg.add().CopyFrom(output)
    writer.result.ret[output.name] = text
    return writer.result


def _disagreement(replica: int) -> str:
    return (
        f"Replica {replica} and replica 0 disagree about a condition around a cross-replica "
        "operation. On a TPU this hangs: make the condition the same on every replica."
    )
