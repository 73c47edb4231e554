"""Whether a function is for JAX or for TensorFlow: by what it reaches, not by what is imported.

Its arguments or its type say so, or the modules and objects that its code reads. Of a function that
reaches neither, as one of NumPy arrays and operators alone, JAX is asked whether it can trace it.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tpunb.errors.code_problems import is_library

JAX, TENSORFLOW = "JAX", "TensorFlow"

_PACKAGES = {"jax": JAX, "jaxlib": JAX, "tensorflow": TENSORFLOW, "tf_keras": TENSORFLOW}
_BACKENDS = {"jax": JAX, "tensorflow": TENSORFLOW}
_MOST_VALUES = 1000
"""Values that are looked at; what a function computes with is among the first."""


def frameworks_of(value: Any) -> frozenset[str]:
    """The frameworks that a function, or another value, reaches: `JAX`, `TENSORFLOW`, or both."""
    return frameworks_in([value])


def frameworks_in(values: Iterable[Any]) -> frozenset[str]:
    """The frameworks that any of the values reaches."""
    walk = _Walk()
    for value in values:
        walk.visit(value)
    return frozenset(walk.found)


def framework_of_module(name: str) -> str | None:
    """The framework that a module belongs to, by its full name."""
    package = name.partition(".")[0]
    if package == "keras":
        keras = sys.modules.get("keras")
        backend = getattr(getattr(keras, "backend", None), "backend", lambda: "")
        return _BACKENDS.get(backend())
    return _PACKAGES.get(package)


class _Walk:
    """Follows what functions read, through the user's own functions, objects and modules.

    Attributes:
        found: The frameworks that were met.
    """

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._seen: dict[int, Any] = {}  # kept alive: an id is of one value only

    def visit(self, value: Any, names: Iterable[str] = ()) -> None:
        """Looks at a value.

        Args:
            value: The value.
            names: The names that code reads beside it; attributes, if it is a module.
        """
        if len(self._seen) >= _MOST_VALUES:
            return
        if isinstance(value, types.ModuleType):
            self._module(value, names)
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
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
        else:  # a module of the user's
            self._each(vars(module)[name] for name in names if name in vars(module))

    def _function(self, function: types.FunctionType) -> None:
        if (wrapped := getattr(function, "__wrapped__", None)) is not None:
            self.visit(wrapped)
        if is_library(function.__code__.co_filename):
            # Its own module says `__main__` where it wraps a function of the notebook.
            self._library(function.__globals__.get("__name__", ""))
            return
        names = {name for code in _nested(function.__code__) for name in code.co_names}
        for name in names & function.__globals__.keys():
            self.visit(function.__globals__[name], names)
        for code in _nested(function.__code__):
            for instruction in dis.get_instructions(code):
                if instruction.opname == "IMPORT_NAME":
                    self._library(instruction.argval)
        for cell in function.__closure__ or ():
            try:
                self.visit(cell.cell_contents, names)
            except ValueError:  # it has no value yet
                continue
        self._each([*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()])

    def _class(self, kind: type) -> None:
        for base in kind.__mro__:
            if base.__module__ != "builtins":
                self._library(base.__module__)
        if not self._is_library(kind):
            self._each(one for one in vars(kind).values() if isinstance(one, types.FunctionType))

    def _object(self, value: Any) -> None:
        self.visit(type(value))
        held = getattr(value, "__dict__", None)
        held = held if isinstance(held, dict) else {}
        if isinstance(value, functools.partial):
            self._each([value.func, value.args, value.keywords])
        elif not self._is_library(type(value)):
            self._each(list(held.values()))
        elif "__wrapped__" in held:  # as of functools.cache
            self.visit(held["__wrapped__"])

    def _library(self, module: str) -> None:
        """A function or class of a module: of a framework, or of a library that builds on one."""
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
    """The frameworks that a library's module has among its names, as those of Flax have JAX."""
    names = vars(sys.modules[module]).values() if module in sys.modules else ()
    modules = [one.__name__ for one in list(names) if isinstance(one, types.ModuleType)]
    return frozenset(filter(None, map(framework_of_module, modules)))


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)
