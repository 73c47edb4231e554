"""Tensors of a replica function whose value on every replica is known before the function runs.

The number of a replica is such a tensor, and so is everything that is computed from the number and
from constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.virtual.tensorflow.graph.function_def import (
    Reference,
    called_functions,
    data_inputs,
    is_stateful,
)
from tpunb.virtual.tensorflow.private_names import FunctionDef, NodeDef, function_def_to_graph_def

Values = Sequence[np.ndarray]
"""A tensor's value on each replica."""

Known = Mapping[str, Callable[[], Values | None]]
"""The values of a function's arguments, by their names; None for values that are not known."""


class ReplicaConstants:
    """The tensors of a function that are known on every replica.

    Args:
        function: The function.
        arguments: The values of its arguments.
        replicas: The number of replicas.
    """

    def __init__(self, function: FunctionDef, arguments: Known, replicas: int) -> None:
        self._replicas = replicas
        self._nodes = {node.name: node for node in function.node_def}
        self._inputs = {argument.name: argument for argument in function.signature.input_arg}
        self._arguments = arguments

    def of(self, source: Reference) -> Values | None:
        """Return a tensor's value on each replica; None if it is not known."""
        found = self._sources(source)
        if found is None:
            return None
        nodes, fed = found
        computed = FunctionDef(node_def=nodes, ret={"value": f"{source.source}{source.suffix}"})
        computed.signature.input_arg.extend(self._inputs[name] for name in fed)
        graph, names = function_def_to_graph_def(computed)
        try:
            values = _evaluated(graph, names[computed.ret["value"]], fed)
        except tf.errors.OpError:  # only a TPU has a kernel, or an assertion fails
            return None
        return values if fed else values * self._replicas

    def _sources(self, source: Reference) -> tuple[list[NodeDef], dict[str, Values]] | None:
        """Return the nodes and the arguments that a tensor is computed from; None if not known."""
        pending, nodes, fed = [source.source], dict[str, NodeDef](), dict[str, Values]()
        while pending:
            name = pending.pop()
            if name in nodes or name in fed:
                continue
            node = self._nodes.get(name)
            if node is None:
                values = self._arguments.get(name, lambda: None)()
                if values is None:
                    return None
                fed[name] = values
            elif is_stateful(node) or any(called_functions(node)):
                return None
            else:
                copy = nodes[name] = NodeDef()
                copy.CopyFrom(node)
                copy.device = ""
                del copy.input[:]
                copy.input.extend(text for text in node.input if not text.startswith("^"))
                pending.extend(earlier.source for earlier in data_inputs(node))
        return list(nodes.values()), fed


def _evaluated(graph: Any, name: str, fed: Mapping[str, Values]) -> list[np.ndarray]:
    """Return a tensor of a graph for each replica's values of the placeholders."""
    columns = list(zip(*fed.values(), strict=True)) or [()]
    with tf.Graph().as_default() as built:
        (result,) = tf.graph_util.import_graph_def(graph, return_elements=[name], name="")
        with tf.compat.v1.Session(graph=built) as session:
            feeds = [
                {f"{key}:0": value for key, value in zip(fed, column, strict=True)}
                for column in columns
            ]
            return [np.asarray(session.run(result, feed)) for feed in feeds]
