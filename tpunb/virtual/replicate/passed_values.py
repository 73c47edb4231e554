"""What is passed to a function for all replicas: arguments and captures, some as one tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.virtual._tensorflow import EagerTensor, ops
from tpunb.virtual.graph.traced_function import TracedFunction
from tpunb.virtual.replicate.trace import TracedVariable
from tpunb.virtual.replicate.variance import Argument, Passing

_MOST_BYTES = 2**26
"""Of values that exist already, and are kept once more."""


def stacked(column: Sequence[Any], places: Sequence[Sequence[str]]) -> Any | None:
    """The values of all replicas along a new axis 0, where that costs no step anything.

    So it is with values that never change: what a function closes over, numbers such as
    the replica's own. And with parts of one tensor, as an input pipeline gives them.

    Args:
        column: The value for each replica.
        places: The devices that compute for each.

    Returns:
        One tensor, or None to pass one for each.
    """
    if len({place for logical in places for place in logical}) > 1 or len(column) < 2:
        return None
    if column[0].dtype in {tf.resource, tf.variant}:
        return None
    return _whole(column, places[0][0]) if isinstance(column[0], tf.Tensor) else None


def _whole(column: Sequence[Any], place: str) -> Any | None:
    if all(isinstance(value, EagerTensor) for value in column):
        return _of_eager(column, place)
    if any(isinstance(value, EagerTensor) for value in column):
        return None
    kinds = {value.op.type for value in column}
    if kinds == {"Const"}:
        return _of_constants(column)
    return _unstacked(column) if kinds == {"Unpack"} else None


def _of_eager(column: Sequence[Any], place: str) -> Any | None:
    if len({tuple(value.shape) for value in column}) > 1:
        return None
    size = column[0].shape.num_elements() * column[0].dtype.size * len(column)
    if size > _MOST_BYTES or not ops.executing_eagerly_outside_functions():
        return None
    with ops.init_scope(), tf.device(place):
        return tf.stack(column) if tf.executing_eagerly() else None


def _of_constants(column: Sequence[Any]) -> Any | None:
    values = [tf.get_static_value(value) for value in column]
    if any(value is None for value in values) or len({np.shape(value) for value in values}) > 1:
        return None
    return tf.constant(np.stack(values), column[0].dtype)


def _unstacked(column: Sequence[Any]) -> Any | None:
    """The tensor of which these are all parts along axis 0, in their order."""
    unpack = column[0].op
    whole = unpack.get_attr("axis") == 0 and len(unpack.outputs) == len(column)
    places = {id(part): place for place, part in enumerate(unpack.outputs)}
    order = [places.get(id(part)) for part in column]
    if not whole or None in order or len(set(order)) < len(order):
        return None
    if order == list(range(len(order))):
        return unpack.inputs[0]
    return tf.gather(unpack.inputs[0], order)


@dataclasses.dataclass(frozen=True)
class Passed:
    """An argument of the traced function, and what is passed for it.

    Attributes:
        name: Its name.
        argument: How it reaches the replicas.
        values: One value for all replicas, or one for each; of a variable its handles.
    """

    name: str
    argument: Argument
    values: Sequence[Any]


def passed_to(traced: TracedFunction, columns: Sequence[Sequence[Any]]) -> list[Passed]:
    """The arguments of the traced function: those of the call, then what it captures."""
    graph = traced.graph
    external = {id(inner): outer for outer, inner in graph.captures}
    names = [argument.name for argument in traced.definition.signature.input_arg]
    places = graph.tracing.options.places
    inputs = [_of_column(*pair, places) for pair in zip(names, columns, strict=False)]
    captured = graph.inputs[len(columns) :]
    for name, placeholder in zip(names[len(columns) :], captured, strict=True):
        variable = graph.tracing.variables.get(id(placeholder))
        if variable is None:
            inputs.append(Passed(name, Argument(Passing.SHARED), [external[id(placeholder)]]))
        else:
            inputs.append(_of_variable(name, variable))
    return inputs


def _of_column(name: str, column: Sequence[Any], places: Sequence[Sequence[str]]) -> Passed:
    if len(column) > 1 and all(value is column[0] for value in column):
        return Passed(name, Argument(Passing.SHARED), column[:1])
    whole = stacked(column, places)
    if whole is not None:
        return Passed(name, Argument(Passing.STACKED), [whole])
    return Passed(name, Argument(Passing.VARYING), column)


def _of_variable(name: str, variable: TracedVariable) -> Passed:
    parts, merged = variable.parts, variable.merged
    if merged is not None:
        # Its copies may have been split since it was traced.
        handles, are_merged = merged.handles(), merged.are_merged
        merged.used |= are_merged
        argument = Argument(Passing.MIRRORED, key=variable.key, merged=are_merged)
        return Passed(name, argument, handles)
    argument = Argument(
        Passing.MIRRORED if variable.mirrored else Passing.LOCAL,
        key=variable.key if variable.mirrored else "",
        home=parts.home,
        copy_type=parts.dtype if parts.copies else None,
    )
    return Passed(name, argument, [*parts.handles, *parts.copies])
