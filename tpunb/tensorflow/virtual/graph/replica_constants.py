"""Tensors of a replica function whose value on every replica is known before the function runs.

The number of a replica is such a tensor, and so is everything that is computed from the number and
from constants.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.tensorflow.virtual.graph.function_def import (
    Reference,
    called_functions,
    data_inputs,
    is_stateful,
)
from tpunb.tensorflow.virtual.private_names import FunctionDef, NodeDef, function_def_to_graph_def

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
        self._function = function
        self._nodes = {node.name: node for node in function.node_def}
        self._arguments = arguments
        self._computations: dict[Reference, _Computation | None] = {}

    def given(self, values: Sequence[Callable[[], Values | None]]) -> ReplicaConstants:
        """Return the tensors of the same function for other values of all its arguments."""
        other = copy.copy(self)  # it shares the computations
        names = [argument.name for argument in self._function.signature.input_arg]
        other._arguments = dict(zip(names, values, strict=True))
        return other

    def of(self, source: Reference) -> Values | None:
        """Return a tensor's value on each replica; None if it is not known."""
        if source not in self._computations:
            self._computations[source] = self._computation(source)
        computation = self._computations[source]
        if computation is None:
            return None
        fed = []
        for name in computation.arguments:
            values = self._arguments.get(name, lambda: None)()
            if values is None:
                return None
            fed.append(values)
        try:
            return computation.values(list(zip(*fed, strict=True)) or [()] * self._replicas)
        except tf.errors.OpError:  # only a TPU has a kernel, or an assertion fails
            return None

    def _computation(self, source: Reference) -> _Computation | None:
        """Return how a tensor is computed from the arguments; None if it is not known."""
        pending, nodes, arguments = [source.source], dict[str, NodeDef](), dict[str, None]()
        while pending:
            name = pending.pop()
            if name in nodes or name in arguments:
                continue
            node = self._nodes.get(name)
            if node is None:
                arguments[name] = None
            elif is_stateful(node) or any(called_functions(node)):
                return None
            else:
                nodes[name] = _plain(node)
                pending.extend(earlier.source for earlier in data_inputs(node))
        result = f"{source.source}{source.suffix}"
        computed = FunctionDef(node_def=nodes.values(), ret={"value": result})
        computed.signature.input_arg.extend(
            argument
            for argument in self._function.signature.input_arg
            if argument.name in arguments
        )
        return _Computation(computed)


def _plain(node: NodeDef) -> NodeDef:
    """Return a node that runs on any device and waits only for its inputs."""
    plain = NodeDef()
    plain.CopyFrom(node)
    plain.device = ""
    del plain.input[:]
    plain.input.extend(text for text in node.input if not text.startswith("^"))
    return plain


class _Computation:
    """One graph for a tensor, for all replicas and for all turns of a loop.

    Args:
        function: Computes the tensor.

    Attributes:
        arguments: The names of the function's arguments.
    """

    def __init__(self, function: FunctionDef) -> None:
        self.arguments = [argument.name for argument in function.signature.input_arg]
        self._function = function

    def values(self, columns: Sequence[Sequence[np.ndarray]]) -> Values:
        """Return the tensor for each column of arguments."""
        known: dict[Any, np.ndarray] = {}
        results = []
        for column in columns:
            key = tuple((value.dtype.str, value.shape, value.tobytes()) for value in column)
            if key not in known:
                known[key] = np.asarray(self._run(*column))
            results.append(known[key])
        return results

    @functools.cached_property
    def _run(self) -> Callable[..., Any]:
        graph, names = function_def_to_graph_def(self._function)
        name = names[self._function.ret["value"]]
        with tf.Graph().as_default() as built:
            (result,) = tf.graph_util.import_graph_def(graph, return_elements=[name], name="")
            fed = [built.get_tensor_by_name(f"{argument}:0") for argument in self.arguments]
        # In the thread of the caller, a run takes 80 microseconds of a processor instead of 200.
        in_this_thread = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=-1)
        session = tf.compat.v1.Session(graph=built, config=in_this_thread)
        run: Callable[..., Any] = session.make_callable(result, fed)
        return run
