"""Which values of a replica function differ between the replicas.

A replica function is traced once and then stands for all replicas. Most of its
nodes have to run once per replica, but not all: what follows from an all-reduce
is the same everywhere, and so is the update of a mirrored variable with it. A
TPU computes that on every core because it costs nothing there. Cores that share
one processor would pay for it again and again, so the virtual TPU computes it
once and broadcasts the result to every core.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tpunb.virtual._tensorflow import FunctionDef, NodeDef, dtypes, op_def_registry
from tpunb.virtual.graph.collectives import gives_one_value
from tpunb.virtual.graph.effects import READS, has_effects, only_updates, writes_variables
from tpunb.virtual.graph.function_def import (
    BRANCHES,
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
from tpunb.virtual.graph.static_tensors import output_place, output_types
from tpunb.virtual.replicate.variance import (
    Analysis,
    Argument,
    Role,
    Variance,
    body_arguments,
    mark_diverged,
)

# A constant above this many bytes is kept once rather than once per core.
_LARGE_CONSTANT = 4096


def analyze(function: FunctionDef, arguments: Mapping[str, Argument], library: Library) -> Analysis:
    """Finds what of a replica function varies between replicas.

    Args:
        function: The replica function, its calls inlined.
        arguments: Its arguments, by name.
        library: Finds the functions of control flow.

    Returns:
        What is known of each node.
    """
    order = in_topological_order(function.node_def)
    while True:
        diverged = {name for name, argument in arguments.items() if argument.diverged}
        analysis = _Pass(function, order, arguments, library).run()
        if analysis.diverged == diverged:
            return analysis
        # A variable that diverges late in the function may have been read early in it.
        arguments = analysis.arguments


class _Pass:
    """One pass over a function's nodes in topological order."""

    def __init__(
        self,
        function: FunctionDef,
        order: Sequence[NodeDef],
        arguments: Mapping[str, Argument],
        library: Library,
    ) -> None:
        self.function = function
        self.nodes = {node.name: node for node in order}
        self.library = library
        self.arguments = dict(arguments)
        self.variances: dict[str, Variance] = {}
        self.output_variances: dict[str, list[Variance]] = {}
        self.roles: dict[str, Role] = {}
        self.apart: set[str] = set()
        self.analysis = Analysis(
            order,
            self.variances,
            self.output_variances,
            self.roles,
            self.arguments,
            apart=self.apart,
        )

    def run(self) -> Analysis:
        for node in self.analysis.order:
            self._visit(node)
        return self.analysis

    def _visit(self, node: NodeDef) -> None:
        """Settles a node whose inputs are settled."""
        self.roles[node.name] = Role.COMPUTE
        if self._hands_on(node):
            handles = self._mirrored(node)
            self._diverge(handles)
            self._split(handles)
        if node.op in COLLECTIVES:
            self._visit_collective(node)
        elif node.op in CONTROL_FLOW and self._contains_collectives(node):
            self.roles[node.name] = Role.LIFTED
            self.output_variances[node.name] = self._lifted_variances(node)
            self.variances[node.name] = Variance.VARYING
        elif any(True for _ in called_functions(node)):
            self._visit_caller(node)
        elif self._mirrored(node) and node.op not in READS | {"VarIsInitializedOp"}:
            self._visit_update(node)
        elif is_stateful(node) and not self._mirrored(node):
            self.variances[node.name] = Variance.VARYING
        elif any(self.roles.get(name) is Role.UPDATE for name in control_inputs(node)):
            # Read after it was updated once for all: what follows is done once too.
            self.variances[node.name] = max(self._input_variance(node), Variance.INVARIANT)
        else:
            self.variances[node.name] = max(self._input_variance(node), _least_variance(node))

    def _hands_on(self, node: NodeDef) -> bool:
        """Whether a node gives a handle on: what is done with it then is not seen here."""
        if node.op in READS or not self._mirrored(node):
            return False
        if op_def_registry.get(node.op) is None:
            return True
        if node.op in LOOPS and not _keeps_handles(self.library(node.attr["body"].func.name)):
            return True
        kinds = output_types(node)
        return any(
            kinds[output_place(node, one)] == dtypes.resource for one in self._used[node.name]
        )

    @functools.cached_property
    def _used(self) -> Mapping[str, Sequence[Reference]]:
        """The tensors that are used, by the name of the node that gives them."""
        used: dict[str, list[Reference]] = defaultdict(list)
        taken = [source for node in self.analysis.order for source in data_inputs(node)]
        for source in [*taken, *map(reference, self.function.ret.values())]:
            used[source.source].append(source)
        return used

    def _contains_collectives(self, node: NodeDef) -> bool:
        return any(
            has_collectives(self.library(name), self.library) for name in called_functions(node)
        )

    def _visit_collective(self, node: NodeDef) -> None:
        self.roles[node.name] = Role.COLLECTIVE
        one = gives_one_value(node, self.nodes)
        self.variances[node.name] = Variance.INVARIANT if one else Variance.VARYING

    def _visit_caller(self, node: NodeDef) -> None:
        """A loop, a branch or a compiled call of which each replica has its own."""
        bodies = [self.library(name) for name in called_functions(node)]
        if any(writes_variables(body, self.library) for body in bodies):
            self._diverge(self._set_apart(node, bodies))
            self._split(self._mirrored(node))
        pure = not any(has_effects(body, self.library) for body in bodies)
        self.variances[node.name] = self._input_variance(node) if pure else Variance.VARYING
        if pure and node.op in CONTROL_FLOW and self._goes_one_way(node):
            self.output_variances[node.name] = self._lifted_variances(node)

    def _goes_one_way(self, node: NodeDef) -> bool:
        """Whether a loop or a branch that changes nothing goes the same way on every replica."""
        sources = data_inputs(node)
        variances = [self.analysis.variance(source) for source in sources]
        if Variance.VARYING not in variances:
            return False  # all of it is done once
        if node.op in BRANCHES:
            return variances[0] is not Variance.VARYING
        variances = self._after_each_turn(node, sources, variances)
        condition = self.library(node.attr["cond"].func.name)
        return Variance.VARYING not in self._body_variances(condition, sources, variances)

    def _set_apart(self, node: NodeDef, bodies: Sequence[FunctionDef]) -> set[str]:
        """The variables whose copies a loop, a branch or a call may set apart.

        None if all replicas take the same way, and write the same: what initializes variables
        that the first step makes, or is done in each tenth step.
        """
        mirrored, sources = set(self._mirrored(node)), data_inputs(node)
        variances = [self.analysis.variance(source) for source in sources]
        if node.op in LOOPS:
            variances = self._after_each_turn(node, sources, variances)
            ways = self._body(self.library(node.attr["cond"].func.name), sources, variances)[1]
        elif node.op in BRANCHES:
            ways, sources, variances = variances[:1], sources[1:], variances[1:]
        else:
            ways = []
        if Variance.VARYING in ways:
            return mirrored
        return {name for body in bodies for name in self._body(body, sources, variances)[0]}

    def _visit_update(self, node: NodeDef) -> None:
        variance, names = self._input_variance(node), self._mirrored(node)
        self.variances[node.name] = Variance.VARYING
        # What is cheap each core does for itself, but what cores share can be changed only once.
        merged = any(self.arguments[name].is_merged for name in names)
        once = variance == Variance.INVARIANT or (merged and variance != Variance.VARYING)
        if once and only_updates(node):
            self.roles[node.name] = Role.UPDATE
            return
        self._split(names)
        if variance == Variance.VARYING:
            self._diverge(names)

    def _mirrored(self, node: NodeDef) -> list[str]:
        names = [source.source for source in data_inputs(node)]
        return [n for n in names if n in self.arguments and self.arguments[n].is_mirrored]

    def _diverge(self, names: Iterable[str]) -> None:
        self.arguments.update((name, mark_diverged(self.arguments[name])) for name in names)

    def _split(self, names: Iterable[str]) -> None:
        """Notes that each replica changes a copy of its own, if only to what others do."""
        self.apart.update(name for name in names if self.arguments[name].is_merged)

    def _input_variance(self, node: NodeDef) -> Variance:
        variances = map(self.analysis.variance, data_inputs(node))
        return max(variances, default=Variance.CHEAP_INVARIANT)

    def _lifted_variances(self, node: NodeDef) -> list[Variance]:
        """How much the outputs of control flow that goes one way differ."""
        sources = data_inputs(node)
        variances = [self.analysis.variance(source) for source in sources]
        if node.op not in LOOPS:
            branches = [
                self._body_variances(self.library(name), sources[1:], variances[1:])
                for name in called_functions(node)
            ]
            return [max(Variance.INVARIANT, *outputs) for outputs in zip(*branches, strict=True)]
        return self._after_each_turn(node, sources, variances)

    def _after_each_turn(
        self, node: NodeDef, sources: Sequence[Reference], variances: Sequence[Variance]
    ) -> list[Variance]:
        """How much the values of a loop may differ, whatever the number of its turns."""
        body = self.library(node.attr["body"].func.name)
        while True:
            variances = [max(Variance.INVARIANT, variance) for variance in variances]
            after = self._body_variances(body, sources, variances)
            after = [max(pair) for pair in zip(variances, after, strict=True)]
            if after == variances:
                return variances
            variances = after

    def _body_variances(
        self, body: FunctionDef, sources: Sequence[Reference], variances: Sequence[Variance]
    ) -> list[Variance]:
        diverged, results = self._body(body, sources, variances)
        self._diverge(diverged)
        return results

    def _body(
        self, body: FunctionDef, sources: Sequence[Reference], variances: Sequence[Variance]
    ) -> tuple[set[str], list[Variance]]:
        """The outer variables that a body may set apart, and how much its results differ."""
        names = [argument.name for argument in body.signature.input_arg]
        arguments = body_arguments(names, sources, variances, self.arguments)
        inner = analyze(body, arguments, self.library)
        outer = dict(zip(names, (source.source for source in sources), strict=True))
        self._split(outer[name] for name in inner.split)
        results = [inner.variance(reference(body.ret[o.name])) for o in body.signature.output_arg]
        return {outer[name] for name in inner.diverged}, results


def _keeps_handles(body: FunctionDef) -> bool:
    """Whether the body of a loop gives each handle on in the place where it takes it."""
    pairs = zip(body.signature.input_arg, body.signature.output_arg, strict=True)
    return all(
        body.ret[output.name] == taken.name
        for taken, output in pairs
        if dtypes.resource.as_datatype_enum in {taken.type, output.type}
    )


def _least_variance(node: NodeDef) -> Variance:
    large = node.op == "Const" and node.attr["value"].ByteSize() > _LARGE_CONSTANT
    return Variance.INVARIANT if large else Variance.CHEAP_INVARIANT
