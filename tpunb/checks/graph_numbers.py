"""The constants by which a traced step may scale tensors on the user's lines.

These are literals, and numbers that no reading of names finds, such as `len(cores)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpunb._util.user_code import is_users_file
from tpunb.checks.replica_numbers import Number, number_in
from tpunb.errors.code_problems import SourceLine
from tpunb.virtual.tensorflow.graph.function_def import (
    Library,
    StaticTensors,
    called_functions,
    data_inputs,
)
from tpunb.virtual.tensorflow.graph.traced_function import SourceLines, TracedFunction
from tpunb.virtual.tensorflow.private_names import FunctionDef

_SCALES = frozenset({"Div", "DivNoNan", "Mul", "MulNoNan", "RealDiv"})
"""The operations whose whole numbers scale, too; in others, these are sizes and axes."""

_GRADIENTS = "gradient_tape/"  # the scope of what tf.GradientTape adds, on the user's line
_FUNCTIONS = ("/keras/src/ops/", "/keras/src/backend/", "/keras/src/utils/", "/tensorflow/")
"""The folders of functions that take their numbers from a caller, as no layer of Keras does."""


def numbers_in(functions: Sequence[TracedFunction]) -> Iterator[Number]:
    """Yield the constants that may scale a tensor on the user's lines.

    Args:
        functions: The replica functions of a step.
    """
    for traced in functions:
        lines = SourceLines(traced.atomic)
        for path, value in _constants(traced.definition, traced.library):
            place = next(filter(_is_told, lines.frames(path)), None)
            if place is not None and is_users_file(place.file):
                yield Number(f"{value:g}", place.line, value)


def _is_told(place: SourceLine) -> bool:
    """Return whether a line chooses numbers, and does not only take them from a caller."""
    return is_users_file(place.file) or not any(folder in place.file for folder in _FUNCTIONS)


def _constants(
    function: FunctionDef, library: Library, prefix: str = ""
) -> Iterator[tuple[str, float]]:
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
            if value is None or (node.op not in _SCALES and value.dtype.kind in "biu"):
                continue
            number = number_in(value)
            if number is not None:
                yield path, number
