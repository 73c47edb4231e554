"""What of a replica function runs on the host: because it was asked to, or because it must."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import FunctionDef, NodeDef, dtypes, op_def_registry
from tpunb.virtual.graph.function_def import (
    OUTSIDE,
    Library,
    called_functions,
    has_outside,
    named_operations,
)
from tpunb.virtual.graph.rewrite import inlined
from tpunb.virtual.graph.tensorflow_graphs import body_of
from tpunb.virtual.strict.diagnostics import Diagnostic, Unknown

NO_TENSORS = frozenset({dtypes.resource, dtypes.variant})
"""What the host cannot send to a core."""


@dataclasses.dataclass(frozen=True)
class Host:
    """What of a function runs on the host.

    Attributes:
        nodes: Its nodes that do; what each gives to the core's, by the end of the reference
            to it.
        inside: Likewise of the functions of its loops and branches, by the names of their
            nodes and their own.
    """

    nodes: Mapping[str, Mapping[str, tf.TensorSpec]] = dataclasses.field(default_factory=dict)
    inside: Mapping[tuple[str, str], Host] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.nodes or self.inside)

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """What its nodes give to the core, outside of loops and branches."""
        return [spec for specs in self.nodes.values() for spec in specs.values()]


def on_host(
    graph: Any, definition: FunctionDef, library: Library, found: Iterable[Diagnostic]
) -> Host:
    """Finds what runs on the host, and what the cores take of it.

    Args:
        graph: The traced replica function.
        definition: The same, its calls written out.
        library: Finds the functions that it calls.
        found: What was found in it: what has no kernel for a TPU runs on the host, if at all.

    Raises:
        Unknown: It is not known what the host gives.
    """
    unsupported = {one.node for one in found if one.rule == "unsupported-op"}
    return _Search(library, unsupported).of(definition, graph, "", ())


class _Search:
    def __init__(self, library: Library, unsupported: Collection[str]) -> None:
        self._library = library
        self._unsupported = unsupported
        self._operations = functools.cache(lambda graph: dict(named_operations(graph)))

    def of(self, function: FunctionDef, graph: Any, path: str, returned: Iterable[str]) -> Host:
        """What of a function runs on the host.

        Args:
            function: The function, its calls written out.
            graph: The same as it was traced; None if that is not known.
            path: The names of the nodes around it, as a prefix.
            returned: What of it goes to a core besides what its own nodes take.
        """
        hosted = {
            node.name: node
            for node in function.node_def
            if OUTSIDE in node.attr or path + node.name in self._unsupported
        }
        cores = [node for node in function.node_def if node.name not in hosted]
        used = {text for node in cores for text in node.input}.union(returned)
        given = {name: self._given_by(graph, node, used) for name, node in hosted.items()}
        inside = {
            (node.name, name): found
            for node in cores
            for name in called_functions(node)
            if (found := self._inside(node, name, graph, path))
        }
        return Host(given, inside)

    def _inside(self, node: NodeDef, name: str, graph: Any, path: str) -> Host:
        around = f"{path}{node.name}/"
        body = self._library(name)
        if not has_outside(body, self._library) and not any(
            one.startswith(around) for one in self._unsupported
        ):
            return Host()
        body = inlined(body, self._library)
        operation = None if graph is None else self._operations(graph).get(node.name)
        traced = None if operation is None else body_of(operation.graph, name)
        return self.of(body, traced, around, body.ret.values())

    def _given_by(self, graph: Any, node: NodeDef, used: set[str]) -> dict[str, tf.TensorSpec]:
        """What a node gives to others, by the end of the reference to it."""
        ends = {text[len(node.name) :] for text in used if text.startswith(f"{node.name}:")}
        if not ends:
            return {}
        operation = None if graph is None else self._operations(graph).get(node.name)
        if operation is None:
            raise Unknown("It is not known what a node on the host gives.")
        arguments = [argument.name for argument in op_def_registry.get(node.op).output_arg]
        given = {}
        for end in sorted(ends):
            _, argument, index = end.split(":")
            place = arguments.index(argument) if len(arguments) > 1 else int(index)
            tensor = operation.outputs[place]
            if tensor.dtype in NO_TENSORS:
                raise Unknown("A node on the host gives what is no tensor.")
            given[end] = tf.TensorSpec(tensor.shape, tensor.dtype)
        return given
