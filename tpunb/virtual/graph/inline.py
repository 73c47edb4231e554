"""Nested function calls written out, so that one flat graph is left."""

from __future__ import annotations

from collections.abc import Iterable

from tpunb.virtual._tensorflow import FunctionDef, NodeDef
from tpunb.virtual.graph.function_def import (
    CALLS,
    OUTSIDE,
    Library,
    called_functions,
    control_inputs,
    data_inputs,
    has_collectives,
    has_outside,
    reference,
)
from tpunb.virtual.graph.kernels import RESIZES, compiles

_IDENTITIES = frozenset({"Identity", "IdentityN"})
_MUST_COMPILE = "_XlaMustCompile"


def inlined(function: FunctionDef, library: Library) -> FunctionDef:
    """A function in which the bodies of the functions that it calls stand in place.

    A call that must be compiled by XLA stays a call, unless its body contains
    collectives or runs on the host in part, as it was asked to or because XLA cannot
    compile it: then it has to be opened, and a TPU would compile the rest anyway. What a
    call to the host calls is the host's too.

    Args:
        function: The function; it is not changed.
        library: Finds the functions that it calls.

    Returns:
        A new function with the same signature.
    """
    flat = FunctionDef()
    flat.CopyFrom(function)
    _drop_waits_for_arguments(flat)
    while any(_opens(node, library) for node in flat.node_def):
        flat = _one_level(flat, library)
    return flat


def _drop_waits_for_arguments(function: FunctionDef) -> None:
    """Arguments are there from the beginning, and no nodes that others could wait for."""
    waits = {f"^{argument.name}" for argument in function.signature.input_arg}
    for node in function.node_def:
        if not waits.isdisjoint(node.input):
            kept = [text for text in node.input if text not in waits]
            del node.input[:]
            node.input.extend(kept)


def _opens(node: NodeDef, library: Library) -> bool:
    """Whether a node is replaced by the body it calls, or by its inputs."""
    if node.op in _IDENTITIES:
        # IdentityN is left behind by custom gradients, all-reduce's among them: values
        # that differ between replicas and values that do not pass it side by side.
        return not control_inputs(node) and not node.device
    if node.op not in CALLS:
        return False
    body = library(node.attr["f"].func.name)
    compiled = (
        node.attr[_MUST_COMPILE].b
        if _MUST_COMPILE in node.attr
        else _MUST_COMPILE in body.attr and body.attr[_MUST_COMPILE].b
    )
    return (
        not compiled
        or OUTSIDE in node.attr
        or has_collectives(body, library)
        or has_outside(body, library)
        or _beyond_the_compiler(body, library)
    )


def _beyond_the_compiler(function: FunctionDef, library: Library) -> bool:
    """Whether XLA has no kernel on a CPU for something in a function."""
    return any(
        node.op in RESIZES
        or not compiles(node)
        or any(_beyond_the_compiler(library(name), library) for name in called_functions(node))
        for node in function.node_def
    )


def _one_level(function: FunctionDef, library: Library) -> FunctionDef:
    """Writes out the calls of a function, but not those within their bodies."""
    result = FunctionDef()
    result.signature.CopyFrom(function.signature)
    for key, value in function.attr.items():
        result.attr[key].CopyFrom(value)
    tensors: dict[str, str] = {}
    controls: dict[str, list[str]] = {}
    for node in function.node_def:
        if not _opens(node, library):
            result.node_def.add().CopyFrom(node)
        elif node.op in _IDENTITIES:
            _bypass(node, tensors, controls)
        else:
            _write_body(node, library(node.attr["f"].func.name), result, tensors, controls)
    for node in result.node_def:
        _redirect(node, tensors, controls)
    for name, text in function.ret.items():
        result.ret[name] = _resolve(text, tensors)
    for name, target in function.control_ret.items():
        for number, control in enumerate(_settled([target], controls)):
            result.control_ret[f"{name}_{number}" if number else name] = control
    del result.signature.control_output[:]
    result.signature.control_output.extend(result.control_ret)
    return result


def _bypass(identity: NodeDef, tensors: dict[str, str], controls: dict[str, list[str]]) -> None:
    """Notes that each output of an identity is its input."""
    sources = data_inputs(identity)
    for index, source in enumerate(sources):
        tensors[f"{identity.name}:output:{index}"] = f"{source.source}{source.suffix}"
    controls[identity.name] = [source.source for source in sources if source.suffix]


def _write_body(
    call: NodeDef,
    body: FunctionDef,
    result: FunctionDef,
    tensors: dict[str, str],
    controls: dict[str, list[str]],
) -> None:
    """Adds a called function's nodes and notes what stands for the call now."""
    arguments = {
        argument.name: f"{source.source}{source.suffix}"
        for argument, source in zip(body.signature.input_arg, data_inputs(call), strict=True)
    }
    for argument, source in zip(body.signature.input_arg, data_inputs(call), strict=True):
        # What waits for an argument waits for what gives it.
        controls[f"{call.name}/{argument.name}"] = [source.source] if source.suffix else []
    before = [f"^{name}" for name in control_inputs(call)]
    names = {node.name for node in body.node_def}

    def renamed(text: str) -> str:
        if text.startswith("^"):
            return f"^{call.name}/{text[1:]}"
        source = reference(text)
        if source.source in names:
            return f"{call.name}/{text}"
        return arguments[source.source]

    for node in body.node_def:
        copy = result.node_def.add()
        copy.CopyFrom(node)
        copy.name = f"{call.name}/{node.name}"
        copy.device = node.device or call.device
        if OUTSIDE in call.attr:
            copy.attr[OUTSIDE].CopyFrom(call.attr[OUTSIDE])
        del copy.input[:]
        copy.input.extend(renamed(text) for text in node.input)
        copy.input.extend(before)
    for index, output in enumerate(body.signature.output_arg):
        tensors[f"{call.name}:output:{index}"] = renamed(body.ret[output.name])
    # What waits for the call waits for the body's effects; a body without any
    # still makes them wait for what the call itself was waiting for.
    effects = [f"{call.name}/{name}" for name in body.control_ret.values()]
    returned = {reference(renamed(text)) for text in body.ret.values()}
    effects += [item.source for item in returned if item.suffix and not item.source.startswith("^")]
    controls[call.name] = list(dict.fromkeys(effects)) or control_inputs(call)


def _resolve(text: str, tensors: dict[str, str]) -> str:
    while text in tensors:
        text = tensors[text]
    return text


def _settled(names: Iterable[str], controls: dict[str, list[str]]) -> list[str]:
    """What stands for nodes to wait for, of which some may be gone."""
    pending = list(names)
    seen: dict[str, None] = {}
    while pending:
        name = pending.pop()
        if name in controls:
            pending.extend(control for control in controls[name] if control not in seen)
        else:
            seen[name] = None
    return list(seen)


def _redirect(node: NodeDef, tensors: dict[str, str], controls: dict[str, list[str]]) -> None:
    """Points a node's inputs from calls that are gone to what replaced them."""
    data = [_resolve(text, tensors) for text in node.input if not text.startswith("^")]
    seen = _settled(control_inputs(node), controls)
    del node.input[:]
    node.input.extend(data)
    node.input.extend(f"^{name}" for name in seen)
