"""What a call of JAX reaches: a `jax.jit` and its arguments, in methods, partials and libraries.

The modules of Flax and of Equinox are no functions of arrays, and their own `jit`s turn them into
some. What a TPU compiles is the `jax.jit` in these.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from tpunb.compiler.program import CompileError

T = TypeVar("T")


def at_the_jit(fn: Any, args: Sequence[Any], then: Callable[..., T]) -> T:
    """Return what `then` makes of the `jax.jit` that a call reaches, and of that one's arguments.

    Methods and partials give it what they hold. Libraries wrap it to turn their own objects into
    arrays (`flax.nnx.jit`, `equinox.filter_jit`): their `lower` is called, and `then` takes the
    place of the `jax.jit` in it. A function without one gets one.

    Raises:
        CompileError: It is made for the devices of this machine, as `jax.pmap` does it.
    """
    jax: Any = sys.modules["jax"]
    kind = type(jax.jit(at_the_jit))
    called: Any = fn
    given = list(args)
    named: dict[str, Any] = {}
    while True:
        if isinstance(called, types.MethodType):  # also of a jax.jit in a class
            called, given = called.__func__, [called.__self__, *given]
        elif hasattr(called, "func") and hasattr(called, "keywords"):  # functools' or Equinox's
            named = {**called.keywords, **named}
            called, given = called.func, [*called.args, *given]
        else:
            break
    if isinstance(called, kind):
        return then(called, given, named)
    if not hasattr(called, "lower"):
        held, tree = jax.tree_util.tree_flatten(fn)  # of a module of Equinox or Flax, its arrays
        kinds = (jax.Array, jax.ShapeDtypeStruct, np.ndarray)
        arrays = {place: leaf for place, leaf in enumerate(held) if isinstance(leaf, kinds)}
        if not arrays:
            return then(jax.jit(fn), args, {})

        def call(model: Any, *args: Any) -> Any:
            leaves = [model.get(place, leaf) for place, leaf in enumerate(held)]
            return jax.tree_util.tree_unflatten(tree, leaves)(*args)

        return then(jax.jit(call), [arrays, *args], {})
    by_jax = type(called).__module__.partition(".")[0] in {"builtins", "jaxlib"}
    attributes = {} if by_jax else getattr(called, "__dict__", {})
    held = {name: value for name, value in attributes.items() if isinstance(value, kind)}
    for name, jitted in held.items():
        reached = _Reached(jitted, then)
        if not hasattr(called, "trace"):  # Equinox's: a shape is no array to it
            given, named = reached.arrays(given), reached.arrays(named)
        object.__setattr__(called, name, reached)  # its instances are frozen
        try:
            called.lower(*given, **named)
        except _ReachedError:
            return cast("T", reached.result)
        finally:
            object.__setattr__(called, name, jitted)
    raise CompileError(
        "The call leads to no jax.jit. jax.pmap, for one, maps over this machine's devices.",
        fix="Pass a function, or a jax.jit of one: jax.shard_map maps it over a "
        "jax.sharding.AbstractMesh of TPU cores.",
    )


class _ReachedError(Exception):
    """Ends a library's `lower` where its `jax.jit` is reached."""


class _Reached:
    """Stands for a `jax.jit` while a library lowers it; calls of other threads go through.

    Args:
        jitted: The `jax.jit`.
        then: What is made of it and of its arguments.
    """

    def __init__(self, jitted: Any, then: Callable[..., Any]) -> None:
        self._jitted, self._then = jitted, then
        self._arrays: list[tuple[np.ndarray, Any]] = []
        self.result: Any = None

    def arrays(self, nest: Any) -> Any:
        """Arguments with arrays, which take no memory, in the place of shapes."""

        def array(value: Any) -> Any:
            is_shape = isinstance(value, sys.modules["jax"].ShapeDtypeStruct)
            if not is_shape or not isinstance(value.dtype, np.dtype):
                return value
            self._arrays.append((np.broadcast_to(np.zeros((), value.dtype), value.shape), value))
            return self._arrays[-1][0]

        return sys.modules["jax"].tree_util.tree_map(array, nest)

    def lower(self, *args: Any, **named: Any) -> Any:
        shapes = {id(array): shape for array, shape in self._arrays}
        args, named = sys.modules["jax"].tree_util.tree_map(
            lambda leaf: shapes.get(id(leaf), leaf), (args, named)
        )
        self.result = self._then(self._jitted, args, named)
        raise _ReachedError

    trace = lower

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._jitted(*args, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jitted, name)
