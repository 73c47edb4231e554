"""Programs of JAX, traced once, so that another trace cannot do something else."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tpunb.puzzles.framework import AnswerError, Numbers
from tpunb.virtual.jax.import_jax import import_jax

_HOST = frozenset({"pure_callback", "io_callback", "debug_callback", "outside_call"})
_PLATFORM = "platform_index"
"""The primitive of `jax.lax.platform_dependent`, whose program for a TPU is not what runs here."""
_ARITHMETIC = frozenset({"add", "add_any", "sub", "mul", "div", "dot_general", "integer_pow"})


@dataclasses.dataclass(frozen=True)
class Jax:
    """The framework JAX.

    Attributes:
        needs: Primitives that a program has to have, such as `"pallas_call"`.
    """

    needs: tuple[str, ...] = ()

    def traced(self, fn: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
        """Trace a function, and return a `jax.jit` of this one program."""
        jax = jax_module()
        closed, results = jax.make_jaxpr(fn, return_shape=True)(*args)
        _refuse_other_work(closed.jaxpr, self.needs)
        tree = jax.tree_util.tree_structure(results)
        call = jax.extend.core.jaxpr_as_fun(closed)

        def run(*arrays: Any) -> Any:
            return jax.tree_util.tree_unflatten(tree, call(*jax.tree_util.tree_leaves(arrays)))

        run.__name__ = getattr(fn, "__name__", "answer")
        return jax.jit(run)  # type: ignore[no-any-return]

    def types(self, nest: Any) -> Any:
        """Return the types of the arrays in a nest."""
        jax = jax_module()

        def of(value: Any) -> Any:
            array = jax.numpy.asarray(value)
            return jax.ShapeDtypeStruct(array.shape, array.dtype)

        return jax.tree_util.tree_map(of, nest)

    def type_of(self, shape: Sequence[int], dtype: str, sharding: Any = None) -> Any:
        """Return the type of an array, perhaps with its sharding."""
        jax = jax_module()
        return jax.ShapeDtypeStruct(tuple(shape), jax.numpy.dtype(dtype), sharding=sharding)

    def numbers(self, nest: Any) -> list[Numbers]:
        """Return the arrays in a nest, in order, as float64."""
        leaves = jax_module().tree_util.tree_leaves(nest)
        return [np.asarray(leaf, "float64") for leaf in leaves]

    def compiling(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which a program is compiled."""
        return _without_lines() if self.needs else contextlib.nullcontext()


def jax_module() -> Any:
    """Return JAX.

    Raises:
        ConnectError: JAX is not installed, or it is too old.
    """
    import_jax()
    importlib.import_module("jax.extend.core")
    return sys.modules["jax"]


def _refuse_other_work(jaxpr: Any, needs: Sequence[str]) -> None:
    """Refuse a program that computes outside of the TPU, or outside of the needed primitives."""
    found = set(_primitives(jaxpr))
    if found & _HOST:
        raise AnswerError(
            f"The host computes here ({min(found & _HOST)}), so the TPU's program says nothing. "
            "Compute with JAX alone."
        )
    if _PLATFORM in found:
        raise AnswerError("Compute the same on every platform, without platform_dependent.")
    if missing := [name for name in needs if name not in found]:
        raise AnswerError(f"The answer has to use {missing[0]}.")
    if needs and set(_primitives(jaxpr, without=needs)) & _ARITHMETIC:
        raise AnswerError(f"All arithmetic has to be in {needs[0]}, and not outside of it.")


def _primitives(jaxpr: Any, without: Sequence[str] = ()) -> Iterator[str]:
    """Yield the names of a program's primitives, with those inside of all but some."""
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        if eqn.primitive.name in without:
            continue
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _primitives(inner, without)


@contextlib.contextmanager
def _without_lines() -> Iterator[None]:
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
