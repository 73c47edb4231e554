"""The choice between JAX and TensorFlow for a function, by the values that it reaches.

The function's arguments or type decide, or the modules and objects that its code reads; imported
packages do not. If a function reaches neither framework, for example with NumPy arrays and
operators alone, JAX is asked whether it can trace the function.
"""

from __future__ import annotations

import collections
import functools
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tpunb import framework
from tpunb._util.attributes import attribute
from tpunb._util.code_names import find_imports, mentions
from tpunb._util.functions import unwrap
from tpunb._util.reachable import CONTAINERS, read_globals, unpack, walk
from tpunb._util.user_code import is_users_class, is_users_module
from tpunb.compiler.program import CompileError
from tpunb.errors import TpunbError
from tpunb.errors.code_problems import is_library
from tpunb.errors.jax_in_cells import FOR_JAX
from tpunb.machine.framework import FRAMEWORKS, JAX, TENSORFLOW
from tpunb.machine.keras_internals import is_of_jax, model_of

_PACKAGES = {"jax": JAX, "jaxlib": JAX, "tensorflow": TENSORFLOW, "tf_keras": TENSORFLOW}


def is_keras_model(fn: Any) -> bool:
    """Return whether a value is a Keras model with the JAX backend, or a method of such a model."""
    model = model_of(fn)
    return model is not None and is_of_jax(model)


def chosen(
    fn: Any, args: Sequence[Any], strategy: Any = None, named: Mapping[str, Any] | None = None
) -> tuple[str, str]:
    """Return the framework that compiles a function, and a note if the other could too.

    Args:
        fn: The function.
        args: The function's arguments.
        strategy: The TensorFlow strategy in use, if any.
        named: The function's arguments by name.
    """
    named = named or {}
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return TENSORFLOW, ""
    if is_keras_model(fn) or (hasattr(fn, "trace") and hasattr(fn, "lower")):
        return JAX, ""
    kinds = (jax.Array, jax.ShapeDtypeStruct)
    leaves = arrays_in([*args, *named.values()])
    has_tensorflow = sys.modules.get("tensorflow") is not None
    if not has_tensorflow or any(isinstance(leaf, kinds) for leaf in leaves):
        return JAX, ""
    if model_of(fn) is not None or TENSORFLOW in frameworks_in(map(type, leaves)):
        return TENSORFLOW, ""
    reached = frameworks_in([fn])
    if len(reached) == 1:
        return next(iter(reached)), ""
    if not framework.jax().can_trace(functools.partial(fn, **named) if named else fn, args):
        return TENSORFLOW, ""
    if not reached and strategy is not None:
        return TENSORFLOW, _EITHER_BY_TENSORFLOW
    return JAX, "" if reached else _EITHER_BY_JAX


_EITHER_BY_JAX = (
    "JAX and TensorFlow can both trace this function, and JAX did. To use TensorFlow, pass "
    "tf.TensorSpec arguments."
)
_EITHER_BY_TENSORFLOW = (
    "JAX and TensorFlow can both trace this function, and TensorFlow did, because it is connected. "
    "To use JAX, pass jax.ShapeDtypeStruct arguments."
)


def arrays_in(nest: Any) -> list[Any]:
    """Return the leaves of a nest as JAX sees it."""
    leaves: list[Any] = sys.modules["jax"].tree_util.tree_leaves(nest)
    return leaves


def with_named(fn: Any, named: Mapping[str, Any], by: str) -> Any:
    """Return a function with arguments given by name, which JAX traces like any others.

    Args:
        fn: The function.
        named: The arguments.
        by: The framework that compiles the function.

    Raises:
        CompileError: The function is a model, whose step takes no named arguments.
    """
    if model_of(fn) is not None:
        raise CompileError(
            f"A model's step takes no argument by name: {', '.join(named)}.",
            fix="Pass the model only its batch: tpunb.compile(model, x, y).",
        )
    plain = isinstance(fn, (types.FunctionType, types.MethodType)) and not hasattr(fn, "lower")
    if plain and by == JAX:
        fn = sys.modules["jax"].jit(fn)
    return functools.partial(fn, **named)


def frameworks_of(value: Any) -> frozenset[str]:
    """Return the frameworks (`JAX`, `TENSORFLOW`) that a function or another value reaches."""
    return frameworks_in([value])


def frameworks_in(values: Iterable[Any]) -> frozenset[str]:
    """Return the frameworks that any of the values reaches."""
    found: set[str] = set()
    waiting = collections.deque(("", value) for value in values)
    for _, value in walk(waiting):
        for module in _modules_of(value):
            found.update(_frameworks_of_module(module))
        waiting.extend(_look_into(value))
    return frozenset(found)


def refuse_jax(door: str, fn: Any, args: Iterable[Any], error: type[TpunbError]) -> None:
    """Refuse a function that is JAX's.

    Args:
        door: The function of tpunb that was called, as in `FOR_JAX`.
        fn: The user's function.
        args: Its arguments.
        error: The error to raise.

    Raises:
        TpunbError: The function and its arguments reach JAX, and not TensorFlow.
    """
    if frameworks_in([fn, *args]) == {JAX}:
        raise error(
            f"{door} is for TensorFlow, and this function is JAX's.",
            fix=f"For JAX: {FOR_JAX[door]}",
        )


def framework_of_module(name: str) -> str | None:
    """Return the framework of a module, by its full name, or None."""
    package = name.partition(".")[0]
    if package == "keras":
        keras = sys.modules.get("keras")
        backend = getattr(getattr(keras, "backend", None), "backend", lambda: "")
        name = str(backend())
        return name if name in FRAMEWORKS else None
    return _PACKAGES.get(package)


def _modules_of(value: Any) -> Iterable[str]:
    """Return the names of the modules that a value is, belongs to or imports."""
    if isinstance(value, types.ModuleType):
        return (value.__name__,)
    if isinstance(value, type):
        return [base.__module__ for base in value.__mro__ if base.__module__ != "builtins"]
    if not isinstance(value, types.FunctionType):
        return ()
    if is_library(value.__code__.co_filename):
        # If it wraps a function of the notebook, its own module is `__main__`.
        return (value.__globals__.get("__name__", ""),)
    return mentions(value.__code__).imports


def _look_into(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what the code behind a value computes with."""
    if isinstance(value, types.ModuleType):
        return
    if isinstance(value, types.FunctionType):
        if is_library(value.__code__.co_filename):
            yield "", attribute(value, "__wrapped__")
            return
        yield from unpack("", value)
        yield from _read_globals(value)
    elif isinstance(value, type):
        if is_users_class(value):
            functions = (each for each in vars(value).values() if type(each) is types.FunctionType)
            yield from (("", each) for each in functions)
    elif isinstance(value, Mapping):
        yield from value.items()
    else:
        yield "", type(value)
        is_open = isinstance(value, CONTAINERS) or is_users_class(type(value))
        yield from unpack("", value) if is_open else (("", each) for each in unwrap(value))


def _read_globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function reads; of the user's modules, what its code names."""
    mentioned = mentions(function.__code__)
    names, modules = mentioned.attributes, find_imports(mentioned, function.__globals__)
    waiting = collections.deque([*read_globals(function), *modules])
    for name, value in walk(waiting):
        yield name, value
        if isinstance(value, types.ModuleType) and is_users_module(value):
            waiting.extend((each, vars(value)[each]) for each in names & vars(value).keys())


def _frameworks_of_module(name: str) -> Collection[str]:
    """Return the framework of a module, or those that a library's module builds on."""
    if own := framework_of_module(name or ""):
        return (own,)
    module = sys.modules.get(name)
    is_users = module is not None and is_users_module(module)
    return () if is_users else _find_frameworks(name)


@functools.cache
def _find_frameworks(module: str) -> frozenset[str]:
    """Return the frameworks among the names in a library's module; Flax's modules have JAX."""
    names = vars(sys.modules[module]).values() if module in sys.modules else ()
    modules = [value.__name__ for value in list(names) if isinstance(value, types.ModuleType)]
    return frozenset(filter(None, map(framework_of_module, modules)))
