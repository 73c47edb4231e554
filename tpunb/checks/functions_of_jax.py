"""The refusal of JAX functions where only TensorFlow's can be taken."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Sequence
from typing import Any

from tpunb.errors import TpunbError
from tpunb.errors.jax_in_cells import FOR_JAX

_JAX, _TENSORFLOW = frozenset({"jax", "jaxlib"}), frozenset({"tensorflow"})


def refuse_jax(door: str, fn: Any, args: Sequence[Any], error: type[TpunbError]) -> None:
    """Refuse a function that is JAX's.

    Args:
        door: The function of tpunb that was called, as in `FOR_JAX`.
        fn: The user's function.
        args: Its arguments.
        error: The error to raise.

    Raises:
        TpunbError: The function is JAX's: by its type, its arguments, or the modules it reads.
    """
    packages = {_package(type(fn)), *(_package(type(arg)) for arg in args), *_read_by(fn)}
    if packages & _JAX and not packages & _TENSORFLOW:
        raise error(
            f"{door} is for TensorFlow, and this function is JAX's.",
            fix=f"For JAX: {FOR_JAX[door]}",
        )


def _read_by(fn: Any) -> set[str]:
    """Return the packages of the modules and functions that a function's own code reads."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(fn, "__code__", None)
    if code is None:
        return set()
    closed = inspect.getclosurevars(fn) if isinstance(fn, types.FunctionType) else None
    values = [] if closed is None else [*closed.globals.values(), *closed.nonlocals.values()]
    return set(map(_package, values))


def _package(value: Any) -> str:
    name = value.__name__ if isinstance(value, types.ModuleType) else None
    name = name or getattr(value, "__module__", None)
    return name.partition(".")[0] if isinstance(name, str) else ""
