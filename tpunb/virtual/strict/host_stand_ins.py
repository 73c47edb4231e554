"""What stands in loops and branches for what the host gives there, and for what only it takes.

The compiler takes what the host gives a replica function as arguments. A loop or a branch
gets no arguments more: numbers that no one knows stand there for what the host sends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import tensorflow as tf

from tpunb.virtual._tensorflow import FunctionDef, NodeDef, dtypes
from tpunb.virtual.graph.function_def import LOOPS
from tpunb.virtual.graph.nodes import new_constant, new_node, type_of
from tpunb.virtual.strict.diagnostics import Unknown

__all__ = ["hide_what_the_host_takes", "write_unknown"]

_INT32 = dtypes.int32.as_datatype_enum
_NOT_OF_A_CORE = frozenset(
    kind.as_datatype_enum for kind in (dtypes.resource, dtypes.variant, dtypes.string)
)


def write_unknown(function: FunctionDef, name: str, spec: tf.TensorSpec, any_size: int) -> str:
    """Writes a tensor whose value the compiler cannot know; gives the reference to it."""
    if spec.shape.rank is None or spec.dtype == dtypes.string:
        raise Unknown("The host gives what cannot go to a core.")
    sizes = [any_size if size is None else size for size in spec.shape]
    shape = new_constant(f"{name}/shape", sizes)
    number = new_node(
        "RandomUniform",
        f"{name}/number",
        [f"{shape.name}:output:0"],
        T=type_of(dtypes.int32),
        dtype=type_of(dtypes.float32),
    )
    cast = new_node(
        "Cast",
        name,
        [f"{number.name}:output:0"],
        SrcT=type_of(dtypes.float32),
        DstT=type_of(dtypes.as_dtype(spec.dtype)),
    )
    function.node_def.extend([shape, number, cast])
    return f"{name}:y:0"


def hide_what_the_host_takes(
    node: NodeDef, bodies: Sequence[FunctionDef], used: Collection[str]
) -> list[NodeDef]:
    """Puts numbers in place of what only the host's part of a loop or a branch takes.

    Among them are a summary's writer and variables of the host, which no compiler takes.

    Args:
        node: The loop or branch; it is changed.
        bodies: Its functions, without what runs on the host; they are changed.
        used: What anything reads of it.

    Returns:
        What is to be written before the node.
    """
    is_loop = node.op in LOOPS
    kinds = node.attr["T" if is_loop else "Tin"].list.type
    places = [
        place
        for place, kind in enumerate(kinds)
        if kind in _NOT_OF_A_CORE
        and all(_is_unused(body, place) for body in bodies)
        and not (is_loop and f"{node.name}:output:{place}" in used)
    ]
    if not places:
        return []
    zero = new_constant(f"{node.name}/hosts", 0)
    for place in places:
        kinds[place] = _INT32
        node.input[place if is_loop else place + 1] = f"{zero.name}:output:0"
        for body in bodies:
            _make_int32(body, place)
    return [zero]


def _is_unused(body: FunctionDef, place: int) -> bool:
    """Whether a function only hands an argument on, if anything, as the result of its place."""
    name = body.signature.input_arg[place].name
    outputs = [output.name for output in body.signature.output_arg]
    handed_on = [place for place, output in enumerate(outputs) if body.ret[output] == name]
    return set(handed_on) <= {place} and not any(name in node.input for node in body.node_def)


def _make_int32(body: FunctionDef, place: int) -> None:
    argument = body.signature.input_arg[place]
    for one in (argument, *body.signature.output_arg):
        if one is argument or body.ret[one.name] == argument.name:
            one.type = _INT32
            one.ClearField("handle_data")
            one.ClearField("experimental_full_type")
    body.arg_attr.pop(place, None)
