"""A function rewritten from another function: nodes replaced or left out, calls written out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tpunb.tensorflow.virtual.graph.function_def import (
    CALLS,
    OUTSIDE,
    Library,
    called_functions,
    control_inputs,
    data_inputs,
    has_collectives,
    has_node,
    has_outside,
    in_topological_order,
    is_stateful,
    reference,
)
from tpunb.tensorflow.virtual.graph.kernels import RESIZES, compiles
from tpunb.tensorflow.virtual.private_names import FunctionDef, NodeDef


class Rewrite:
    """A new function written from another function, which is not changed.

    Nodes are written to `result` in any order, and refer to each other by their names in the old
    function. `finish` then points every reference at the replacement of its target.
    """

    def __init__(self, function: FunctionDef) -> None:
        self.result = FunctionDef()
        self.result.CopyFrom(function)
        del self.result.node_def[:]
        self._tensors: dict[str, str] = {}
        self._waits: dict[str, Sequence[str]] = {}

    def keep(self, node: NodeDef) -> NodeDef:
        """Write a copy of a node and return it for changes."""
        copy = self.result.node_def.add()
        copy.CopyFrom(node)
        return copy

    def replace(self, tensors: Mapping[str, str]) -> None:
        """Replace tensors with others, which may be replaced in turn."""
        self._tensors.update((old, new) for old, new in tensors.items() if old != new)

    def drop(self, name: str, waits: Iterable[str] = ()) -> None:
        """Leave out a node or an argument."""
        self.redirect_waits(name, waits)

    def redirect_waits(self, name: str, waits: Iterable[str]) -> None:
        """Make everything that waits for a node wait for other nodes."""
        self._waits[name] = list(waits)

    def finish(self) -> FunctionDef:
        """Point all references at the replacements of their targets and return the new function."""
        for node in self.result.node_def:
            data = [self._tensor(text) for text in node.input if not text.startswith("^")]
            waits = [f"^{name}" for name in self._remaining(control_inputs(node))]
            del node.input[:]
            node.input.extend([*data, *waits])
        for output, text in dict(self.result.ret).items():
            self.result.ret[output] = self._tensor(text)
        ends = dict(self.result.control_ret)
        self.result.control_ret.clear()
        for output, name in ends.items():
            for number, end in enumerate(self._remaining([name])):
                self.result.control_ret[f"{output}_{number}" if number else output] = end
        del self.result.signature.control_output[:]
        self.result.signature.control_output.extend(self.result.control_ret)
        return self.result

    def _tensor(self, text: str) -> str:
        while text in self._tensors:
            text = self._tensors[text]
        return text

    def _remaining(self, names: Iterable[str]) -> list[str]:
        """Return the nodes to wait for, with the replacements of those that are left out."""
        pending, seen = list(names), set[str]()
        remaining: dict[str, None] = {}
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                if name in self._waits:
                    pending.extend(self._waits[name])
                else:
                    remaining[name] = None
        return list(remaining)


_IDENTITIES = frozenset({"Identity", "IdentityN"})
_MUST_COMPILE = "_XlaMustCompile"


def inlined(function: FunctionDef, library: Library) -> FunctionDef:
    """Return a function in which the calls are replaced by the bodies of the called functions.

    A call that XLA must compile stays a call, with two exceptions: its body contains collectives,
    or part of the body runs on the host, because the user asked for it or because XLA cannot
    compile it. Such a call has to be opened, and a TPU would compile the rest anyway. If a call
    runs on the host, the calls inside it run there too.
    """
    flat = _one_level(function, library)
    while any(_opens(node, library) for node in flat.node_def):
        flat = _one_level(flat, library)
    return _waiting_for_effects(flat)


_MAY_FAIL = frozenset({"CheckNumerics", "CheckNumericsV2"})
"""Operations without an effect that are waited for all the same: they stop a step."""

_MOST_EFFECTS = 32
"""The largest number of effects that replace one pure node that is waited for.

Each node that waits gets this many control inputs, so more would make the graph larger, not faster.
"""


def _waiting_for_effects(function: FunctionDef) -> FunctionDef:
    """Replace pure nodes that others wait for by the effects that these nodes depend on.

    A node that waits for a call waits for the results of its body, such as a product. TensorFlow's
    optimizer (2.21) drops a wait for a read that such a product implies. Then it moves constants
    between products, so that the product no longer depends on the read: an assignment ran first.
    """
    nodes = {node.name: node for node in function.node_def}
    waited = {name for node in function.node_def for name in control_inputs(node)}
    waited.update(function.control_ret.values())
    if not any(name in nodes and _is_pure(nodes[name]) for name in waited):
        return function
    effects: dict[str, tuple[str, ...]] = {}
    for node in in_topological_order(function.node_def):
        effects[node.name] = (node.name,)
        if _is_pure(node):
            sources = [*(source.source for source in data_inputs(node)), *control_inputs(node)]
            behind = dict.fromkeys(name for source in sources for name in effects.get(source, ()))
            if len(behind) <= _MOST_EFFECTS:
                effects[node.name] = tuple(behind)
    rewrite = Rewrite(function)
    for node in function.node_def:
        rewrite.keep(node)
        if node.name in waited and effects[node.name] != (node.name,):
            rewrite.redirect_waits(node.name, effects[node.name])
    return rewrite.finish()


def _is_pure(node: NodeDef) -> bool:
    """Return whether a node has no effect, and groups no effects of others."""
    if node.op == "NoOp" or node.op in _MAY_FAIL or OUTSIDE in node.attr:
        return False
    return not is_stateful(node) and not called_functions(node)


def _opens(node: NodeDef, library: Library) -> bool:
    """Return whether a node is replaced by the body it calls, or by its inputs."""
    if node.op in _IDENTITIES:
        # Custom gradients, such as all-reduce's, leave IdentityN behind: values that differ between
        # replicas and values that do not differ pass it side by side.
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
        or has_node(body, library, lambda inner: inner.op in RESIZES or not compiles(inner))
    )


def _one_level(function: FunctionDef, library: Library) -> FunctionDef:
    """Write out the calls of a function, but not the calls within their bodies."""
    rewrite = Rewrite(function)
    for argument in function.signature.input_arg:
        rewrite.drop(argument.name)  # an argument exists from the beginning: nothing waits for it
    for node in function.node_def:
        if not _opens(node, library):
            rewrite.keep(node)
        elif node.op in _IDENTITIES:
            _bypass(node, rewrite)
        else:
            _write_body(node, library(node.attr["f"].func.name), rewrite)
    return rewrite.finish()


def _bypass(identity: NodeDef, rewrite: Rewrite) -> None:
    """Replace each output of an identity with its input."""
    sources = data_inputs(identity)
    for index, source in enumerate(sources):
        rewrite.replace({f"{identity.name}:output:{index}": f"{source.source}{source.suffix}"})
    rewrite.drop(identity.name, [source.source for source in sources if source.suffix])


def _write_body(call: NodeDef, body: FunctionDef, rewrite: Rewrite) -> None:
    """Write a called function's nodes instead of the call."""
    sources = data_inputs(call)
    arguments = {}
    for argument, source in zip(body.signature.input_arg, sources, strict=True):
        arguments[argument.name] = f"{source.source}{source.suffix}"
        # A node that waits for an argument waits for the argument's source.
        rewrite.drop(f"{call.name}/{argument.name}", [source.source] if source.suffix else [])
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
        copy = rewrite.keep(node)
        copy.name = f"{call.name}/{node.name}"
        copy.device = node.device or call.device
        if OUTSIDE in call.attr:
            copy.attr[OUTSIDE].CopyFrom(call.attr[OUTSIDE])
        del copy.input[:]
        copy.input.extend(renamed(text) for text in node.input)
        copy.input.extend(before)
    results = [renamed(body.ret[output.name]) for output in body.signature.output_arg]
    rewrite.replace({f"{call.name}:output:{k}": text for k, text in enumerate(results)})
    # A node that waits for the call waits for the body's effects. If the body has none, the node
    # still waits for the nodes that the call was waiting for.
    effects = [f"{call.name}/{name}" for name in body.control_ret.values()]
    effects += [item.source for item in map(reference, results) if item.suffix]
    rewrite.drop(call.name, dict.fromkeys(effects) or control_inputs(call))
