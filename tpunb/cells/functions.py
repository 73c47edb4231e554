"""Functions as cells: what a Python program runs step after step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import CellError
from .closure import functions_of

if TYPE_CHECKING:
    from .runner import CellRunner
    from .steps import Steps

__all__ = ["run_of_function"]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def run_of_function(
    runner: CellRunner,
    function: Callable[..., Any],
    data: Any,
    *,
    reduce: Mapping[str, str] | None,
    gather: Mapping[str, int] | None,
    plot: Sequence[str],
    **options: Any,
) -> Steps:
    """A run whose step calls a function.

    Raises:
        CellError: The function cannot take what there is.
    """
    if not callable(function):
        raise CellError(
            f"A {type(function).__name__} cannot be run on the replicas.",
            mend="Give the function that makes one step.",
        )
    names = _parameters(function) if data is not None else ()
    wanted = tuple(dict.fromkeys([*plot, *(reduce or {}), *(gather or {})]))
    # What the function returns by name is assigned, so that it can be plotted and combined.
    lines = [f"result = function({', '.join(names)})"]
    lines += [f"{name} = result[{name!r}]" for name in wanted if name.isidentifier()]
    plain = getattr(function, "python_function", function)
    inner = next(functions_of(plain), None)
    return runner.steps(
        "\n".join([*lines, "result"]),
        inner.__globals__ if inner is not None else {},
        data=data,
        names=names or ("batch",),
        plot=plot,
        reduce=reduce,
        gather=gather,
        bound={"function": function},
        **options,
    )


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names for what a function takes of a batch: one for the whole, or one for each part."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin, which does not say
        return ("batch",)
    needed = [p for p in parameters if p.kind in _POSITIONAL and p.default is p.empty]
    if len(needed) <= 1:
        return ("batch",)
    return tuple(f"part{number}" for number in range(len(needed)))
