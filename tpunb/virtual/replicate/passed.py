"""What is passed to a function for all replicas: its arguments, and what it captures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tpunb.virtual.graph.traced_function import TracedFunction
from tpunb.virtual.replicate.stacked_inputs import stacked
from tpunb.virtual.replicate.trace import TracedVariable
from tpunb.virtual.replicate.variance import Argument, Passing

__all__ = ["Passed", "passed_to"]


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
