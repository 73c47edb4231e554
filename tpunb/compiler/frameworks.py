"""The choice between JAX and TensorFlow for a function, by the values that it reaches.

The function's arguments or type decide, or the modules and objects that its code reads; imported
packages do not. If a function reaches neither framework, for example with NumPy arrays and
operators alone, JAX is asked whether it can trace the function.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

from tpunb._util.functions import closed_over, nested_codes
from tpunb.errors import TpunbError
from tpunb.errors.code_problems import is_library
from tpunb.errors.jax_in_cells import FOR_JAX

JAX, TENSORFLOW = "JAX", "TensorFlow"

_PACKAGES = {"jax": JAX, "jaxlib": JAX, "tensorflow": TENSORFLOW, "tf_keras": TENSORFLOW}
_BACKENDS = {"jax": JAX, "tensorflow": TENSORFLOW}
_MOST_VALUES = 1000
"""The most values to visit. The values that a function computes with are among the first."""


def frameworks_of(value: Any) -> frozenset[str]:
    """Return the frameworks (`JAX`, `TENSORFLOW`) that a function or another value reaches."""
    return frameworks_in([value])


def frameworks_in(values: Iterable[Any]) -> frozenset[str]:
    """Return the frameworks that any of the values reaches."""
    walk = _Walk()
    for value in values:
        walk.visit(value)
    return frozenset(walk.found)


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
        return _BACKENDS.get(backend())
    return _PACKAGES.get(package)


class _Walk:
    """A walk along the reads of functions, through the user's own functions, objects and modules.

    Attributes:
        found: The frameworks reached so far.
    """

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._visited: dict[int, Any] = {}  # keeps the values alive, so that ids stay unique

    def visit(self, value: Any, names: Iterable[str] = ()) -> None:
        """Visit a value.

        Args:
            value: The value.
            names: The names that the code reads together with it: the attributes of a module.
        """
        if len(self._visited) >= _MOST_VALUES:
            return
        if isinstance(value, types.ModuleType):
            self._module(value, names)
            return
        if id(value) in self._visited:
            return
        self._visited[id(value)] = value
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self.visit(value.__func__)
            self.visit(value.__self__)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, Mapping):
            self._each(list(value.values()))
        elif isinstance(value, (list, tuple, set, frozenset)):
            self._each(list(value))
        else:
            self._object(value)

    def _each(self, values: Iterable[Any]) -> None:
        for value in values:
            self.visit(value)

    def _module(self, module: types.ModuleType, names: Iterable[str]) -> None:
        if framework := framework_of_module(module.__name__):
            self.found.add(framework)
        elif is_library(getattr(module, "__file__", None) or "") or not hasattr(module, "__file__"):
            self.found |= _imported_by(module.__name__)
        else:  # a module of the user
            self._each(vars(module)[name] for name in names if name in vars(module))

    def _function(self, function: types.FunctionType) -> None:
        if (wrapped := getattr(function, "__wrapped__", None)) is not None:
            self.visit(wrapped)
        if is_library(function.__code__.co_filename):
            # If it wraps a function of the notebook, its own module is `__main__`.
            self._library(function.__globals__.get("__name__", ""))
            return
        names = {name for code in nested_codes(function.__code__) for name in code.co_names}
        for name in names & function.__globals__.keys():
            self.visit(function.__globals__[name], names)
        for code in nested_codes(function.__code__):
            for instruction in dis.get_instructions(code):
                if instruction.opname == "IMPORT_NAME":
                    self._library(instruction.argval)
        for value in closed_over(function).values():
            self.visit(value, names)
        self._each([*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()])

    def _class(self, kind: type) -> None:
        for base in kind.__mro__:
            if base.__module__ != "builtins":
                self._library(base.__module__)
        if not self._is_library(kind):
            self._each(
                value for value in vars(kind).values() if isinstance(value, types.FunctionType)
            )

    def _object(self, value: Any) -> None:
        self.visit(type(value))
        attributes = getattr(value, "__dict__", None)
        attributes = attributes if isinstance(attributes, dict) else {}
        if isinstance(value, functools.partial):
            self._each([value.func, value.args, value.keywords])
        elif not self._is_library(type(value)):
            self._each(list(attributes.values()))
        elif "__wrapped__" in attributes:  # for example of functools.cache
            self.visit(attributes["__wrapped__"])

    def _library(self, module: str) -> None:
        """Visit a module of a framework, or of a library that builds on a framework."""
        if framework := framework_of_module(module or ""):
            self.found.add(framework)
        elif is_library(getattr(sys.modules.get(module or ""), "__file__", None) or ""):
            self.found |= _imported_by(module)

    @staticmethod
    def _is_library(kind: type) -> bool:
        module = sys.modules.get(kind.__module__)
        file = getattr(module, "__file__", None)
        return kind.__module__ != "__main__" and (file is None or is_library(file))


@functools.cache
def _imported_by(module: str) -> frozenset[str]:
    """Return the frameworks among the names in a library's module; Flax's modules have JAX."""
    names = vars(sys.modules[module]).values() if module in sys.modules else ()
    modules = [value.__name__ for value in list(names) if isinstance(value, types.ModuleType)]
    return frozenset(filter(None, map(framework_of_module, modules)))
