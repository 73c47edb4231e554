"""Variables that are read, added to and assigned: one node in place of three.

Keras's metrics do it, of which each replica has its own: `v.assign(v + x)`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from tpunb.virtual._tensorflow import FunctionDef, NodeDef
from tpunb.virtual.graph.function_def import Reference, control_inputs, data_inputs, reference
from tpunb.virtual.graph.rewrite import Rewrite
from tpunb.virtual.graph.static_tensors import KnownSizes, StaticTensors

_IN_PLACE = {"AddV2": "AssignAddVariableOp", "Sub": "AssignSubVariableOp"}


def with_additions(function: FunctionDef, known: KnownSizes) -> FunctionDef:
    """A function that adds to variables in place where it assigns what they hold and more.

    Args:
        function: The function, its calls inlined; it is not changed.
        known: The shapes that are known.

    Returns:
        A new one, or the same if it has none to change.
    """
    found = _Additions(function, known)
    instead = {
        node.name: addition
        for node in function.node_def
        if node.op == "AssignVariableOp" and (addition := found.addition(node)) is not None
    }
    if not instead:
        return function
    rewrite = Rewrite(function)
    for node in function.node_def:
        if node.name in found.replaced:
            rewrite.drop(node.name)  # all that waits for it waits for the addition as well
        else:
            rewrite.keep(instead.get(node.name, node))
    return rewrite.finish()


class _Additions:
    """Where a function assigns a variable a sum of what it holds and something else.

    Attributes:
        replaced: The names of the nodes that read and add, where one node does it all.
    """

    def __init__(self, function: FunctionDef, known: KnownSizes) -> None:
        self.replaced: set[str] = set()
        self._nodes: Mapping[str, NodeDef] = {node.name: node for node in function.node_def}
        self._sizes = StaticTensors(function, self._nodes, known)
        nodes = function.node_def
        self._uses = Counter(source.source for node in nodes for source in data_inputs(node))
        self._uses.update(reference(text).source for text in function.ret.values())
        self._waiting: dict[str, list[NodeDef]] = defaultdict(list)
        for node in nodes:
            for name in control_inputs(node):
                self._waiting[name].append(node)
        self._ends = frozenset(function.control_ret.values())

    def addition(self, node: NodeDef) -> NodeDef | None:
        """The node that adds to a variable in place of one that assigns it the sum."""
        handle, value = data_inputs(node)
        total = self._nodes.get(value.source)
        if total is None or total.op not in _IN_PLACE or not self._is_only_for(total, node):
            return None
        for read, added in self._ways(total, handle):
            if self._is_only_for(read, node) and self._fits(read, added):
                self.replaced.update((read.name, total.name))
                return _added(node, total, read, handle, added)
        return None

    def _ways(self, total: NodeDef, handle: Reference) -> list[tuple[NodeDef, Reference]]:
        """The reads of a variable among what is added, each with what is added to it."""
        first, second = data_inputs(total)
        pairs = [(first, second), (second, first)] if total.op == "AddV2" else [(first, second)]
        nodes = [(self._nodes.get(one.source), other) for one, other in pairs]
        return [
            (node, other)
            for node, other in nodes
            if node is not None and node.op == "ReadVariableOp" and data_inputs(node) == [handle]
        ]

    def _is_only_for(self, node: NodeDef, end: NodeDef) -> bool:
        """Whether nothing needs a node that does not need a later one as well.

        What changes the variable between the two waits for the first, and not for the second.
        """
        waiting = [other for other in self._waiting[node.name] if other.name != end.name]
        return (
            self._uses[node.name] == 1
            and all(end.name in control_inputs(other) for other in waiting)
            and (node.name not in self._ends or end.name in self._ends)
        )

    def _fits(self, read: NodeDef, added: Reference) -> bool:
        """Whether what is added has the variable's shape: nothing is broadcast in place."""
        sizes = self._sizes.output_sizes(read.name, 0)
        return sizes is not None and sizes == self._sizes.sizes(added)


def _added(
    node: NodeDef, total: NodeDef, read: NodeDef, handle: Reference, added: Reference
) -> NodeDef:
    result = NodeDef(op=_IN_PLACE[total.op], name=node.name, device=node.device)
    result.attr["dtype"].CopyFrom(node.attr["dtype"])
    result.experimental_debug_info.CopyFrom(node.experimental_debug_info)
    waits = [*control_inputs(node), *control_inputs(total), *control_inputs(read)]
    names = [name for name in dict.fromkeys(waits) if name != read.name]
    data = [one.source + one.suffix for one in (handle, added)]
    result.input.extend([*data, *(f"^{name}" for name in names)])
    return result
