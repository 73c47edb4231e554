"""Which values of a replica function differ between the replicas.

A replica function is traced once and then stands for all replicas. Most of its
nodes have to run once per replica, but not all: what follows from an all-reduce
is the same everywhere, and so is the update of a mirrored variable with it. A
TPU computes that on every core because it costs nothing there. Cores that share
one processor would pay for it again and again, so the virtual TPU computes it
once and hands the result to every core.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from tpunb.virtual._tensorflow import FunctionDef, NodeDef, op_def_registry
from tpunb.virtual.collectives import gives_one_value
from tpunb.virtual.graphs import (
    CALLS,
    COLLECTIVES,
    CONTROL_FLOW,
    LOOPS,
    Library,
    Reference,
    called_functions,
    control_inputs,
    data_inputs,
    has_collectives,
    in_topological_order,
    is_stateful,
    reference,
)

# A constant above this many bytes is kept once rather than once per core.
_LARGE_CONSTANT = 4096

READS = frozenset({"ReadVariableOp", "VariableShape", "ResourceGather", "ResourceGatherNd"})
# How the names of operations begin that change a variable; the last two advance
# a random generator's state.
_WRITERS = ("Assign", "Resource", "Rng", "Stateful")
ASSIGNMENTS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})


class Kind(enum.IntEnum):
    """What is known of a value, from the least to the most varied.

    Attributes:
        PLAIN: The same on every replica and cheap: each core that needs it
            computes it for itself.
        REDUCED: The same on every replica, and dear or the result of talking
            to the others: computed once and handed on.
        VARYING: Every replica has its own.
    """

    PLAIN = 0
    REDUCED = 1
    VARYING = 2


class Argument(enum.Enum):
    """How an argument of a replica function reaches the replicas.

    Attributes:
        SHARED: One value for all.
        REDUCED: One value for all, which came from talking to each other.
        VARYING: A value for each replica.
        MIRRORED: A handle for each replica of a variable that is kept in sync.
        LOCAL: A handle for each replica of a variable that is its own.
    """

    SHARED = enum.auto()
    REDUCED = enum.auto()
    VARYING = enum.auto()
    MIRRORED = enum.auto()
    LOCAL = enum.auto()

    @property
    def per_replica(self) -> bool:
        """Whether there are as many values as replicas."""
        return self in {Argument.VARYING, Argument.MIRRORED, Argument.LOCAL}


_KIND_OF_ARGUMENT = {
    Argument.SHARED: Kind.PLAIN,
    Argument.REDUCED: Kind.REDUCED,
    Argument.VARYING: Kind.VARYING,
    Argument.MIRRORED: Kind.PLAIN,
    Argument.LOCAL: Kind.VARYING,
}

_ARGUMENT_OF_KIND = {
    Kind.PLAIN: Argument.SHARED,
    Kind.REDUCED: Argument.REDUCED,
    Kind.VARYING: Argument.VARYING,
}


class Role(enum.Enum):
    """What becomes of a node when the function is written for all replicas."""

    COMPUTE = enum.auto()
    UPDATE = enum.auto()
    COLLECTIVE = enum.auto()
    LIFTED = enum.auto()


@dataclasses.dataclass(frozen=True)
class Spread:
    """What is known of each node of a replica function.

    Attributes:
        order: The nodes, each after its inputs.
        kinds: The kind of a node's outputs, by its name.
        output_kinds: The same for each output of a lifted node.
        roles: What becomes of a node, by its name.
        diverged: Mirrored arguments whose copies a replica may set on its own.
    """

    order: Sequence[NodeDef]
    kinds: Mapping[str, Kind]
    output_kinds: Mapping[str, Sequence[Kind]]
    roles: Mapping[str, Role]
    diverged: frozenset[str]
    arguments: Mapping[str, Argument]

    def kind(self, source: Reference) -> Kind:
        """The kind of a tensor."""
        return _kind(source, self.arguments, self.diverged, self.kinds, self.output_kinds)


def spread(
    function: FunctionDef,
    arguments: Mapping[str, Argument],
    library: Library,
    diverged: frozenset[str] = frozenset(),
) -> Spread:
    """Finds what of a replica function varies between replicas.

    Args:
        function: The replica function, its calls inlined.
        arguments: How each argument reaches the replicas, by its name.
        library: Finds the functions of control flow.
        diverged: Mirrored arguments known to hold different values already.

    Returns:
        What is known of each node.
    """
    order = in_topological_order(function.node_def)
    nodes = {node.name: node for node in order}
    while True:
        analysis = _Analysis(nodes, arguments, library, diverged)
        for node in order:
            analysis.visit(node)
        if analysis.diverged == diverged:
            return Spread(
                order,
                analysis.kinds,
                analysis.output_kinds,
                analysis.roles,
                diverged,
                arguments,
            )
        diverged = frozenset(analysis.diverged)


def output_kinds(function: FunctionDef, found: Spread) -> list[Kind]:
    """The kind of each value that a function returns."""
    return [found.kind(reference(function.ret[o.name])) for o in function.signature.output_arg]


def _kind(
    source: Reference,
    arguments: Mapping[str, Argument],
    diverged: frozenset[str] | set[str],
    kinds: Mapping[str, Kind],
    lifted: Mapping[str, Sequence[Kind]],
) -> Kind:
    if source.source in lifted:
        return lifted[source.source][source.index]
    if source.source in kinds:
        return kinds[source.source]
    if source.source in diverged:
        return Kind.VARYING
    return _KIND_OF_ARGUMENT[arguments[source.source]]


class _Analysis:
    """One pass over a function's nodes in topological order."""

    def __init__(
        self,
        nodes: Mapping[str, NodeDef],
        arguments: Mapping[str, Argument],
        library: Library,
        diverged: frozenset[str],
    ) -> None:
        self.nodes = nodes
        self.arguments = arguments
        self.library = library
        self.diverged = set(diverged)
        self.kinds: dict[str, Kind] = {}
        self.output_kinds: dict[str, list[Kind]] = {}
        self.roles: dict[str, Role] = {}

    def visit(self, node: NodeDef) -> None:
        """Settles a node whose inputs are settled."""
        self.roles[node.name] = Role.COMPUTE
        if node.op in COLLECTIVES:
            self._visit_collective(node)
        elif node.op in CONTROL_FLOW and self._talks(node):
            self.roles[node.name] = Role.LIFTED
            self.output_kinds[node.name] = self._lifted_kinds(node)
            self.kinds[node.name] = Kind.VARYING
        elif any(True for _ in called_functions(node)):
            self._visit_caller(node)
        elif self._mirrored(node) and node.op not in READS:
            self._visit_update(node)
        elif is_stateful(node) and not (node.op in READS and self._mirrored(node)):
            self.kinds[node.name] = Kind.VARYING
        elif any(self.roles.get(name) is Role.UPDATE for name in control_inputs(node)):
            # Read after it was updated once for all: what follows is done once too.
            self.kinds[node.name] = max(self._input_kind(node), Kind.REDUCED)
        else:
            self.kinds[node.name] = max(self._input_kind(node), _own_kind(node))

    def _talks(self, node: NodeDef) -> bool:
        return any(
            has_collectives(self.library(name), self.library) for name in called_functions(node)
        )

    def _visit_collective(self, node: NodeDef) -> None:
        self.roles[node.name] = Role.COLLECTIVE
        one = gives_one_value(node, self.nodes)
        self.kinds[node.name] = Kind.REDUCED if one else Kind.VARYING

    def _visit_caller(self, node: NodeDef) -> None:
        """A loop, a branch or a compiled call that stays with its replica."""
        writes = any(_writes(self.library(name), self.library) for name in called_functions(node))
        if writes:
            self.diverged.update(self._mirrored(node))
        pure = not any(
            _has_effects(self.library(name), self.library) for name in called_functions(node)
        )
        self.kinds[node.name] = self._input_kind(node) if pure else Kind.VARYING

    def _visit_update(self, node: NodeDef) -> None:
        kind = self._input_kind(node)
        self.kinds[node.name] = Kind.VARYING
        if kind == Kind.REDUCED and _only_updates(node):
            self.roles[node.name] = Role.UPDATE
        elif kind == Kind.VARYING:
            self.diverged.update(self._mirrored(node))

    def _mirrored(self, node: NodeDef) -> list[str]:
        return [
            source.source
            for source in data_inputs(node)
            if self.arguments.get(source.source) is Argument.MIRRORED
        ]

    def _input_kind(self, node: NodeDef) -> Kind:
        return max(
            (
                _kind(source, self.arguments, self.diverged, self.kinds, self.output_kinds)
                for source in data_inputs(node)
            ),
            default=Kind.PLAIN,
        )

    def _lifted_kinds(self, node: NodeDef) -> list[Kind]:
        """The kinds of the outputs of control flow in which replicas talk."""
        sources = data_inputs(node)
        kinds = [
            _kind(source, self.arguments, self.diverged, self.kinds, self.output_kinds)
            for source in sources
        ]
        if node.op not in LOOPS:
            branches = [
                self._body_kinds(self.library(name), sources[1:], kinds[1:])
                for name in called_functions(node)
            ]
            return [max(Kind.REDUCED, *outputs) for outputs in zip(*branches, strict=True)]
        body = self.library(node.attr["body"].func.name)
        while True:
            kinds = [max(Kind.REDUCED, kind) for kind in kinds]
            after = self._body_kinds(body, sources, kinds)
            after = [max(pair) for pair in zip(kinds, after, strict=True)]
            if after == kinds:
                return kinds
            kinds = after

    def _body_kinds(
        self, body: FunctionDef, sources: Sequence[Reference], kinds: Sequence[Kind]
    ) -> list[Kind]:
        names = [argument.name for argument in body.signature.input_arg]
        arguments = body_arguments(names, sources, kinds, self.arguments)
        known = {
            name
            for name, source in zip(names, sources, strict=True)
            if source.source in self.diverged
        }
        found = spread(body, arguments, self.library, frozenset(known))
        self.diverged.update(
            source.source
            for name, source in zip(names, sources, strict=True)
            if name in found.diverged
        )
        return output_kinds(body, found)


def body_arguments(
    names: Sequence[str],
    sources: Sequence[Reference],
    kinds: Sequence[Kind],
    arguments: Mapping[str, Argument],
) -> dict[str, Argument]:
    """How the inputs of lifted control flow reach its body.

    Args:
        names: The body's arguments.
        sources: Where each comes from in the function around it.
        kinds: The kind of each.
        arguments: How the arguments of the function around it reach it.

    Returns:
        How each argument of the body reaches the replicas.
    """
    handles = {Argument.MIRRORED, Argument.LOCAL}
    held = [arguments.get(source.source) for source in sources]
    return {
        name: outer if outer in handles else _ARGUMENT_OF_KIND[kind]
        for name, kind, outer in zip(names, kinds, held, strict=True)
    }


def _own_kind(node: NodeDef) -> Kind:
    large = node.op == "Const" and node.attr["value"].ByteSize() > _LARGE_CONSTANT
    return Kind.REDUCED if large else Kind.PLAIN


def _writes(function: FunctionDef, library: Library) -> bool:
    """Whether a function may change a variable."""
    return any(
        (node.op not in READS | CALLS and node.op.startswith(_WRITERS))
        or any(_writes(library(name), library) for name in called_functions(node))
        for node in function.node_def
    )


def _has_effects(function: FunctionDef, library: Library) -> bool:
    return any(
        (is_stateful(node) and node.op not in READS and node.op not in CONTROL_FLOW)
        or any(_has_effects(library(name), library) for name in called_functions(node))
        for node in function.node_def
    )


def _only_updates(node: NodeDef) -> bool:
    """Whether a node gives nothing but new values of variables, whose type can be told."""
    definition = op_def_registry.get(node.op)
    gives = definition is None or len(definition.output_arg) > 0
    return not gives and ("dtype" in node.attr or "T" in node.attr)
