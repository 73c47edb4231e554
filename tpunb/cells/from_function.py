"""Functions as steps: what a Python program runs on every replica."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..errors import CellError, nearest
from .function_globals import functions_of
from .names import Names
from .replica_function import RECORDER
from .settings import RunSettings
from .source import StepSource

__all__ = ["FUNCTION", "FunctionSource", "function_source", "globals_of"]

FUNCTION = "function()"
"""The name under which a function is captured: no identifier, so no result hides it."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NO_GLOBALS: dict[str, Any] = {}  # one for all: programs are found by their namespace


@dataclass(frozen=True, eq=False, kw_only=True)
class FunctionSource(StepSource):
    """A call of a function, whichever it is: the function itself is captured like a name.

    Attributes:
        parameters: The names of what it is called with.
        results: Keys of the dict that it returns, whose values are plotted or combined.
    """

    parameters: tuple[str, ...]
    results: tuple[str, ...]

    def replica_function(self) -> Callable[..., Any]:
        """What runs on each replica; AutoGraph converts it, and the function with it."""
        unconverted = tf.autograph.experimental.do_not_convert
        arguments, finish = unconverted(self._arguments), unconverted(self._finish)

        def tpu_function(**values: Any) -> Any:
            function = values[FUNCTION]
            result = function(*arguments(values))
            return finish(values, result)

        return tpu_function

    def _arguments(self, values: Mapping[str, Any]) -> list[Any]:
        return [values[name] for name in self.parameters]

    def _finish(self, values: Mapping[str, Any], result: Any) -> Any:
        return values[RECORDER].finish(self._named(result), result)

    def _named(self, result: Any) -> dict[str, Any]:
        """The results that have names of their own."""
        if not isinstance(result, Mapping) and len(self.results) == 1:
            return {self.results[0]: result}
        returned = result if isinstance(result, Mapping) else {}
        for name in self.results:
            if name not in returned:
                near = nearest(name, [key for key in returned if isinstance(key, str)])
                meant = " or ".join(f"`{word}`" for word in near)
                raise CellError(
                    f"The function returns no `{name}`.",
                    fix=f"Did you mean {meant}?" if near else "Return a dict that has it.",
                )
        return {name: returned[name] for name in self.results}


def function_source(function: Callable[..., Any], settings: RunSettings) -> FunctionSource:
    """The source of steps that call a function; the very same for functions called alike.

    Raises:
        CellError: It is no function.
    """
    if not callable(function):
        raise CellError(
            f"A {type(function).__name__} cannot be run on the replicas.",
            fix="Give the function that makes one step.",
        )
    wanted = dict.fromkeys([*settings.plot, *(settings.reduce or {}), *(settings.gather or {})])
    wanted.pop("_", None)  # the whole result
    parameters = _parameters(function) if settings.data is not None else ()
    return _source(parameters, tuple(wanted))


def globals_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The namespace that a function reads."""
    plain = getattr(function, "python_function", function)  # of a tf.function
    inner = next(functions_of(plain), None)
    return inner.__globals__ if inner is not None else _NO_GLOBALS


@functools.lru_cache(maxsize=64)
def _source(parameters: tuple[str, ...], results: tuple[str, ...]) -> FunctionSource:
    return FunctionSource(
        text=f"{FUNCTION}: {parameters} -> {results}",
        filename="<function>",
        names=_names([FUNCTION, *parameters], results),
        code=(lambda: None).__code__,  # reads no names itself
        has_value=True,
        parameters=parameters,
        results=results,
    )


def _names(reads: Sequence[str], assigned: Sequence[str]) -> Names:
    return Names(
        reads=dict.fromkeys(reads, 0),
        certain=frozenset(reads),
        assigned=tuple(assigned),
        definite=frozenset(assigned),
        passing=frozenset(),
        bindings=dict.fromkeys(assigned, 1),
        unbound=frozenset(),
    )


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names for what a function takes of a batch: one for the whole, or one for each part."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin, which has no signature
        return ("batch",)
    needed = [p for p in parameters if p.kind in _POSITIONAL and p.default is p.empty]
    if len(needed) <= 1:
        return ("batch",)
    return tuple(f"part{number}" for number in range(len(needed)))
