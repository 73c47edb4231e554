"""Joining of replicas: the choice of nodes that compute all replicas' values as one batch.

Eight products of [16, 64] with shared weights are one product of [128, 64]. On a shared processor,
one operation on the values of all replicas, joined in one tensor, is faster than one operation for
each replica. Nodes without a rule stay separate.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tpunb.tensorflow.virtual.graph.collectives import gives_one_value
from tpunb.tensorflow.virtual.graph.function_def import (
    CONTROL_FLOW,
    FRESH,
    LOOPS,
    OUTSIDE,
    READS,
    KnownSizes,
    Library,
    Reference,
    StaticTensors,
    called_functions,
    data_inputs,
    has_effects,
    is_stateful,
    needed,
    output_types,
    returned,
)
from tpunb.tensorflow.virtual.private_names import FunctionDef, NodeDef, dtypes
from tpunb.tensorflow.virtual.replicate.joined_forms import (
    REAL,
    ROWS,
    SHARED,
    Form,
    Input,
    KnownNode,
    Plan,
    Take,
)
from tpunb.tensorflow.virtual.replicate.joining_rules import linear, rule_of
from tpunb.tensorflow.virtual.replicate.passes import (
    ReplicaFunction,
    read_past_loops,
    with_constant_shapes,
)
from tpunb.tensorflow.virtual.replicate.variance import (
    Analysis,
    Argument,
    Arguments,
    Body,
    Passing,
    Role,
    Variance,
    analyze,
)

# In nodes for each replica: the cost of joining the replicas' values, or separating them again; and
# the number of bytes of each value whose copying takes as long as a node. `python -m
# benchmarks.joining_costs` (two AMD EPYC processors, TensorFlow 2.21, 2026-11-28): 1 to 3 nodes for
# both ways, and 1,700 bytes for a node that does next to nothing. Steps hardly depend on these
# numbers. With `--steps`, an MLP, a CNN and an LSTM take the same time, within 12%, with a fifth of
# the conversions' cost and five times as much, a tenth of the bytes and ten times as many.
_CONVERSION = 2.5
_BYTES = 20_000

_TURNS = 16
"""The assumed number of turns of a loop. The same steps take the same time with 2 turns."""

_LIVING = 4
"""At most a quarter of all nodes' outputs in a training step is assumed alive at a time.

It only decides how many of the replicas that take turns run at a time.
"""


def join(
    flat: FunctionDef, analysis: Analysis, function: ReplicaFunction
) -> tuple[Analysis, int | None]:
    """Find the nodes of a replica function that one node can compute for all replicas.

    Returns:
        The analysis with these nodes, and the number of replicas that run at a time.
        It is smaller if the values of all replicas, or of several, would take too much memory.
    """
    cores, at_once = function.cores, function.at_once
    if function.sizes is None or len(cores) < 2 or len(cores[0]) > 1:
        return analysis, at_once
    needed = 0.0
    # Loops may take more memory than there is, while the nodes around them do not.
    for sizes in dict.fromkeys([function.body_sizes, None]):
        bodies = None if sizes is None else _Bodies(function.inlined_library, sizes, len(cores))
        candidates = _Candidates(flat, analysis, function.sizes, len(cores), bodies)
        plans = candidates.worthwhile()
        needed = candidates.bytes_of(plans)
        if plans and needed * len(cores) <= function.most_joined:
            return candidates.joined(plans), at_once
    most = _LIVING * function.most_joined
    if at_once is not None and needed * at_once > most:
        at_once = max(1, int(most / needed))
    return analysis, at_once


class _Candidates:
    """The nodes that one node could compute for all replicas.

    Attributes:
        statics: The known shapes, types and constants of the function's tensors.
        plans: The plan for each node, by its name.
    """

    def __init__(
        self,
        function: FunctionDef,
        analysis: Analysis,
        sizes: KnownSizes,
        replicas: int,
        bodies: _Bodies | None = None,
        gives: Sequence[Form] | None = None,
    ) -> None:
        self._nodes = {node.name: node for node in analysis.order}
        self.statics = StaticTensors(function, self._nodes, sizes)
        self._analysis = dataclasses.replace(analysis, statics=self.statics)
        self._replicas = replicas
        self._bodies = bodies
        self._needed = needed(function)
        results = [result.source for result in returned(function)]
        self._parted = {source.source for source in results} if gives is None else set()
        self._returned: dict[Reference, set[Form]] = defaultdict(set)
        self._outputs: dict[str, set[Reference]] = defaultdict(set)
        for source, form in zip(results, gives or [Form.STACKED] * len(results), strict=True):
            self._returned[source].add(form)
            self._outputs[source.source].add(source)
        self._users: dict[str, list[NodeDef]] = defaultdict(list)
        self._uses: dict[Reference, list[NodeDef]] = defaultdict(list)
        for node in analysis.order:
            if node.name in self._needed:
                for source in dict.fromkeys(data_inputs(node)):
                    self._uses[source].append(node)
                    self._outputs[source.source].add(source)
                for name in dict.fromkeys(source.source for source in data_inputs(node)):
                    self._users[name].append(node)
        self.plans: dict[str, Plan] = {}
        for node in reversed(analysis.order):
            plan = self._plan(node)
            if plan is not None:
                self.plans[node.name] = plan

    def _plan(self, node: NodeDef) -> Plan | None:
        """Return the plan for a node, after the plans for its readers."""
        if not self._may_join(node):
            return None
        if node.op in CONTROL_FLOW:
            if self._bodies is None or node.name not in self._analysis.output_variances:
                return None
            return self._bodies.plan(self, self._analysis, node)
        input_types = map(self.statics.dtype, data_inputs(node))
        types = [dtype for dtype in input_types if dtype != dtypes.resource] + output_types(node)
        rule = rule_of(node.op, lists=dtypes.variant in types or node.op in FRESH)
        if rule is None:
            return None
        types = [dtype for dtype in types if dtype != dtypes.variant]
        known_node = self._known_node(node) if rule.applies_to(node, types) else None
        if known_node is None:
            return None
        plan = (linear(known_node) if known_node.summed else None) or rule.plan(known_node)
        if plan is None:
            return None
        pairs = zip(plan.takes, known_node.inputs, strict=False)
        # A tensor that is taken as rows must have an axis.
        return None if any(take is ROWS and not tensor.sizes for take, tensor in pairs) else plan

    def _may_join(self, node: NodeDef) -> bool:
        analysis = self._analysis
        return (
            node.name in self._needed
            and analysis.roles[node.name] in {Role.COMPUTE, Role.LIFTED}
            and analysis.variances[node.name] is Variance.VARYING
            and not node.device
            and (not is_stateful(node) or node.op in READS | CONTROL_FLOW)
            and OUTSIDE not in node.attr
        )

    def _known_node(self, node: NodeDef) -> KnownNode | None:
        """Return a node with its known properties; None if too little is known."""
        types = output_types(node)
        outputs = [self.statics.output_sizes(node.name, k) for k in range(len(types))]
        inputs = [self._input(source) for source in data_inputs(node)]
        known_outputs = [
            sizes
            for sizes in outputs
            if sizes is not None and (0 not in sizes or node.op == _ELEMENTS)
        ]
        known_inputs = [tensor for tensor in inputs if tensor is not None]
        if len(known_outputs) < len(outputs) or len(known_inputs) < len(inputs):
            return None
        if not any(tensor.varies for tensor in known_inputs):
            return None
        # In float16, the sum over all replicas may overflow where each replica's value, scaled down
        # or not, does not.
        outputs_used = self._outputs[node.name]
        summed = dtypes.float16 not in types and all(map(self.is_summed, outputs_used))
        summed = summed and bool(outputs_used)
        return KnownNode(node, known_inputs, known_outputs, self._replicas, summed)

    def _input(self, source: Reference) -> Input | None:
        dtype = self.statics.dtype(source)
        varies = self._analysis.variance(source) is Variance.VARYING
        if dtype == dtypes.resource:
            # The handle of a variable that is the same on every replica.
            argument = self._analysis.arguments.get(source.source)
            shared = argument is not None and argument.is_mirrored and not varies
            return Input((), dtype, varies=False, value=lambda: None) if shared else None
        sizes = self.statics.sizes(source)
        node = self._nodes.get(source.source)
        is_shape = node is not None and node.op == _ELEMENTS
        if sizes is None or (varies and 0 in sizes and not is_shape):
            return None
        return Input(sizes, dtype, varies, lambda: self.statics.value(source))

    def is_summed(self, source: Reference) -> bool:
        """Return whether a tensor is only read by sums over all replicas."""
        users, results = self._uses.get(source, []), self._returned.get(source, set())
        sums = all(self._sums(user) for user in users)
        return bool(users or results) and results <= {Form.SUMMED} and sums

    def _sums(self, user: NodeDef) -> bool:
        if user.op == _SUM:
            return gives_one_value(user, self._nodes)
        plan = self.plans.get(user.name)
        return plan is not None and all(take.form in _SUM_TAKES for take in plan.takes)

    # Tensors around and inside loops and branches.

    def forms(
        self, sources: Sequence[Reference], variances: Sequence[Variance]
    ) -> list[Form] | None:
        """Return the forms of tensors at the edges of control flow; None if any has no form."""
        forms = []
        for source, variance in zip(sources, variances, strict=True):
            dtype, sizes = self.statics.dtype(source), self.statics.sizes(source)
            if variance is not Variance.VARYING:
                forms.append(Form.SHARED)
            elif dtype == dtypes.variant:
                forms.append(Form.LISTED)
            elif dtype in REAL and sizes is not None and 0 not in sizes:
                forms.append(Form.ROWS if sizes else Form.STACKED)
            else:
                return None
        return forms

    def may_sum(self, source: Reference) -> bool:
        """Return whether a tensor may be given as its sum over all replicas."""
        return self.statics.dtype(source) != dtypes.float16 and self.is_summed(source)

    def gives(self, source: Reference, form: Form, plans: Mapping[str, Plan]) -> bool:
        """Return whether a function can give a tensor in a form."""
        return self.fits_readers(source, plans) and (
            form is Form.LISTED or self.statics.sizes(source) is not None
        )

    def joined(self, plans: Mapping[str, Plan]) -> Analysis:
        """Return the analysis with the plans of joined nodes."""
        roles = {**self._analysis.roles, **dict.fromkeys(plans, Role.JOINED)}
        return dataclasses.replace(self._analysis, roles=roles, plans=plans)

    # The plans that save more than their conversions cost.

    def worthwhile(self) -> dict[str, Plan]:
        """Return the plans without those that would convert more than they save."""
        plans = dict(self.plans)
        order = [node for node in self._analysis.order if node.name in plans]
        while True:
            dropped = [node for node in order if node.name in plans and self._drops(node, plans)]
            if not dropped:
                return plans
            order = [node for node in order if node.name in plans]

    def _drops(self, node: NodeDef, plans: dict[str, Plan]) -> bool:
        """Drop a node's plan if it is not worthwhile, or if other nodes no longer fit it."""
        plan = plans[node.name]
        if self._holds(node, plan, plans):
            if Form.LISTED in {*plan.gives, *(take.form for take in plan.takes)}:
                return False  # lists are not converted: all lists that meet are joined, or none is
            joined, separate = self._costs(node, plan, plans)
            if joined <= separate:
                return False
        del plans[node.name]
        return True

    def _holds(self, node: NodeDef, plan: Plan, plans: Mapping[str, Plan]) -> bool:
        """Return whether other nodes still meet a plan's assumptions.

        A varying value must not be read from the first replica alone. A sum or list for all
        replicas must be read as a sum or list.
        """
        for source, take in zip(data_inputs(node), plan.takes, strict=False):
            form = self._analysis.form_of(source, plans)
            if take.form is Form.LISTED and not self._is_list(source, form):
                return False
            if take.form is Form.SHARED and take.constant is None and form is not Form.SHARED:
                return False
        return all(self.fits_readers(source, plans) for source in self._outputs[node.name])

    def _is_list(self, source: Reference, form: Form | None) -> bool:
        """Return whether one list can represent the lists of all replicas."""
        if form is Form.LISTED:
            return True
        node = self._nodes.get(source.source)
        return form is Form.SHARED and node is not None and node.op in FRESH

    def fits_readers(self, source: Reference, plans: Mapping[str, Plan]) -> bool:
        """Return whether all readers of a sum or list for all replicas take it as such."""
        form, results = self._analysis.form_of(source, plans), self._returned.get(source, set())
        if Form.LISTED in results and not self._is_list(source, form):
            return False
        if form not in {Form.SUMMED, Form.LISTED}:
            return True
        return results <= {form} and all(
            (form is Form.SUMMED and user.op == _SUM)
            or (user.name in plans and _takes_as(user, plans[user.name], source, form))
            for user in self._uses.get(source, ())
        )

    def _costs(self, node: NodeDef, plan: Plan, plans: Mapping[str, Plan]) -> tuple[float, float]:
        """Return the cost of conversions if a node is joined, and if it is not."""
        joined, separate = 0.0, plan.gain
        for source in dict.fromkeys(data_inputs(node)):
            if self._analysis.variance(source) is not Variance.VARYING:
                continue
            users = self._users[source.source]
            alike = sum(user.name in plans for user in users)
            if source.source not in plans and not self._analysis.is_stacked(source):
                joined += self._conversion(source) / max(alike, 1)
            else:
                separate += self._conversion(source) / (len(users) - alike + 1)
        users = self._users[node.name]
        others = [user for user in users if user.name not in plans and user.op != _SUM]
        size = self.statics.bytes_of(node) / _BYTES
        if others or node.name in self._parted:
            joined += _CONVERSION
        if len(others) < len(users):
            separate += _CONVERSION + size
        return joined, separate

    def _conversion(self, source: Reference) -> float:
        sizes = self.statics.sizes(source) or ()
        return _CONVERSION + math.prod(sizes) * int(self.statics.dtype(source).size) / _BYTES

    def bytes_of(self, names: Collection[str]) -> float:
        """Return the bytes of a replica's part of some nodes' outputs."""
        total = 0.0
        for name in names:
            total += self.statics.bytes_of(self._nodes[name])
            for inner in (body.analysis for body in self.plans[name].bodies.values()):
                joined = [node for node in inner.order if node.name in inner.plans]
                total += _TURNS * sum(map(inner.statics.bytes_of, joined))
        return total


_SUM = "CrossReplicaSum"
_ELEMENTS = "TensorListElementShape"
"""An operation that returns the shape of a list's elements, and not rows of numbers."""
_SUM_TAKES = frozenset({Form.SUMMED, Form.SHARED})


def _takes_as(node: NodeDef, plan: Plan, source: Reference, form: Form) -> bool:
    """Return whether a node takes a tensor in one form, at all of its inputs."""
    pairs = zip(data_inputs(node), plan.takes, strict=False)
    return all(
        take.form is form or take.constant is not None for tensor, take in pairs if tensor == source
    )


class _Bodies:
    """Joined loops and branches, which go the same way on every replica."""

    def __init__(self, library: Library, sizes: Callable[[str], KnownSizes], replicas: int) -> None:
        self._library = library
        self._sizes = sizes
        self._replicas = replicas

    def plan(self, outer: _Candidates, analysis: Analysis, node: NodeDef) -> Plan | None:
        """Return how one loop or branch computes the values of all replicas."""
        called = [self._library(name) for name in called_functions(node)]
        if any(has_effects(function, self._library) for function in called):
            return None
        is_loop = node.op in LOOPS
        outputs = analysis.output_variances[node.name]
        sources = data_inputs(node) if is_loop else data_inputs(node)[1:]
        results = [Reference(node.name, f":output:{k}") for k in range(len(outputs))]
        gives = outer.forms(sources if is_loop else results, outputs)
        takes = gives if is_loop else outer.forms(sources, [*map(analysis.variance, sources)])
        if gives is None or takes is None:
            return None
        summed = {
            k
            for k, form in enumerate(gives)
            if form in {Form.ROWS, Form.STACKED} and outer.may_sum(results[k])
        }
        while True:
            ends = [Form.SUMMED if k in summed else form for k, form in enumerate(gives)]
            starts = ends if is_loop else takes
            bodies: dict[str, Body] = {}
            wrong: set[int] = set()
            for name in called_functions(node):
                is_condition = is_loop and name == node.attr["cond"].func.name
                forms = [Form.SHARED] if is_condition else ends
                arguments = {
                    parameter.name: _argument(form, analysis.arguments.get(source.source))
                    for parameter, source, form in zip(
                        self._library(name).signature.input_arg, sources, starts, strict=True
                    )
                }
                sizes = self._sizes(name)
                around = {
                    (name_of_argument, 0): known
                    for name_of_argument, source in zip(arguments, sources, strict=True)
                    if (known := outer.statics.sizes(source)) is not None
                }
                if is_loop and not is_condition and not _same(arguments, sizes, around):
                    return None  # the shape changes from turn to turn
                body = self._body(name, arguments, {**around, **sizes}, forms)
                if body is None:
                    return None
                bodies[name], not_summed = body
                wrong |= not_summed
            if not wrong:
                break
            summed -= wrong
        gain = _gain_of(bodies.values())
        if gain <= 0:
            return None
        gain = _TURNS * gain if is_loop else gain + _CONVERSION
        ways = [] if is_loop else [SHARED]
        return Plan([*ways, *map(Take, starts)], ends, gain=gain, bodies=bodies)

    def _body(
        self,
        name: str,
        arguments: Arguments,
        sizes: KnownSizes,
        gives: Sequence[Form],
    ) -> tuple[Body, set[int]] | None:
        """Return the joined function, and the arguments or results that are not sums."""
        function = with_constant_shapes(read_past_loops(self._library(name), self._library), sizes)
        inner = analyze(function, arguments, self._library)
        candidates = _Candidates(function, inner, sizes, self._replicas, self, gives)
        plans = candidates.worthwhile()
        not_summed: set[int] = set()
        for index, (name_of_argument, argument) in enumerate(arguments.items()):
            if not argument.is_stacked:
                continue
            if not candidates.fits_readers(Reference(name_of_argument, ""), plans):
                if argument.form is not Form.SUMMED:
                    return None
                not_summed.add(index)
        for index, (result, form) in enumerate(zip(returned(function), gives, strict=True)):
            varies = inner.variance(result.source) is Variance.VARYING
            if form is Form.SHARED and varies:
                return None
            if form is not Form.SHARED and not candidates.gives(result.source, form, plans):
                if form is not Form.SUMMED:
                    return None
                not_summed.add(index)
        if inner.must_separate or not plans.keys() >= _lifted(inner):
            return None
        return Body(function, candidates.joined(plans), gives), not_summed


def _lifted(analysis: Analysis) -> set[str]:
    """Return the nodes that are control flow with collectives."""
    return {name for name, role in analysis.roles.items() if role is Role.LIFTED}


def _same(arguments: Arguments, sizes: KnownSizes, around: KnownSizes) -> bool:
    """Return whether varying values have the same shape in a function and around it."""
    keys = [(name, 0) for name, argument in arguments.items() if argument.is_stacked]
    return all(key in sizes and sizes[key] == around.get(key) for key in keys)


def _argument(form: Form, outer: Argument | None) -> Argument:
    """Return how a value in some form reaches the function of a loop or branch."""
    if form is not Form.SHARED:
        return Argument(Passing.STACKED, form=form)
    if outer is not None and outer.is_mirrored:
        # If a variable is the same on every replica, the function takes the first replica's handle.
        return Argument(Passing.MIRRORED, outer.key, traced_together=True)
    return Argument(Passing.SHARED)


def _gain_of(bodies: Iterable[Body]) -> float:
    """Return the nodes per replica that joining saves in each turn, if it joins most of them."""
    gain = 0.0
    for body in bodies:
        gain += sum(plan.gain for plan in body.analysis.plans.values())
        used, analysis = needed(body.function), body.analysis
        gain -= sum(
            name in used and variance is Variance.VARYING and name not in analysis.plans
            for name, variance in analysis.variances.items()
        )
    return gain
