"""From an instruction of a program to the node, the line and the layer that it came from."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from tpunb.errors.code_problems import SourceLine
from tpunb.virtual.replicate.graphs import called_functions
from tpunb.virtual.strict.source_lines import SourceLines
from tpunb.virtual.strict.traced_function import TracedFunction

__all__ = ["Choose", "Origins"]

Choose = Callable[[Sequence[SourceLine]], "tuple[str, int] | None"]
"""Which of the lines that led to a node is shown."""

_TAPES = frozenset({"gradient_tape", "gradients"})


class Origins:
    """Where the instructions of a traced function's program came from.

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
        for candidate in _candidates(node):
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
            if name in self._operations:
                return self._operations[name]
            name = name.rpartition("/")[0]
        return ""

    @functools.cached_property
    def _operations(self) -> Mapping[str, str]:
        return dict(_operations(self._traced.definition, self._traced.library, "", frozenset()))


def _candidates(node: str) -> Iterator[str]:
    """Names by which to look for a node: of a gradient first what it is the gradient of."""
    parts = node.split("/")
    for place, part in enumerate(parts):
        if part in _TAPES:
            forward = [re.sub(r"_grad$", "", one) for one in parts[place + 1 :]]
            yield "/".join([*parts[:place], *forward])
    yield node


def _operations(
    function: object, library: Callable[[str], object], path: str, around: frozenset[str]
) -> Iterator[tuple[str, str]]:
    for node in function.node_def:  # type: ignore[attr-defined]
        yield path + node.name, node.op
        for callee in called_functions(node):
            if callee not in around:
                inner = f"{path}{node.name}/"
                yield from _operations(library(callee), library, inner, around | {callee})
