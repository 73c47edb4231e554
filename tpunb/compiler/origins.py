"""From an instruction of a program to the node, the line and the layer that it came from."""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping

from tpunb.errors.code_problems import Choose, SourceLine
from tpunb.virtual.graph.function_def import called_functions, data_inputs
from tpunb.virtual.graph.traced_function import TracedFunction
from tpunb.virtual.strict.source_lines import SourceLines

_TAPES = frozenset({"gradient_tape", "gradients"})
_KERNEL = re.compile(r"Grad(?=V\d|$)|Backprop\w*")
"""What an operation's gradient has in its name, beside the operation's own."""


class GraphOrigins:
    """The places that the instructions of a traced function's program come from.

    Args:
        traced: The function.
        choose: Which of the lines that led to a node is shown.
        layers: The names of the Keras layers, as they stand in the names of nodes.
    """

    def __init__(
        self, traced: TracedFunction, choose: Choose, layers: Collection[str] = ()
    ) -> None:
        self._traced, self._choose, self._layers = traced, choose, frozenset(layers)
        self._places = SourceLines(traced.atomic)
        self.line = functools.cache(self._line)
        self.layer = functools.cache(self._layer)

    def places(self, node: str) -> tuple[SourceLine, ...]:
        """The lines of the user's code that led to a node, innermost first."""
        for candidate in self._candidates(node):
            name = candidate
            while name:
                if self._places.knows(name) and (found := self._places.own(name)):
                    return tuple(found)
                name = name.rpartition("/")[0]
        return tuple(self._places.own(node))

    def _line(self, node: str) -> SourceLine | None:
        chosen = self._choose(self.places(node)) if node else None
        return SourceLine(*chosen) if chosen else None

    def _layer(self, node: str) -> str:
        """The innermost layer in a node's name; a gradient's is that of what it is one of."""
        for part in reversed(node.split("/")):
            # Of a layer's second call TensorFlow numbers the scope.
            for name in (part, re.sub(r"_\d+$", "", part)):
                if name in self._layers:
                    return name
        return ""

    def operation(self, node: str) -> str:
        """TensorFlow's operation of a node; empty where it is not known."""
        name = node
        while name:
            if name in self.operations:
                return self.operations[name]
            name = name.rpartition("/")[0]
        return ""

    def _candidates(self, node: str) -> Iterator[str]:
        """Names by which to look for a node: of a gradient first what it is the gradient of."""
        if found := self._forward.get(node):
            yield found
        parts = node.split("/")
        for place, part in enumerate(parts):
            if part in _TAPES:
                forward = [re.sub(r"_grad$", "", one) for one in parts[place + 1 :]]
                yield "/".join([*parts[:place], *forward])
        yield node

    @functools.cached_property
    def _forward(self) -> Mapping[str, str]:
        """Of a gradient's kernel the node that it is the gradient of: they share tensors.

        The names of those that TensorFlow's functions make themselves, as `tf.nn.conv2d` does, do
        not tell: `gradient_tape/Conv2DBackpropFilter_1`.
        """
        nodes = {node.name: node for node in self._traced.definition.node_def}
        takers: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
        for node in nodes.values():
            for one in data_inputs(node):
                takers[node.op, one.source].append(node.name)
        found: dict[str, str] = {}
        taken: set[tuple[str, str]] = set()
        for node in nodes.values():
            if (op := _KERNEL.sub("", node.op)) == node.op:
                continue
            sources = [one.source for one in data_inputs(node)]
            shared = collections.Counter(name for one in sources for name in takers[op, one])
            if not shared:  # it takes what the other gives
                shared.update(one for one in sources if one in nodes and nodes[one].op == op)
            most = max(shared.values(), default=0)
            # Gradients are made from the last to the first.
            order = [name for name in reversed(shared) if shared[name] == most]
            free = [name for name in order if (node.op, name) not in taken]
            if order:
                found[node.name] = (free or order)[0]
                taken.add((node.op, found[node.name]))
        return found

    @functools.cached_property
    def operations(self) -> Mapping[str, str]:
        """TensorFlow's operations by the names of their nodes, in called functions too."""
        return dict(_operations(self._traced.definition, self._traced.library, "", frozenset()))


def _operations(
    function: object, library: Callable[[str], object], path: str, around: frozenset[str]
) -> Iterator[tuple[str, str]]:
    for node in function.node_def:  # type: ignore[attr-defined]
        yield path + node.name, node.op
        for callee in called_functions(node):
            if callee not in around:
                inner = f"{path}{node.name}/"
                yield from _operations(library(callee), library, inner, around | {callee})
