"""Programs of TensorFlow, traced once, so that another trace cannot do something else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.puzzles.framework import AnswerError, Numbers

_HOST = frozenset({"PyFunc", "EagerPyFunc", "PyFuncStateless"})


class TensorFlow:
    """The framework TensorFlow."""

    def traced(self, fn: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
        """Trace a function, and return its `tf.function`, which keeps the trace."""
        function = tf.function(fn)
        _refuse_host_work(function.get_concrete_function(*args).graph)
        return function  # type: ignore[no-any-return]

    def types(self, nest: Any) -> Any:
        """Return the types of the arrays in a nest."""

        def of(value: Any) -> Any:
            tensor = tf.convert_to_tensor(value)
            return tf.TensorSpec(tensor.shape, tensor.dtype)

        return tf.nest.map_structure(of, nest)

    def type_of(self, shape: Sequence[int], dtype: str) -> Any:
        """Return the type of an array."""
        return tf.TensorSpec(shape, dtype)

    def numbers(self, nest: Any) -> list[Numbers]:
        """Return the arrays in a nest, in order, as float64."""
        return [np.asarray(leaf).astype("float64") for leaf in tf.nest.flatten(nest)]

    def compiling(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which a program is compiled."""
        return contextlib.nullcontext()


def _refuse_host_work(graph: Any) -> None:
    """Refuse a graph that calls Python.

    Raises:
        AnswerError: The graph calls Python.
    """
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    if any(node.op in _HOST for node in nodes):
        raise AnswerError(
            "The host computes here, in tf.py_function or tf.numpy_function. Use TensorFlow's own "
            "operations."
        )
