"""The call of a `jax.jit` that compiles a program: its function and its static arguments."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import weakref
from typing import Any

from tpunb.errors.code_problems import SourceLine, is_library

_CALL = "cache_miss"
"""JAX's function, in `jax/_src/pjit.py`, that each call of a `jax.jit` without a program runs."""


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
    """Return the call of a `jax.jit` that runs now; None if it is not known.

    No name of JAX has it. It is read from the frame of the call, by the names of its variables in
    JAX 0.7 to 0.12.
    """
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == _CALL and code.co_filename.endswith("pjit.py"):
            break
        frame = frame.f_back  # type: ignore[assignment]
    else:
        return None
    known = frame.f_locals
    try:
        function = weakref.ref(known["fun"])
        static = _static(known["fun"], known["jit_info"], known["args"], known["kwargs"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return JitCall(function, static, _users_line(frame))


def _static(function: Any, info: Any, args: Any, named: Any) -> dict[str, str]:
    names = list(inspect.signature(function).parameters)
    numbers = [number for number in info.static_argnums if number < len(args)]
    by_number = {(names[n] if n < len(names) else f"argument {n}"): args[n] for n in numbers}
    by_name = {name: named[name] for name in info.static_argnames if name in named}
    return {name: repr(value) for name, value in {**by_number, **by_name}.items()}


def _users_line(frame: Any) -> SourceLine | None:
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else SourceLine(frame.f_code.co_filename, frame.f_lineno)
