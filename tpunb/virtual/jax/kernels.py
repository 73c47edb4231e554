"""Pallas kernels on a virtual TPU: they are interpreted, and the judge gets the kernel itself.

JAX's interpreter for any platform is quick, and is chosen when a kernel is lowered. Kernels that
reach other devices need the interpreter for TPUs, which simulates all devices with ordered
callbacks. These are an effect, which has to be there when the kernel is traced.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from tpunb._util.patching import Replaced
from tpunb.virtual.jax.private_names import private
from tpunb.virtual.watched_import import WatchedImport

_PALLAS = "jax._src.pallas.pallas_call"
_PLACE_OF_DEVICE = {"dma_start": ("tree", -1), "semaphore_signal": ("args_tree", 3)}
"""The operations that may name a device, their option with the arguments' tree, and its place."""


@contextlib.contextmanager
def tracing_kernels(client: Any) -> Iterator[None]:
    """Trace kernels that reach other devices for the interpreter for TPUs, within a block.

    Args:
        client: The client of the virtual devices.
    """
    with contextlib.ExitStack() as undo:

        def replace(pallas: Any) -> None:
            trace = functools.partial(_trace, client)
            undo.enter_context(Replaced(pallas.pallas_call_p, "bind", trace))

        if (pallas := sys.modules.get(_PALLAS)) is not None:
            replace(pallas)
        else:
            finder = _PallasImport(replace)
            sys.meta_path.insert(0, finder)
            undo.callback(sys.meta_path.remove, finder)
        yield


class _PallasImport(WatchedImport):
    """A finder that calls a function with Pallas when it is imported."""

    def __init__(self, then: Callable[[Any], None]) -> None:
        super().__init__(_PALLAS)
        self._then = then

    def load(self, module: types.ModuleType, load: Callable[[types.ModuleType], None]) -> None:
        """Load Pallas, and call the function."""
        load(module)
        self._then(module)


def _trace(client: Any, original: Any, *args: Any, **options: Any) -> Any:
    is_ours = private("jax._src.xla_bridge._default_backend") is client
    if is_ours and not options["interpret"] and _reaches_devices(options["jaxpr"]):
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

    def lower(*args: Any, interpret: Any, **options: Any) -> Any:
        return rule(*args, interpret=interpret or True, **options)

    return lower


def rule_for_a_tpu(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of Pallas kernels that lowers the kernel, unless the user interprets it."""

    def lower(context: Any, *args: Any, interpret: Any, **options: Any) -> Any:
        if not interpret or not isinstance(interpret, _interpreter_for_tpus()):
            return rule(context, *args, interpret=interpret, **options)
        results = rule(context, *args, interpret=False, **options)
        context.set_tokens_out(context.tokens_in)  # of the interpreter's ordered callbacks
        return results

    return lower


def kernel_primitive() -> Any:
    """Return the operation of Pallas kernels; None if Pallas is not imported."""
    return getattr(sys.modules.get(_PALLAS), "pallas_call_p", None)
