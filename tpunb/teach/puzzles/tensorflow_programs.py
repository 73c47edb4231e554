"""Programs of TensorFlow: traced once, kept as a graph, and run and compiled from it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tpunb.compiler.ask.compile_settings import CompileOptions
from tpunb.compiler.compile import compile_call
from tpunb.compiler.program import TpuProgram
from tpunb.connection.tpu_connection import latest_connection
from tpunb.teach.puzzles.comparison import are_equal
from tpunb.teach.puzzles.framework import AnswerError, Numbers, Traced
from tpunb.tensorflow.checks.rule_check import trace_for
from tpunb.tensorflow.virtual.graph.traced_function import traced_function_of
from tpunb.tensorflow.virtual.private_names import context
from tpunb.tensorflow.virtual.strict.refused_ops import statically_found

_imports = itertools.count()

_HOST = frozenset({"PyFunc", "EagerPyFunc", "PyFuncStateless"})

_NOT_THE_SAME = (
    "The replicas return different results. Combine their parts with "
    'tf.distribute.get_replica_context().all_reduce("sum", value), or "mean".'
)


class TensorFlow:
    """Programs of TensorFlow for one core."""

    tpu: ClassVar[str] = "v5e-1"
    cores: ClassVar[int] = 1
    numbered: ClassVar[bool] = False

    def traced(self, fn: Callable[..., Any], args: Sequence[Any]) -> Traced:
        """Trace a function, once, and return its graph."""
        leaves = tf.nest.flatten(list(args))
        types = tf.nest.pack_sequence_as(list(args), self._types(leaves))
        graph = self._graph(fn, types)
        definition = graph.as_graph_def()
        nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
        if any(node.op in _HOST for node in nodes):
            raise AnswerError(
                "The host computes here, in tf.py_function or tf.numpy_function. Use TensorFlow's "
                "own operations."
            )
        kept = graph.captures
        if any(tensor.dtype == tf.resource for tensor, _ in kept):
            raise AnswerError("The answer uses a variable. Use the arguments alone.")
        return {
            "graph": definition.SerializeToString(),
            # The number of the replica comes first.
            "arguments": [tensor.name for tensor in graph.inputs[: len(leaves) + self.numbered]],
            "constants": {inner.name: outer.numpy() for outer, inner in kept},
            "results": [tensor.name for tensor in graph.outputs],
        }

    def runner(self, traced: Traced, leaves: Sequence[Numbers]) -> Callable[..., list[Numbers]]:
        """Return a function that runs the graph. It has only operations that a TPU has."""
        step = tf.function(imported(traced))
        graph = step.get_concrete_function(*self._types(leaves))
        for problem in statically_found(traced_function_of(graph)):
            raise AnswerError(f"{problem.reason} {problem.fix}")

        def run(*arrays: Numbers) -> list[Numbers]:
            return [np.asarray(tensor, "float64") for tensor in step(*map(tf.constant, arrays))]

        return run

    def compiled(
        self, traced: Traced, leaves: Sequence[Numbers], options: CompileOptions
    ) -> TpuProgram:
        """Return the graph as the TPU's compiler compiles it."""
        fn, types = imported(traced), self._types(leaves)
        return compile_call(fn, types, {}, options, self._strategy())[0]

    def _graph(self, fn: Callable[..., Any], types: Sequence[Any]) -> Any:
        return trace_for(fn, types, self._strategy())[0].graph

    def _types(self, leaves: Sequence[Any]) -> list[Any]:
        return [tf.TensorSpec(each.shape, each.dtype) for each in map(np.asarray, leaves)]

    def _strategy(self) -> Any:
        return None


class TensorFlowOnReplicas(TensorFlow):
    """A replica function: each replica gets an eighth of the rows, and returns the same result."""

    tpu: ClassVar[str] = "v5e-8"
    cores: ClassVar[int] = 8
    numbered: ClassVar[bool] = True

    def runner(self, traced: Traced, leaves: Sequence[Numbers]) -> Callable[..., list[Numbers]]:
        """Return a function that runs the graph on all replicas."""
        strategy, fn = self._strategy(), imported(traced)
        step = tf.function(lambda *parts: strategy.run(fn, args=parts))

        def run(*arrays: Numbers) -> list[Numbers]:
            results = step(*(_distributed(strategy, array) for array in arrays))
            first, *others = zip(*map(strategy.experimental_local_results, results), strict=True)
            if not all(are_equal(first, other) for other in others):
                raise AnswerError(_NOT_THE_SAME)
            return [np.asarray(leaf, "float64") for leaf in first]

        return run

    def _types(self, leaves: Sequence[Any]) -> list[Any]:
        return [
            tf.TensorSpec([each.shape[0] // self.cores, *each.shape[1:]], each.dtype)
            for each in map(np.asarray, leaves)
        ]

    def _strategy(self) -> Any:
        """Return the strategy of the open connection.

        Raises:
            AnswerError: There is none, or it has another number of replicas.
        """
        strategy = getattr(latest_connection(), "strategy", None)
        if strategy is None or strategy.num_replicas_in_sync != self.cores:
            raise AnswerError(
                f"This puzzle needs a virtual TPU with {self.cores} replicas.",
                fix="%tpu_connect --simulate v5e-8",
            )
        return strategy


def imported(traced: Traced) -> Callable[..., list[Any]]:
    """Return the function of a graph, without the code that it was traced from."""
    definition = tf.compat.v1.GraphDef.FromString(traced["graph"])
    _register_functions(definition)
    places = [*traced["arguments"], *traced["constants"]]
    nodes = {name.partition(":")[0] for name in places}  # a placeholder has no TPU kernel
    kept = [node for node in definition.node if node.name not in nodes]
    del definition.node[:]
    definition.node.extend(kept)
    read = {_tensor(name) for node in kept for name in node.input}

    def answer(*tensors: Any) -> list[Any]:
        if len(tensors) < len(traced["arguments"]):
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            tensors = (tf.convert_to_tensor(number), *tensors)
        values = map(tf.convert_to_tensor, [*tensors, *traced["constants"].values()])
        known = dict(zip(places, values, strict=True))
        made = [name for name in traced["results"] if name not in known]
        inputs = {name: value for name, value in known.items() if name in read}
        found = tf.graph_util.import_graph_def(definition, inputs, made, name="")
        known.update(zip(made, found, strict=True))
        return [known[name] for name in traced["results"]]

    return answer


def _register_functions(definition: Any) -> None:
    """Register the functions of a graph, such as the bodies of its loops, under names of their own.

    Importing a graph does not register them. Under their names, TensorFlow knows them for as long
    as it keeps the graph that they were traced in, if this process has traced it.
    """
    number = next(_imports)
    functions = definition.library.function
    names = {each.signature.name: f"{each.signature.name}_{number}" for each in functions}
    for each in functions:
        each.signature.name = names[each.signature.name]
    for gradient in definition.library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
    for node in [*definition.node, *(node for each in functions for node in each.node_def)]:
        node.op = names.get(node.op, node.op)
        for attribute in node.attr.values():
            called = [attribute.func] if attribute.HasField("func") else attribute.list.func
            for function in called:
                function.name = names.get(function.name, function.name)
    for each in functions:
        context.context().add_function_def(each)


def _tensor(name: str) -> str:
    """Return the name of a tensor as an input of a node has it: its first has no number."""
    return name if ":" in name or name.startswith("^") else f"{name}:0"


def _distributed(strategy: Any, array: Numbers) -> Any:
    """Return an array as a value of replicas, each with its part of the rows."""
    parts = np.split(array, strategy.num_replicas_in_sync)
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(parts[context.replica_id_in_sync_group])
    )
