"""The user's lines on which a traced step scales tensors by given numbers.

The trace knows a number however the code found it: a literal, a name, `len(cores)`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from tpunb._util.user_code import is_users_file
from tpunb.errors.code_problems import SourceLine
from tpunb.tensorflow.virtual.graph.function_def import (
    Library,
    StaticTensors,
    called_functions,
    data_inputs,
)
from tpunb.tensorflow.virtual.graph.traced_function import SourceLines, TracedFunction
from tpunb.tensorflow.virtual.private_names import FunctionDef

_SCALES = frozenset({"Div", "DivNoNan", "Mul", "MulNoNan", "RealDiv"})
"""The operations whose whole numbers scale, too; in others, these are sizes and axes."""

_GRADIENTS = "gradient_tape/"  # the scope of what tf.GradientTape adds, on the user's line
_FUNCTIONS = ("/keras/src/ops/", "/keras/src/backend/", "/keras/src/utils/", "/tensorflow/")
"""The folders of functions that take their numbers from a caller, as no layer of Keras does."""


def lines_that_scale(
    functions: Sequence[TracedFunction], numbers: Collection[float]
) -> Iterator[SourceLine]:
    """Yield the user's lines that may scale a tensor by one of the numbers.

    Args:
        functions: The replica functions of a step.
        numbers: The numbers; their sign does not matter.
    """
    seen = set()
    for traced in functions:
        lines = SourceLines(traced.atomic)
        for path, value in _constants(traced.definition, traced.library):
            if not any(np.allclose(np.abs(value), number, rtol=1e-5) for number in numbers):
                continue
            place = next(filter(_is_told, lines.frames(path)), None)
            if place is not None and is_users_file(place.file) and place not in seen:
                seen.add(place)
                yield place


def _is_told(place: SourceLine) -> bool:
    """Return whether a line chooses numbers, and does not only take them from a caller."""
    return is_users_file(place.file) or not any(folder in place.file for folder in _FUNCTIONS)


def _constants(
    function: FunctionDef, library: Library, prefix: str = ""
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the path of each node that may scale a tensor, with its constants."""
    nodes = {node.name: node for node in function.node_def}
    known = StaticTensors(function, nodes, {})
    for node in function.node_def:
        path = prefix + node.name
        if _GRADIENTS in path or node.op in {"Cast", "Const"}:
            continue
        for body in called_functions(node):
            yield from _constants(library(body), library, f"{path}/")
        for source in data_inputs(node):
            while (giver := nodes.get(source.source)) is not None and giver.op == "Cast":
                source = data_inputs(giver)[0]
            value = known.value(source)
            if value is None or not value.size or value.dtype.kind not in "iufV":
                continue
            if node.op in _SCALES or value.dtype.kind in "fV":
                yield path, np.asarray(value, np.float64)
