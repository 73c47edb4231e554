"""The program of an answer in JAX, traced once, so that another trace cannot do something else."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tpunb.puzzles.refusals import AnswerError
from tpunb.virtual.jax.import_jax import import_jax

_HOST = frozenset({"pure_callback", "io_callback", "debug_callback", "outside_call"})
_PLATFORM = frozenset({"platform_index"})
"""The primitive of `jax.lax.platform_dependent`, whose program for a TPU is not what runs here."""


def jax_module() -> Any:
    """Return JAX.

    Raises:
        ConnectError: JAX is not installed, or it is too old.
    """
    import_jax()
    importlib.import_module("jax.extend.core")
    return sys.modules["jax"]


def traced(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, Callable[..., Any]]:
    """Trace a function.

    Args:
        fn: The function.
        args: Its arguments or their types.

    Returns:
        Its program, and a compiled function that runs this program.
    """
    jax = jax_module()
    closed, results = jax.make_jaxpr(fn, return_shape=True)(*args)
    tree = jax.tree_util.tree_structure(results)
    call = jax.extend.core.jaxpr_as_fun(closed)

    def run(*arrays: Any) -> Any:
        return jax.tree_util.tree_unflatten(tree, call(*jax.tree_util.tree_leaves(arrays)))

    run.__name__ = getattr(fn, "__name__", run.__name__)
    return closed, jax.jit(run)


def refuse_host_work(program: Any, needs: Sequence[str] = ()) -> None:
    """Refuse a program that does not compute on the TPU, or not with what the puzzle is about.

    Args:
        program: The program.
        needs: Primitives that it has to have.

    Raises:
        AnswerError: The host computes, the platform decides, or a primitive is missing.
    """
    found = set(primitives(program.jaxpr))
    if found & _HOST:
        raise AnswerError(
            f"The host computes here ({min(found & _HOST)}), so the TPU's program says nothing. "
            "Compute with JAX alone."
        )
    if found & _PLATFORM:
        raise AnswerError("Compute the same on every platform, without platform_dependent.")
    if missing := [name for name in needs if name not in found]:
        raise AnswerError(f"The answer has to use {missing[0]}.")


@contextlib.contextmanager
def without_lines() -> Iterator[None]:
    """Within a block, lower programs without the lines of their code.

    A Pallas kernel is a part of its program with its lines and files, and the file of a notebook's
    cell is another in each process. So a recorded verdict would never fit. (JAX 0.10.2)
    """
    config = jax_module().config
    former = config.jax_traceback_in_locations_limit
    config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        config.update("jax_traceback_in_locations_limit", former)


def primitives(jaxpr: Any) -> Iterator[str]:
    """Yield the names of a program's primitives, with those of inner programs."""
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from primitives(inner)
