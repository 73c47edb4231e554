"""The call of a `jax.jit` that compiles a program: its function and its static arguments."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from tpunb.errors.code_problems import SourceLine, is_library
from tpunb.jax.virtual.private_names import private

_CALL = "cache_miss"
"""JAX's function, in `jax/_src/pjit.py`, that each call of a `jax.jit` without a program runs."""

_VARIABLES = {"fun", "jit_info", "args", "kwargs"}
"""That function's variables, in JAX 0.7 to 0.12, which have the call: no name of JAX has it."""


@dataclasses.dataclass(frozen=True)
class JitCall:
    """A call of a `jax.jit`.

    Attributes:
        function: A reference to the function.
        static: The static arguments as text, by their names.
        place: The user's line with the call; None if there is none.
    """

    function: weakref.ref[Any]
    static: dict[str, str]
    place: SourceLine | None


def present_jit_call() -> JitCall | None:
    """Return the call of a `jax.jit` that runs now; None if it is not known."""
    if (frame := _calling()) is None:
        return None
    known = frame.f_locals
    try:
        function = weakref.ref(known["fun"])
        static = _static(known["fun"], known["jit_info"], known["args"], known["kwargs"])
    except (AttributeError, TypeError, ValueError):
        return None
    return JitCall(function, static, users_line(frame))


def present_jit() -> tuple[Any, Sequence[Any], Mapping[str, Any]] | None:
    """Return the `jax.jit` of a user's function that is called now, and the call's arguments.

    None if it is not known, or if the function is a library's, whose arguments are not the user's.
    """
    if (frame := _calling()) is None:
        return None
    known = frame.f_locals
    code = getattr(inspect.unwrap(known["fun"]), "__code__", None)
    if code is None or is_library(code.co_filename):
        return None
    jitted = private("jax._src.pjit._cpp_pjit")(known["fun"], known["jit_info"])
    return jitted, known["args"], known["kwargs"]


def _calling() -> Any:
    """Return the frame of the call of a `jax.jit` that runs now; None if there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == _CALL and frame.f_code.co_filename.endswith("pjit.py"):
            return frame if _VARIABLES.issubset(frame.f_locals) else None
        frame = frame.f_back
    return None


def _static(function: Any, info: Any, args: Any, named: Any) -> dict[str, str]:
    names = list(inspect.signature(function).parameters)
    numbers = [number for number in info.static_argnums if number < len(args)]
    by_number = {(names[n] if n < len(names) else f"argument {n}"): args[n] for n in numbers}
    by_name = {name: named[name] for name in info.static_argnames if name in named}
    return {name: repr(value) for name, value in {**by_number, **by_name}.items()}


def users_line(frame: Any) -> SourceLine | None:
    """Return the line of the user's code that led to a frame; None if there is none."""
    while frame is not None and is_library(frame.f_code.co_filename) and not _is_command(frame):
        frame = frame.f_back
    return None if frame is None else SourceLine(frame.f_code.co_filename, frame.f_lineno)


def _is_command(frame: Any) -> bool:
    """Return whether a frame runs the code of `python -c`, whose file's name generated code has."""
    names = frame.f_code.co_filename, frame.f_globals.get("__name__")
    return names == ("<string>", "__main__")
