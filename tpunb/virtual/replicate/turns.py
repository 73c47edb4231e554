"""Replicas in turns: no more of them at a time than there are processors for.

Left alone, TensorFlow runs all replicas at once and holds what each of them needs for its
gradients. On as many processors that is a TPU; on two it is eight times the memory for the
speed of two. So a replica begins its part of a step, up to the next collective, when an
earlier one has ended it. Only the order changes, not the numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tpunb.virtual._tensorflow import NodeDef
from tpunb.virtual.graph.function_def import (
    ASSIGNMENTS,
    READS,
    control_inputs,
    data_inputs,
    is_stateful,
)
from tpunb.virtual.graph.nodes import instance
from tpunb.virtual.replicate.builder import Builder
from tpunb.virtual.replicate.variance import Role, Variance

_ANYTIME = -1
"""The part of what waits for no replica: constants and reads, which need no memory."""

_LITTLE = 2**24
"""A part for which all replicas together need no more bytes takes no turns."""


def take_turns(builder: Builder) -> None:
    """Makes the replicas' nodes, which are written, wait for those of earlier replicas.

    Args:
        builder: Has written the nodes of a function, or of a body.
    """
    pairs = list(_followers(builder.processes, builder.setting.at_once))
    if not pairs:
        return
    parts = _Parts(builder)
    written = {node.name: node for node in builder.result.node_def}
    for part, starts in parts.starts.items():
        if parts.bytes[part] * len(builder.cores) <= _LITTLE:
            continue
        for earlier, later in pairs:
            ended = f"tpunb_turn_{part}_ended/replica_{earlier}"
            began = f"tpunb_turn_{part}/replica_{later}"
            waits = [f"^{instance(name, earlier)}" for name in parts.ends[part]]
            builder.add("NoOp", ended, builder.cores[earlier][0], waits)
            builder.add("NoOp", began, builder.cores[later][0], [f"^{ended}"])
            for name in starts:
                written[instance(name, later)].input.append(f"^{began}")


def _followers(processes: Sequence[str], at_once: int | None) -> Iterator[tuple[int, int]]:
    """Pairs of replicas, of which the second waits for the first.

    Args:
        processes: The process of each replica.
        at_once: How many replicas of a process run at a time; None for all.
    """
    if at_once is None:
        return
    inside: dict[str, list[int]] = defaultdict(list)
    for replica, process in enumerate(processes):
        inside[process].append(replica)
    for replicas in inside.values():
        yield from zip(replicas, replicas[at_once:], strict=False)


class _Parts:
    """A replica function in parts that end where the replicas meet.

    A part may depend on earlier ones of any replica, and on the same of its own replica
    only: whatever the order of the replicas, none waits for itself.

    Attributes:
        starts: For each part the nodes that wait for nothing else in it.
        ends: For each part the nodes that nothing else in it waits for.
        bytes: For each part how much memory a replica's own nodes take at the most.
    """

    def __init__(self, builder: Builder) -> None:
        self.starts: dict[int, list[str]] = defaultdict(list)
        self.ends: dict[int, dict[str, None]] = defaultdict(dict)
        self.bytes: dict[int, float] = defaultdict(float)
        self._builder = builder
        self._parts: dict[str, int] = {}
        self._inside: set[str] = set()
        for node in builder.analysis.order:
            if builder.runs(node):
                self._visit(node)

    def _visit(self, node: NodeDef) -> None:
        builder = self._builder
        own = self._is_own(node.name)
        sources = [source.source for source in data_inputs(node)] + control_inputs(node)
        sources = [name for name in sources if name in self._parts]
        part = max(map(self._after, sources), default=_ANYTIME)
        if own and builder.analysis.variances[node.name] is Variance.VARYING:
            part = max(part, 0)
        self._parts[node.name] = part
        if not own or part == _ANYTIME:
            return
        self.bytes[part] += self._bytes(node)
        before = [name for name in sources if name in self._inside and self._parts[name] == part]
        if not before:
            if builder.analysis.variances[node.name] is not Variance.VARYING:
                return
            self.starts[part].append(node.name)
        self._inside.add(node.name)
        for name in before:
            self.ends[part].pop(name, None)
        self.ends[part][node.name] = None

    def _bytes(self, node: NodeDef) -> float:
        """How much memory a node takes at the most, as far as that is known."""
        statics = self._builder.analysis.statics
        if statics is None or (is_stateful(node) and node.op not in READS | ASSIGNMENTS):
            return math.inf
        return statics.bytes_of(node)

    def _is_own(self, name: str) -> bool:
        """Whether every replica has a node of its own, which is no meeting of them."""
        builder = self._builder
        return builder.analysis.roles[name] is Role.COMPUTE and builder.is_repeated(name)

    def _after(self, name: str) -> int:
        """The first part that what follows a node can be in."""
        part = self._parts[name]
        return part if part == _ANYTIME or self._is_own(name) else part + 1
