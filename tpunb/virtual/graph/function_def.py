"""FunctionDefs as something to read: nodes, references, order, effects, nested functions.

TensorFlow's functions are protocol buffers. A node of a function names its
inputs in three ways: ``arg`` is an argument of the function, ``node:output:k``
the k-th tensor of a node's output, and ``^node`` a control dependency.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator

from tpunb.virtual._tensorflow import FunctionDef, NodeDef, op_def_registry

Library = Callable[[str], FunctionDef]
"""Finds a function by its name."""

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
COLLECTIVES = frozenset({"CrossReplicaSum", "AllToAll", "CollectivePermute"})
LOOPS = frozenset({"While", "StatelessWhile"})
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
CONTROL_FLOW = LOOPS | BRANCHES

OUTSIDE = "_xla_outside_compilation"
"""What `tf.compat.v1.tpu.outside_compilation` marks runs on the host, as it was asked to."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """Where a node's input comes from.

    Attributes:
        source: The name of an argument or of a node.
        suffix: ``:output:k`` for a node's tensor, empty for an argument.
    """

    source: str
    suffix: str

    @property
    def index(self) -> int:
        """Which tensor of the output list it is."""
        return int(self.suffix.rsplit(":", 1)[1])


def reference(text: str) -> Reference:
    """Reads ``arg`` or ``node:output:k``."""
    source, colon, rest = text.partition(":")
    return Reference(source, colon + rest)


def data_inputs(node: NodeDef) -> list[Reference]:
    """The tensors that a node takes, in order."""
    return [reference(text) for text in node.input if not text.startswith("^")]


def control_inputs(node: NodeDef) -> list[str]:
    """The nodes that must have run before a node."""
    return [text[1:] for text in node.input if text.startswith("^")]


@dataclasses.dataclass(frozen=True, slots=True)
class Returned:
    """What a function returns.

    Attributes:
        source: The tensor.
        type: Its type, as protocol buffers number it.
    """

    source: Reference
    type: int


def returned(function: FunctionDef) -> list[Returned]:
    """What a function returns, in order."""
    outputs = function.signature.output_arg
    return [Returned(reference(function.ret[output.name]), output.type) for output in outputs]


def called_functions(node: NodeDef) -> Iterator[str]:
    """The names of the functions in a node's attributes."""
    for value in node.attr.values():
        if value.WhichOneof("value") == "func":
            yield value.func.name
        for function in value.list.func:
            yield function.name


def is_stateful(node: NodeDef) -> bool:
    """Whether running a node twice differs from running it once."""
    definition = op_def_registry.get(node.op)
    return definition is None or bool(definition.is_stateful)


def has_collectives(function: FunctionDef, library: Library) -> bool:
    """Whether a function, or one that it calls, contains collectives."""
    return any(
        node.op in COLLECTIVES
        or any(has_collectives(library(name), library) for name in called_functions(node))
        for node in function.node_def
    )


def has_outside(function: FunctionDef, library: Library) -> bool:
    """Whether a function, or one that it calls, is to run on the host in part."""
    return any(
        OUTSIDE in node.attr
        or any(has_outside(library(name), library) for name in called_functions(node))
        for node in function.node_def
    )


def needed(function: FunctionDef, *, without: Collection[str] = ()) -> set[str]:
    """The nodes that a function's results and effects come from; others do not run.

    Args:
        function: The function.
        without: Operations that do not count as using what they take.
    """
    nodes = {node.name: node for node in function.node_def}
    pending = [text.partition(":")[0] for text in function.ret.values()]
    pending += function.control_ret.values()
    pending += [name for name, node in nodes.items() if is_stateful(node)]
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name in nodes and name not in found:
            found.add(name)
            if nodes[name].op not in without:
                pending += [text.lstrip("^").partition(":")[0] for text in nodes[name].input]
    return found


def in_topological_order(nodes: Iterable[NodeDef]) -> list[NodeDef]:
    """Nodes so ordered that each comes after all of its inputs."""
    by_name = {node.name: node for node in nodes}
    waiting = {
        name: {
            source
            for source in (text.lstrip("^").partition(":")[0] for text in node.input)
            if source in by_name
        }
        for name, node in by_name.items()
    }
    consumers: dict[str, list[str]] = {name: [] for name in by_name}
    for name, sources in waiting.items():
        for source in sources:
            consumers[source].append(name)
    ready = [name for name, sources in waiting.items() if not sources]
    remaining = {name: len(sources) for name, sources in waiting.items()}
    order: list[NodeDef] = []
    while ready:
        name = ready.pop()
        order.append(by_name[name])
        for consumer in consumers[name]:
            remaining[consumer] -= 1
            if not remaining[consumer]:
                ready.append(consumer)
    if len(order) != len(by_name):
        raise AssertionError("A function's graph has a cycle.")
    return order


READS = frozenset({"ReadVariableOp", "VariableShape", "ResourceGather", "ResourceGatherNd"})
ASSIGNMENTS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})

# How the names of operations begin that change a variable; the last two advance
# a random generator's state.
_WRITERS = ("Assign", "Resource", "Rng", "Stateful")


def writes_variables(function: FunctionDef, library: Library) -> bool:
    """Whether a function may change a variable."""
    return any(
        (node.op not in READS | CALLS and node.op.startswith(_WRITERS))
        or any(writes_variables(library(name), library) for name in called_functions(node))
        for node in function.node_def
    )


def is_read(function: FunctionDef, argument: str, library: Library) -> bool:
    """Whether a function, or one that it calls, reads the variable of an argument."""
    for node in function.node_def:
        for place, source in enumerate(data_inputs(node)):
            if source.source != argument:
                continue
            if node.op in READS:
                return True
            inner = place - (node.op in BRANCHES)  # a branch does not see its condition
            for body in map(library, called_functions(node)):
                names = [one.name for one in body.signature.input_arg]
                if 0 <= inner < len(names) and is_read(body, names[inner], library):
                    return True
    return False


def has_effects(function: FunctionDef, library: Library) -> bool:
    """Whether a function does more than compute its results and read variables."""
    return any(
        (is_stateful(node) and node.op not in READS and node.op not in CONTROL_FLOW)
        or any(has_effects(library(name), library) for name in called_functions(node))
        for node in function.node_def
    )


def only_updates(node: NodeDef) -> bool:
    """Whether all that a node gives are new values of variables, of a type it names."""
    definition = op_def_registry.get(node.op)
    has_outputs = definition is None or len(definition.output_arg) > 0
    return not has_outputs and ("dtype" in node.attr or "T" in node.attr)
