"""The values of a replica function that differ between the replicas.

A replica function is traced once and then represents all replicas. Most of its nodes must run once
per replica, but not all. The results of an all-reduce are the same everywhere, and so is the update
of a mirrored variable with them. A TPU computes them on every core, because that costs nothing
there. Cores that share one processor would pay for each computation, so the virtual TPU computes
such values once.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from tpunb.tensorflow.virtual.copies.variable_copies import Resource
from tpunb.tensorflow.virtual.graph.collectives import gives_one_value
from tpunb.tensorflow.virtual.graph.function_def import (
    BRANCHES,
    COLLECTIVES,
    CONTROL_FLOW,
    LOOPS,
    READS,
    Library,
    Reference,
    StaticTensors,
    called_functions,
    data_inputs,
    has_collectives,
    has_effects,
    in_topological_order,
    is_stateful,
    only_updates,
    output_index,
    output_types,
    reference,
    writes_variables,
)
from tpunb.tensorflow.virtual.private_names import FunctionDef, NodeDef, dtypes, op_def_registry
from tpunb.tensorflow.virtual.replicate.joined_forms import Form, Plan


class Variance(enum.IntEnum):
    """The variance of a value; a value that depends on several values has their maximum.

    Attributes:
        INVARIANT: The value is the same on every replica.
        VARYING: Every replica has its own value.
    """

    INVARIANT = 0
    VARYING = 1


class Passing(enum.Enum):
    """The way an argument of a replica function reaches the replicas.

    Attributes:
        SHARED: One value for all.
        VARYING: A value for each replica.
        STACKED: One tensor with a value for each replica, by default along a new axis 0.
        MIRRORED: A handle for each replica of a variable that is kept in sync.
        LOCAL: A handle for each replica of a variable that is its own.
    """

    SHARED = enum.auto()
    VARYING = enum.auto()
    STACKED = enum.auto()
    MIRRORED = enum.auto()
    LOCAL = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a replica function.

    Attributes:
        passing: The way it reaches the replicas.
        key: The key of a variable whose copies may share a resource; otherwise empty.
        home: The logical device that holds a variable.
        copy_type: If every logical device has a copy of a variable, the type of its value, as a
            number of the protocol buffers; otherwise None. The handles of these copies come after
            the handles of all replicas, for each replica in the order of its logical devices.
        diverged: Whether the copies of a mirrored variable may differ between replicas.
        traced_together: Whether its copies shared a resource when the function was traced. Then
            there is a single handle.
        resources: The resources of the copies since they became separate; None for copies whose
            handle is passed.
        form: The form of one tensor of all replicas' values.
    """

    passing: Passing
    key: str = ""
    home: int = 0
    copy_type: int | None = None
    diverged: bool = False
    traced_together: bool = False
    resources: Sequence[Resource | None] = ()
    form: Form = Form.STACKED

    @property
    def is_mirrored(self) -> bool:
        """True if it is a variable that is kept in sync."""
        return self.passing is Passing.MIRRORED

    @property
    def is_stacked(self) -> bool:
        """True if it joins all replicas' values in one tensor."""
        return self.passing is Passing.STACKED

    @property
    def is_component(self) -> bool:
        """True if it is a handle for each replica of its component of a variable."""
        return self.passing in {Passing.MIRRORED, Passing.LOCAL}

    @property
    def per_replica(self) -> bool:
        """True if there are as many values as replicas."""
        return self.passing is Passing.VARYING or self.is_component

    @property
    def is_together(self) -> bool:
        """True if its copies share a resource."""
        return self.traced_together and not self.resources

    @property
    def variance(self) -> Variance:
        """The variance of its value, or of its variable's value."""
        is_same = self.passing is Passing.SHARED or (self.is_mirrored and not self.diverged)
        return Variance.INVARIANT if is_same else Variance.VARYING


Arguments = Mapping[str, Argument]
"""The arguments of a function, by their names."""


def mark_diverged(argument: Argument) -> Argument:
    """Return a mirrored variable whose copies may differ."""
    return dataclasses.replace(argument, diverged=True)


def body_arguments(
    names: Sequence[str],
    sources: Sequence[Reference],
    variances: Sequence[Variance],
    arguments: Arguments,
) -> dict[str, Argument]:
    """Return how the inputs of lifted control flow reach its body."""
    inner = {}
    for name, source, variance in zip(names, sources, variances, strict=True):
        outer = arguments.get(source.source)
        if outer is not None and outer.is_component:
            # The function around the body updates the copies on other logical devices, and passes a
            # handle for each resource.
            inner[name] = dataclasses.replace(
                outer, copy_type=None, traced_together=outer.is_together, resources=()
            )
        else:
            varies = variance is Variance.VARYING
            inner[name] = Argument(Passing.VARYING if varies else Passing.SHARED)
    return inner


class Role(enum.Enum):
    """The way a node is written when the function is written for all replicas.

    Attributes:
        COMPUTE: It is copied for each replica, or written once if the replicas share its value.
        UPDATE: It updates every copy of a variable with one value, computed once.
        COLLECTIVE: It is wired between the replicas.
        LIFTED: It is control flow containing collectives, and runs once for all replicas.
        JOINED: One node computes it on the values of all replicas, joined in one tensor.
    """

    COMPUTE = enum.auto()
    UPDATE = enum.auto()
    COLLECTIVE = enum.auto()
    LIFTED = enum.auto()
    JOINED = enum.auto()


@dataclasses.dataclass(frozen=True)
class Analysis:
    """The known facts about each node of a replica function.

    Attributes:
        order: The nodes, each after its inputs.
        variances: Whether a node's outputs differ, by its name.
        output_variances: The same for each output of a lifted node, and of a loop or a branch that
            goes the same way on every replica.
        roles: The role of each node, by its name.
        arguments: The function's arguments. An argument has diverged if a replica may set its copy
            on its own.
        plans: The plans of joined nodes, by their names.
        statics: The known constants and types of the function's tensors, and their shapes if nodes
            are joined.
        set_by_each: The names of arguments whose copies are together and that each replica changes
            for itself.
    """

    order: Sequence[NodeDef]
    variances: Mapping[str, Variance]
    output_variances: Mapping[str, Sequence[Variance]]
    roles: Mapping[str, Role]
    arguments: Arguments
    statics: StaticTensors
    plans: Mapping[str, Plan] = dataclasses.field(default_factory=dict)
    set_by_each: AbstractSet[str] = frozenset()

    def __str__(self) -> str:
        """Return a line for each node: its name, operation, variance, role and plan."""
        return "\n".join(line for node in self.order for line in self._lines(node))

    def _lines(self, node: NodeDef) -> Iterator[str]:
        name, plan = node.name, self.plans.get(node.name)
        variance, role = self.variances[name].name.lower(), self.roles[name].name.lower()
        yield f"{name:30} {node.op:24} {variance:9} {role:10} {plan or ''}".rstrip()
        for body_name, body in plan.bodies.items() if plan is not None else ():
            yield f"  {body_name}:"
            yield textwrap.indent(str(body.analysis), "    ")

    @property
    def diverged(self) -> frozenset[str]:
        """The names of the mirrored arguments whose copies may differ."""
        return frozenset(n for n, argument in self.arguments.items() if argument.diverged)

    @property
    def must_separate(self) -> frozenset[str]:
        """The names of arguments whose copies are together and must become separate."""
        return frozenset(
            self.set_by_each | {n for n in self.diverged if self.arguments[n].is_together}
        )

    def variance(self, source: Reference) -> Variance:
        """Return whether a tensor differs between replicas."""
        name = source.source
        if name in self.output_variances:
            return self.output_variances[name][source.index]
        if name in self.variances:
            return self.variances[name]
        return self.arguments[name].variance

    def is_stacked(self, source: Reference) -> bool:
        """Return whether a tensor is an argument that joins all replicas' values."""
        argument = self.arguments.get(source.source)
        return argument is not None and argument.is_stacked

    def form_of(self, source: Reference, plans: Mapping[str, Plan]) -> Form | None:
        """Return the form of a tensor; None if each replica has a tensor of its own."""
        if source.source in plans:
            return plans[source.source].gives[self.statics.index(source)]
        if self.is_stacked(source):
            return self.arguments[source.source].form
        return None if self.variance(source) is Variance.VARYING else Form.SHARED


@dataclasses.dataclass(frozen=True)
class Body:
    """The function of a loop or branch that computes the values of all replicas.

    Attributes:
        function: The function of one replica.
        analysis: The analysis of the function, with the plans of its nodes.
        gives: The form of each of its results.
    """

    function: FunctionDef
    analysis: Analysis
    gives: Sequence[Form]


def analyze(function: FunctionDef, arguments: Arguments, library: Library) -> Analysis:
    """Find the values of a replica function that vary between replicas."""
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
        arguments: Arguments,
        library: Library,
    ) -> None:
        self.function = function
        self.nodes = {node.name: node for node in order}
        self.library = library
        self.arguments = dict(arguments)
        self.variances: dict[str, Variance] = {}
        self.output_variances: dict[str, list[Variance]] = {}
        self.roles: dict[str, Role] = {}
        self.set_by_each: set[str] = set()
        self.analysis = Analysis(
            order,
            self.variances,
            self.output_variances,
            self.roles,
            self.arguments,
            StaticTensors(function, self.nodes, {}),
            set_by_each=self.set_by_each,
        )

    def run(self) -> Analysis:
        for node in self.analysis.order:
            self._visit(node)
        return self.analysis

    def _visit(self, node: NodeDef) -> None:
        """Analyze a node whose inputs are analyzed already."""
        # The order of the cases matters: a loop with a collective is lifted even if it changes
        # variables, and a node that updates a variable that is kept in sync is not like other
        # stateful nodes.
        self.roles[node.name] = Role.COMPUTE
        if self._hands_on(node):
            handles = self._mirrored(node)
            self._diverge(handles)
            self._note_set_by_each(handles)
        called = [self.library(name) for name in called_functions(node)]
        if node.op in COLLECTIVES:
            self.roles[node.name] = Role.COLLECTIVE
            is_same = gives_one_value(node, self.nodes)
            self.variances[node.name] = Variance.INVARIANT if is_same else Variance.VARYING
        elif node.op in CONTROL_FLOW and any(has_collectives(b, self.library) for b in called):
            self.roles[node.name] = Role.LIFTED
            self.output_variances[node.name] = self._lifted_variances(node)
            self.variances[node.name] = Variance.VARYING
        elif called:
            self._visit_caller(node, called)
        elif self._mirrored(node) and node.op not in READS | {"VarIsInitializedOp"}:
            self._visit_update(node)
        elif is_stateful(node) and not self._mirrored(node):
            self.variances[node.name] = Variance.VARYING
        else:
            self.variances[node.name] = self._input_variance(node)

    def _hands_on(self, node: NodeDef) -> bool:
        """Return whether a node passes a handle on: later uses of the handle are not known."""
        if node.op in READS or not self._mirrored(node):
            return False
        if op_def_registry.get(node.op) is None:
            return True
        if node.op in LOOPS and not _keeps_handles(self.library(node.attr["body"].func.name)):
            return True
        types = output_types(node)
        return any(
            types[output_index(node, output)] == dtypes.resource for output in self._used[node.name]
        )

    @functools.cached_property
    def _used(self) -> Mapping[str, Sequence[Reference]]:
        """The tensors that are used, by the name of the node that gives them."""
        used: dict[str, list[Reference]] = defaultdict(list)
        inputs = [source for node in self.analysis.order for source in data_inputs(node)]
        for source in [*inputs, *map(reference, self.function.ret.values())]:
            used[source.source].append(source)
        return used

    def _visit_caller(self, node: NodeDef, bodies: Sequence[FunctionDef]) -> None:
        """Analyze a loop, a branch or a compiled call that each replica has for itself."""
        if any(writes_variables(body, self.library) for body in bodies):
            self._diverge(self._may_diverge(node, bodies))
            self._note_set_by_each(self._mirrored(node))
        pure = not any(has_effects(body, self.library) for body in bodies)
        self.variances[node.name] = self._input_variance(node) if pure else Variance.VARYING
        if pure and node.op in CONTROL_FLOW and self._goes_one_way(node):
            self.output_variances[node.name] = self._lifted_variances(node)

    def _goes_one_way(self, node: NodeDef) -> bool:
        """Return whether a loop or branch without effects goes the same way on every replica."""
        sources = data_inputs(node)
        variances = [self.analysis.variance(source) for source in sources]
        if Variance.VARYING not in variances:
            return False  # the whole loop or branch is computed once
        if node.op in BRANCHES:
            return variances[0] is not Variance.VARYING
        variances = self._after_each_turn(node, sources, variances)
        condition = self.library(node.attr["cond"].func.name)
        return Variance.VARYING not in self._body_variances(condition, sources, variances)

    def _may_diverge(self, node: NodeDef, bodies: Sequence[FunctionDef]) -> set[str]:
        """Return the variables whose copies may diverge in a loop, a branch or a call.

        The set is empty if all replicas go the same way and write the same values. Examples are the
        initialization of variables that the first step makes, and an update in each tenth step.
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
        varies = self._input_variance(node) is Variance.VARYING
        self.variances[node.name] = Variance.VARYING
        if not varies and only_updates(node):
            self.roles[node.name] = Role.UPDATE
            return
        names = self._mirrored(node)
        self._note_set_by_each(names)
        if varies:
            self._diverge(names)

    def _mirrored(self, node: NodeDef) -> list[str]:
        names = [source.source for source in data_inputs(node)]
        return [n for n in names if n in self.arguments and self.arguments[n].is_mirrored]

    def _diverge(self, names: Iterable[str]) -> None:
        self.arguments.update((name, mark_diverged(self.arguments[name])) for name in names)

    def _note_set_by_each(self, names: Iterable[str]) -> None:
        """Note that each replica changes its own copy, even if only to the others' value."""
        self.set_by_each.update(name for name in names if self.arguments[name].is_together)

    def _input_variance(self, node: NodeDef) -> Variance:
        variances = map(self.analysis.variance, data_inputs(node))
        return max(variances, default=Variance.INVARIANT)

    def _lifted_variances(self, node: NodeDef) -> list[Variance]:
        """Return which outputs of control flow that goes one way differ."""
        sources = data_inputs(node)
        variances = [self.analysis.variance(source) for source in sources]
        if node.op not in LOOPS:
            branches = [
                self._body_variances(self.library(name), sources[1:], variances[1:])
                for name in called_functions(node)
            ]
            return [max(outputs) for outputs in zip(*branches, strict=True)]
        return self._after_each_turn(node, sources, variances)

    def _after_each_turn(
        self, node: NodeDef, sources: Sequence[Reference], variances: Sequence[Variance]
    ) -> list[Variance]:
        """Return which of a loop's values may differ after any number of turns."""
        body = self.library(node.attr["body"].func.name)
        while True:
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
        """Return the outer variables that may diverge in a body, and its results' variances."""
        names = [argument.name for argument in body.signature.input_arg]
        arguments = body_arguments(names, sources, variances, self.arguments)
        inner = analyze(body, arguments, self.library)
        outer = dict(zip(names, (source.source for source in sources), strict=True))
        self._note_set_by_each(outer[name] for name in inner.must_separate)
        results = [inner.variance(reference(body.ret[o.name])) for o in body.signature.output_arg]
        return {outer[name] for name in inner.diverged}, results


def _keeps_handles(body: FunctionDef) -> bool:
    """Return whether a loop's body returns each handle at the index at which it takes it."""
    pairs = zip(body.signature.input_arg, body.signature.output_arg, strict=True)
    return all(
        body.ret[output.name] == parameter.name
        for parameter, output in pairs
        if dtypes.resource.as_datatype_enum in {parameter.type, output.type}
    )
