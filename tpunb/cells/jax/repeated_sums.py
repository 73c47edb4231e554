"""Sums over the replicas of values that were already added up over the replicas."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

_SUM = "psum_invariant"
_COPY = "pvary"


def repeated_sums(program: Any) -> list[Any]:
    """Return the equations that add up, over the replicas, what another sum has made equal.

    JAX adds up a gradient with respect to a whole array by itself. A second sum then gives a
    multiple of it. In a program's text this is `psum_invariant(pvary(x))`, where `x` comes from
    another `psum_invariant`; the names are those of JAX 0.7 to 0.12.

    Args:
        program: A jaxpr, with the jaxprs inside it.
    """
    found: list[Any] = []
    _visit(program, [False] * len(program.invars), found)
    return found


def _visit(program: Any, summed_inputs: Sequence[bool], found: list[Any]) -> list[bool]:
    """Append the equations to `found`; return for each output whether it comes from a sum."""
    made_by = {variable: equation for equation in program.eqns for variable in equation.outvars}
    summed = {
        variable
        for variable, is_summed in zip(program.invars, summed_inputs, strict=True)
        if is_summed
    }

    def is_summed(value: Any) -> bool:
        return not hasattr(value, "val") and value in summed  # literals have a value

    for equation in program.eqns:
        name = equation.primitive.name
        flags = [is_summed(value) for value in equation.invars]
        of_outputs = [name == _SUM or (name != _COPY and any(flags))] * len(equation.outvars)
        for inner in _programs_in(equation):
            is_call = len(inner.invars) == len(flags) and len(inner.outvars) == len(of_outputs)
            inside = _visit(inner, flags if is_call else [False] * len(inner.invars), found)
            of_outputs = inside if is_call else of_outputs
        summed.update(itertools.compress(equation.outvars, of_outputs))
        copies = [made_by.get(value) for value in equation.invars if not hasattr(value, "val")]
        sources = [each.invars[0] for each in copies if each and each.primitive.name == _COPY]
        if name == _SUM and any(map(is_summed, sources)):
            found.append(equation)
    return [is_summed(value) for value in program.outvars]


def _programs_in(equation: Any) -> Iterator[Any]:
    """Yield the programs that an equation calls."""
    for value in equation.params.values():
        for each in value if isinstance(value, list | tuple) else (value,):
            inner = getattr(each, "jaxpr", each)
            if hasattr(inner, "eqns"):
                yield inner


def line_of(equation: Any, filename: str) -> int | None:
    """Return the line of a file that an equation comes from; None if it has none."""
    traceback = equation.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        if frame.file_name == filename:
            return int(frame.line_num)
    return None
