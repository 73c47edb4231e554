"""The equations of a jaxpr, and the user's lines that they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tpunb.errors.code_problems import SourceLine, is_library


class Located(NamedTuple):
    """An equation and its place.

    Attributes:
        equation: The equation.
        source: The equation whose place in the code it has. A function of a library that is traced
            once keeps the lines of its first call, so its equations have the place of the call.
        is_conditional: Whether it is in a branch, which not every call runs.
    """

    equation: Any
    source: Any
    is_conditional: bool = False


def all_equations(
    program: Any, source: Any = None, *, is_conditional: bool = False
) -> Iterator[Located]:
    """Yield the equations of a jaxpr and of the jaxprs in it."""
    for equation in program.eqns:
        yield Located(equation, source or equation, is_conditional)
        inside = is_conditional or equation.primitive.name == "cond"
        for inner in programs_in(equation):
            yield from all_equations(
                inner, source_inside(equation, inner, source), is_conditional=inside
            )


def programs_in(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs that an equation calls."""
    for value in equation.params.values():
        for each in value if isinstance(value, list | tuple) else (value,):
            inner = getattr(each, "jaxpr", each)
            if hasattr(inner, "eqns"):
                yield inner


def source_inside(equation: Any, inner: Any, source: Any) -> Any:
    """Return the equation that gives the equations of an inner jaxpr their place; None for own."""
    if source is not None:
        return source
    file = getattr(inner.debug_info, "func_filename", None)
    is_cached = equation.primitive.name in {"jit", "pjit"}
    return equation if is_cached and file is not None and is_library(file) else None


def places_of(equation: Any) -> Iterator[SourceLine]:
    """Yield the user's lines that led to an equation, innermost first."""
    traceback = equation.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        if not is_library(frame.file_name):
            yield SourceLine(frame.file_name, int(frame.line_num))


def bytes_of(aval: Any) -> int:
    """Return the bytes of an array by its type; 0 for JAX's own types, such as random keys."""
    return int(aval.size * getattr(aval.dtype, "itemsize", 0)) if hasattr(aval, "dtype") else 0


def scan_counts(equation: Any) -> tuple[int, int]:
    """Return the numbers of the constants and of the carried values of a `jax.lax.scan`."""
    params = equation.params
    if "ft_in" in params:  # since JAX 0.12
        consts, carried, _ = map(list, params["ft_in"].unpack())
        return len(consts), len(carried)
    return params["num_consts"], params["num_carry"]
