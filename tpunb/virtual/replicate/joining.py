"""Which nodes do once, for all replicas, what would be done on each: replicas as one batch.

Eight products of [16, 64] with shared weights are one of [128, 64]. On a processor that is
shared, one operation on the values of all replicas, joined in one tensor, is faster than one
for each. What has no rule stays as it was, node by node.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from tpunb.virtual._tensorflow import FunctionDef, NodeDef, dtypes
from tpunb.virtual.devices import process_of
from tpunb.virtual.graph.collectives import gives_one_value
from tpunb.virtual.graph.effects import READS
from tpunb.virtual.graph.function_def import (
    OUTSIDE,
    Reference,
    data_inputs,
    is_stateful,
    needed,
    reference,
)
from tpunb.virtual.graph.static_tensors import (
    KnownSizes,
    StaticTensors,
    output_types,
)
from tpunb.virtual.replicate.joined_forms import ROWS, Form, Input, Plan, Seen
from tpunb.virtual.replicate.joining_rules import linear, rule_of
from tpunb.virtual.replicate.variance import Analysis, Role, Variance

# In nodes for each replica: what it costs to join the replicas' values or to part them again,
# between devices, and for how many bytes of each the copying takes as long as a node.
_CONVERSION = 2.5
_BYTES = 20_000


@dataclasses.dataclass(frozen=True)
class Joining:
    """What is known for joining, beyond the function itself.

    Attributes:
        sizes: The shapes of the replica function's tensors.
        most: How many bytes all joined values may take together.
    """

    sizes: KnownSizes
    most: float


def join(
    function: FunctionDef, analysis: Analysis, cores: Sequence[Sequence[str]], joining: Joining
) -> Analysis:
    """Finds which nodes of a replica function one node does for all replicas.

    Args:
        function: The function of one replica, its calls inlined.
        analysis: What of it varies between the replicas.
        cores: The devices of each replica, its logical devices in order.
        joining: What is known for it.

    Returns:
        The analysis with the plans of these nodes, whose role is `Role.JOINED`.
    """
    if not _is_one_machine(cores):
        return analysis
    candidates = _Candidates(function, analysis, joining.sizes, len(cores))
    plans = candidates.worthwhile()
    if not plans or candidates.bytes_of(plans) * len(cores) > joining.most:
        return analysis
    roles = {**analysis.roles, **dict.fromkeys(plans, Role.JOINED)}
    statics = candidates.statics
    return dataclasses.replace(analysis, roles=roles, plans=plans, statics=statics)


def _is_one_machine(cores: Sequence[Sequence[str]]) -> bool:
    """Whether there are several replicas of one core each, all in one process."""
    processes = {process_of(core) for logical in cores for core in logical}
    return len(cores) > 1 and len(cores[0]) == 1 and len(processes) == 1


class _Candidates:
    """The nodes that one node could do for all replicas.

    Attributes:
        statics: What is known of the function's tensors.
        plans: How each can be done, by its name.
    """

    def __init__(
        self, function: FunctionDef, analysis: Analysis, sizes: KnownSizes, replicas: int
    ) -> None:
        self._analysis = analysis
        self._replicas = replicas
        self._nodes = {node.name: node for node in analysis.order}
        self._needed = needed(function)
        self._returned = {reference(text).source for text in function.ret.values()}
        self.statics = StaticTensors(function, self._nodes, sizes)
        self._users: dict[str, list[NodeDef]] = defaultdict(list)
        for node in analysis.order:
            if node.name in self._needed:
                for name in dict.fromkeys(source.source for source in data_inputs(node)):
                    self._users[name].append(node)
        self.plans: dict[str, Plan] = {}
        for node in reversed(analysis.order):
            plan = self._plan(node)
            if plan is not None:
                self.plans[node.name] = plan

    def _plan(self, node: NodeDef) -> Plan | None:
        """How a node can be done; of those that read it this is known already."""
        known = rule_of(node.op)
        if known is None or not self._may_join(node):
            return None
        taken = map(self.statics.dtype, data_inputs(node))
        kinds = [kind for kind in taken if kind != dtypes.resource] + output_types(node)
        seen = self._seen(node) if known.holds(node, kinds) else None
        if seen is None:
            return None
        plan = (linear(seen) if seen.summed else None) or known.rule(seen)
        return plan if plan is not None and _has_rows(plan, seen) else None

    def _may_join(self, node: NodeDef) -> bool:
        analysis = self._analysis
        return (
            node.name in self._needed
            and analysis.roles[node.name] is Role.COMPUTE
            and analysis.variances[node.name] is Variance.VARYING
            and not node.device
            and (not is_stateful(node) or node.op in _HARMLESS)
            and OUTSIDE not in node.attr
        )

    def _seen(self, node: NodeDef) -> Seen | None:
        """A node with what is known of it; None if that is too little."""
        kinds = output_types(node)
        outputs = [self.statics.output_sizes(node.name, k) for k in range(len(kinds))]
        inputs = [self._input(source) for source in data_inputs(node)]
        known_outputs = [one for one in outputs if one is not None and 0 not in one]
        known_inputs = [one for one in inputs if one is not None]
        if len(known_outputs) < len(outputs) or len(known_inputs) < len(inputs):
            return None
        if not any(one.varies for one in known_inputs):
            return None
        # The sum of all overflows in float16 where those of each, scaled down or not, do not.
        summed = dtypes.float16 not in kinds and self._is_summed(node.name)
        return Seen(node, known_inputs, known_outputs, self._replicas, summed)

    def _input(self, source: Reference) -> Input | None:
        kind = self.statics.dtype(source)
        varies = self._analysis.variance(source) is Variance.VARYING
        if kind == dtypes.resource:
            # The handle of a variable that is the same on every replica.
            argument = self._analysis.arguments.get(source.source)
            shared = argument is not None and argument.is_mirrored and not varies
            return Input((), kind, varies=False, value=lambda: None) if shared else None
        sizes = self.statics.sizes(source)
        if sizes is None or (varies and 0 in sizes):
            return None
        return Input(sizes, kind, varies, lambda: self.statics.value(source))

    def _is_summed(self, name: str) -> bool:
        """Whether nothing reads a node but the sums of it over all replicas."""
        users = self._users.get(name, [])
        if not users or name in self._returned:
            return False
        return all(self._sums(user) for user in users)

    def _sums(self, user: NodeDef) -> bool:
        if user.op == "CrossReplicaSum":
            return gives_one_value(user, self._nodes)
        plan = self.plans.get(user.name)
        return plan is not None and all(one.form in _SUM_TAKES for one in plan.takes)

    # What is worth its conversions.

    def worthwhile(self) -> dict[str, Plan]:
        """The plans without those that would convert more than they save."""
        plans = dict(self.plans)
        order = [node for node in self._analysis.order if node.name in plans]
        while True:
            dropped = [node for node in order if node.name in plans and self._drops(node, plans)]
            if not dropped:
                return plans
            order = [node for node in order if node.name in plans]

    def _drops(self, node: NodeDef, plans: dict[str, Plan]) -> bool:
        """Drops a node's plan if it is not worthwhile, or if it has lost what it counts on."""
        plan = plans[node.name]
        sums = all(form is Form.SUMMED for form in plan.gives)
        if sums and not all(self._still_sums(user, plans) for user in self._users[node.name]):
            del plans[node.name]
            return True
        joined, apart = self._costs(node, plan, plans)
        if joined > apart:
            del plans[node.name]
            return True
        return False

    def _still_sums(self, user: NodeDef, plans: Mapping[str, Plan]) -> bool:
        return user.op == "CrossReplicaSum" or user.name in plans

    def _costs(self, node: NodeDef, plan: Plan, plans: Mapping[str, Plan]) -> tuple[float, float]:
        """What conversions cost where a node is joined, and with the node where it is not."""
        joined, apart = 0.0, plan.gain
        for source in dict.fromkeys(data_inputs(node)):
            if self._analysis.variance(source) is not Variance.VARYING:
                continue
            users = self._users[source.source]
            alike = sum(user.name in plans for user in users)
            if source.source not in plans and not self._analysis.is_stacked(source):
                joined += self._conversion(source) / max(alike, 1)
            else:
                apart += self._conversion(source) / (len(users) - alike + 1)
        users = self._users[node.name]
        others = [user for user in users if user.name not in plans and not _is_sum(user)]
        size = self.statics.bytes_of(node) / _BYTES
        if others or node.name in self._returned:
            joined += _CONVERSION
        if len(others) < len(users):
            apart += _CONVERSION + size
        return joined, apart

    def _conversion(self, source: Reference) -> float:
        sizes = self.statics.sizes(source) or ()
        return _CONVERSION + math.prod(sizes) * int(self.statics.dtype(source).size) / _BYTES

    def bytes_of(self, names: Collection[str]) -> float:
        """How many bytes a replica's part of what nodes give takes."""
        return sum(self.statics.bytes_of(self._nodes[name]) for name in names)


_HARMLESS = READS | {"CheckNumerics"}
"""Stateful operations that may as well run once."""
_SUM_TAKES = frozenset({Form.SUMMED, Form.SHARED})


def _is_sum(node: NodeDef) -> bool:
    return bool(node.op == "CrossReplicaSum")


def _has_rows(plan: Plan, seen: Seen) -> bool:
    """Whether what is taken by rows has an axis."""
    return not plan.takes or all(
        one.sizes or take is not ROWS for take, one in zip(plan.takes, seen.inputs, strict=False)
    )
