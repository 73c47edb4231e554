"""A function's nodes written into a graph of TensorFlow 1's, in place of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import FunctionDef, function_def_to_graph_def


def write_into_graph(function: FunctionDef, values: Sequence[Any]) -> list[Any]:
    """Writes a function's nodes into the graph that is being built.

    Args:
        function: The function; the graph has those that it calls.
        values: Its arguments.

    Returns:
        Its results, which wait for all that it does.
    """
    graph, names = function_def_to_graph_def(function)
    given = dict(zip((one.name for one in function.signature.input_arg), values, strict=True))
    for node in [node for node in graph.node if node.name in given]:
        graph.node.remove(node)
    results = [function.ret[output.name] for output in function.signature.output_arg]
    made = [text for text in results if text not in given]
    effects = [function.control_ret[name] for name in function.signature.control_output]
    found = tf.graph_util.import_graph_def(
        graph,
        input_map={f"{name}:0": value for name, value in given.items()},
        return_elements=[*(names[text] for text in made), *effects],
        name=function.signature.name,
    )
    tensors = {**given, **dict(zip(made, found, strict=False))}
    with tf.control_dependencies(found[len(made) :]):
        return [tf.identity(tensors[text]) for text in results]
