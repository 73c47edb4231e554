"""Pallas kernels on a virtual TPU: they are interpreted, and the judge gets the kernel itself.

JAX's interpreter for any platform is quick, and is chosen when a kernel is lowered. Kernels that
reach other devices need the interpreter for TPUs, which simulates all devices with ordered
callbacks. These are an effect, which has to be there when the kernel is traced. A kernel that no
interpreter can run is judged, and then refused.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tpunb._util.patching import Replaced
from tpunb._util.units import byte_count, grouped
from tpunb.errors import TpuWarning
from tpunb.jax.virtual.private_names import private
from tpunb.machine.watched_import import when_imported

_PRIMITIVES = {
    "jax._src.pallas.pallas_call": "pallas_call_p",
    "jax._src.pallas.mpmd": "mpmd_map_p",  # of pl.kernel since JAX 0.10
}
"""The modules of the operations of Pallas kernels, and the operations."""

_CORE_MAP = "jax._src.pallas.core", "core_map_p"
"""The operation of `pl.core_map` before JAX 0.12. It turns into a kernel when it is lowered. JAX's
interpreter for any platform then loses what the kernel writes (JAX 0.7.2 and 0.10.2)."""

_PLACE_OF_DEVICE = {"dma_start": ("tree", -1), "semaphore_signal": ("args_tree", 3)}
"""The operations that may name a device, their option with the arguments' tree, and its place."""

_MUCH_MOVED = 100 * 2**30
"""Bytes that the interpreter moves in some 10 seconds on two cores of a server."""


@contextlib.contextmanager
def tracing_kernels(client: Any) -> Iterator[None]:
    """Trace kernels that reach other devices for the interpreter for TPUs, within a block.

    Args:
        client: The client of the virtual devices.
    """
    with contextlib.ExitStack() as undo:
        watched = dict([*_PRIMITIVES.items(), _CORE_MAP])

        def replace(module: types.ModuleType) -> None:
            always = module.__name__ == _CORE_MAP[0]
            trace = functools.partial(_trace, client, always)
            if (operation := getattr(module, watched[module.__name__], None)) is not None:
                undo.enter_context(Replaced(operation, "bind", trace))

        undo.enter_context(when_imported(watched, replace))
        yield


def _trace(client: Any, always: bool, original: Any, *args: Any, **options: Any) -> Any:
    is_ours = private("jax._src.xla_bridge._default_backend") is client
    if is_ours and not options["interpret"]:
        kernels = options.get("jaxprs") or (options["jaxpr"],)
        if always or any(map(_reaches_devices, kernels)):
            options["interpret"] = _interpreter_for_tpus()()
    return original(*args, **options)


def _reaches_devices(jaxpr: Any) -> bool:
    """Return whether a kernel copies to another device, or signals it."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "get_barrier_semaphore":
            return True
        if name in _PLACE_OF_DEVICE:
            option, place = _PLACE_OF_DEVICE[name]
            if equation.params[option].unflatten(equation.invars)[place] is not None:
                return True
        for value in equation.params.values():
            inner = value if isinstance(value, list | tuple) else (value,)
            jaxprs = (getattr(each, "jaxpr", each) for each in inner)
            if any(hasattr(each, "eqns") and _reaches_devices(each) for each in jaxprs):
                return True
    return False


@functools.cache
def _interpreter_for_tpus() -> type:
    """Return a class of settings of the interpreter for TPUs that only this module makes."""
    settings: type = importlib.import_module("jax.experimental.pallas.tpu").InterpretParams
    return type("InterpretedByTpunb", (settings,), {})


def rule_for_the_cpu(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of Pallas kernels that interprets them all."""

    def lower(context: Any, *args: Any, interpret: Any, **options: Any) -> Any:
        _warn_of_large_grid(context, options)
        return rule(context, *args, interpret=interpret or True, **options)

    return lower


def _warn_of_large_grid(context: Any, options: dict[str, Any]) -> None:
    """Warn before the interpreter runs a kernel for long: each step moves its arrays as a whole."""
    grid = getattr(options.get("grid_mapping"), "grid", ())
    if not all(isinstance(size, int) for size in grid):
        return
    steps = math.prod(grid)
    arrays = [*context.avals_in, *context.avals_out]
    typed = (array for array in arrays if hasattr(getattr(array, "dtype", None), "itemsize"))
    moved = sum(math.prod(array.shape) * array.dtype.itemsize for array in typed)
    if steps > 1 and steps * moved >= _MUCH_MOVED:
        warnings.warn(
            f"A Pallas kernel has a grid of {grouped(steps)} steps on {byte_count(moved)} of "
            "arrays. JAX's interpreter runs one step after another, which may take minutes here. "
            "Try smaller arrays. tpunb.compile judges the large kernel without running it.",
            TpuWarning,
            stacklevel=2,
        )


def rule_for_a_tpu(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of Pallas kernels that lowers the kernel, unless the user interprets it."""

    def lower(context: Any, *args: Any, interpret: Any, **options: Any) -> Any:
        if not interpret or not isinstance(interpret, _interpreter_for_tpus()):
            return rule(context, *args, interpret=interpret, **options)
        results = rule(context, *args, interpret=False, **options)
        context.set_tokens_out(context.tokens_in)  # of the interpreter's ordered callbacks
        return results

    return lower


def rule_for_nothing(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule of Pallas kernels that the interpreter cannot run, for a program that never is.

    Args:
        rule: JAX's rule, which is not used.
    """
    del rule

    def lower(context: Any, *args: Any, interpret: Any, **_: Any) -> Any:
        def zeros(*_: Any) -> list[Any]:
            jax: Any = sys.modules["jax"]
            return [jax.lax.full(aval.shape, 0, aval.dtype) for aval in context.avals_out]

        mlir = importlib.import_module("jax.interpreters.mlir")
        results = mlir.lower_fun(zeros, multiple_results=True)(context, *args)
        if isinstance(interpret, _interpreter_for_tpus()):
            context.set_tokens_out(context.tokens_in)
        return results

    return lower


def kernel_primitives() -> list[Any]:
    """Return the operations of Pallas kernels; none if Pallas is not imported."""
    found = (getattr(sys.modules.get(module), name, None) for module, name in _PRIMITIVES.items())
    return [operation for operation in found if operation is not None]
