"""What loops hand on as they were given it, read from where they were given it."""

from __future__ import annotations

from tpunb.virtual._tensorflow import FunctionDef
from tpunb.virtual.graph.effects import READS, has_effects
from tpunb.virtual.graph.function_def import (
    LOOPS,
    Library,
    called_functions,
    data_inputs,
    is_stateful,
)


def handed_on(function: FunctionDef, library: Library) -> FunctionDef:
    """A function that reads what goes through its loops unchanged from before them.

    A gradient asks for the shape of a variable whose handle the loop gave back.

    Args:
        function: The function, its calls inlined; it is not changed.
        library: Finds the functions of control flow.

    Returns:
        A new one, or the same if it has no such loops.
    """
    instead: dict[str, str] = {}
    for node in function.node_def:
        bodies = map(library, called_functions(node)) if node.op in LOOPS else ()
        if node.op not in LOOPS or any(has_effects(body, library) for body in bodies):
            continue
        body = library(node.attr["body"].func.name)
        pairs = zip(body.signature.input_arg, body.signature.output_arg, strict=True)
        for place, (source, (taken, given)) in enumerate(
            zip(data_inputs(node), pairs, strict=True)
        ):
            if body.ret[given.name] == taken.name:
                instead[f"{node.name}:output:{place}"] = f"{source.source}{source.suffix}"
    if not instead:
        return function
    result = FunctionDef()
    result.CopyFrom(function)
    for node in result.node_def:
        if is_stateful(node) and node.op not in READS:
            continue  # the loop has to be through before anything is written
        for place, text in enumerate(node.input):
            node.input[place] = _before(text, instead)
    for name, text in function.ret.items():
        result.ret[name] = _before(text, instead)
    return result


def _before(text: str, instead: dict[str, str]) -> str:
    """What was handed on, by several loops maybe."""
    while text in instead:
        text = instead[text]
    return text
