"""Guards of everything that a trace depends on besides the cell's own names.

TensorFlow reads Python once, when it traces. An ordinary cell reads it again in every run.
Therefore a cell is traced again if anything that its trace may have read has changed.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import contextvars
import functools
import linecache
import os
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any, TypeAlias

import numpy as np

from tpunb._util.attributes import attribute, attributes_of, has_attributes
from tpunb._util.code_names import Mentions, find_globals, find_imports, mentions
from tpunb._util.functions import read_closure, unwrap
from tpunb._util.reachable import CONTAINERS, walk
from tpunb._util.user_code import is_users_class, is_users_code, is_users_module
from tpunb.cells.reading.guards import (
    MISSING,
    ArrayGuard,
    Change,
    Guard,
    ItemsGuard,
    NamesGuard,
    is_plain,
    items_entry,
    open_names,
)
from tpunb.machine.keras_internals import layers_of


class Dependencies:
    """The guards of one traced cell, for everything that its traces may have read.

    Args:
        roots: The values that the cell closes over, by name.
        code: The cell's own code.
        namespace: The notebook's names.
    """

    def __init__(self, roots: Mapping[str, Any], code: CodeType, namespace: dict[str, Any]) -> None:
        self._roots = dict(roots)
        self._code = code
        self._namespace = namespace
        self._guards: list[Guard] = []
        self._ignored: set[Hashable] = set()

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Watch a trace, and afterwards guard everything that it may have read.

        Guards are set after the trace, because a first trace builds layers and makes variables. A
        value that a trace itself changes each time, for example a counter, is not guarded.
        Otherwise the cell's own changes would retrace it in every run.
        """
        before = self._reached()
        functions = [guard.owner for guard in before if isinstance(guard.owner, FunctionType)]
        moved = [realign(function) for function in functions]
        if any(moved):
            before = self._reached()
        yield
        self._ignored |= {
            change.entry
            for guard in before
            for change in guard.changes()
            if change.before is not MISSING and change.before is not None
        }
        self._guards = self._reached()

    @property
    def large_arrays(self) -> list[ArrayGuard]:
        """Arrays that are too large to be compared as a whole before each run."""
        arrays = (guard for guard in self._guards if isinstance(guard, ArrayGuard))
        return [guard for guard in arrays if not guard.whole]

    def change(self) -> Change | None:
        """Return the first change since the last trace, or None."""
        for guard in self._guards:
            if guard.holds():
                continue
            if changes := guard.changes():
                return changes[0]
            guard.renew()  # equal values have replaced others
        return None

    def _reached(self) -> list[Guard]:
        """Return the guards for everything reachable from the roots; the roots have no guards."""
        mentioned = mentions(self._code)
        attributes, any_name = set(mentioned.attributes), mentioned.any_attribute
        while True:
            walk = _Walk(self._namespace, attributes, self._ignored, any_name=any_name)
            walk.run(self._roots, self._code)
            if walk.attributes == attributes and walk.any_name == any_name:
                return walk.guards
            # Include attributes that other reached code reads, because objects may have them too.
            attributes, any_name = walk.attributes, walk.any_name


_LARGE = 1000  # items: a larger container counts as one object
_MOST_COMPARED = 1 << 24  # bytes of arrays that are compared before each run: some 10 ms
_NESTS = (list, tuple, dict)
_WITHOUT_ATTRIBUTES = frozenset({"builtins", "functools"})
_FUNCTION = ("__code__", "__defaults__", "__kwdefaults__")


class _Walk:
    """One walk through everything that is reachable, for one set of attributes."""

    def __init__(
        self,
        namespace: dict[str, Any],
        attributes: Collection[str],
        ignored: Collection[Hashable],
        *,
        any_name: bool,
    ) -> None:
        self._namespace = namespace
        self._ignored = ignored
        self._wants_any = self.any_name = any_name  # a computed name may be any name
        self._wanted = frozenset(attributes)
        self.attributes = set(attributes)
        self.guards: list[Guard] = []
        self._waiting: collections.deque[tuple[str, Any]] = collections.deque()
        self._has_all_modules = False
        self._compared = 0  # bytes of arrays

    def run(self, roots: Mapping[str, Any], code: types.CodeType) -> None:
        for path, value in roots.items():
            if isinstance(value, _NESTS):  # its contents identify it
                self._add_items(path, value)
            else:
                self._waiting.append((path, value))
        mentioned, namespace = mentions(code), self._namespace
        read = set(mentioned.globals)
        others = tuple(n for n in find_globals(mentioned, namespace) if n not in read)
        self._globals("the cell", others, namespace)
        self._add_imports(mentioned, namespace)
        for path, value in walk(self._waiting):
            self._visit(path, value)

    def _visit(self, path: str, value: Any) -> None:
        kind = type(value)
        if isinstance(value, types.FunctionType):
            self._function(path, value)
        elif isinstance(value, types.ModuleType):
            if is_users_module(value):
                self._attributes(path, value, {"__getattr__"})
        elif isinstance(value, type):
            if is_users_class(kind):
                self._waiting.append((kind.__name__, kind))
            for base in filter(is_users_class, value.__mro__):
                self._attributes(base.__name__, base, _called_by_others(base))
        elif isinstance(value, CONTAINERS):
            if len(value) <= _LARGE and not isinstance(value, (tuple, frozenset)):
                self._add(ItemsGuard(value, path))
            self._add_items(path, value)
        elif isinstance(value, np.ndarray):
            if not value.dtype.hasobject:
                self._compared += value.nbytes
                whole = self._compared <= _MOST_COMPARED
                self._add(ArrayGuard(value, path, whole=whole))
        elif isinstance(value, contextvars.ContextVar):
            self._guard(
                value, lambda it: {"value": it.get(MISSING)}, lambda _: f"`{path}`", ("value",)
            )
            self._waiting.append((path, value.get(None)))
        # A `tf.function` keeps its own trace in any cell. Its type shows this. A look-up on the
        # object could run the user's `__getattr__`.
        elif hasattr(kind, "python_function") and hasattr(kind, "get_concrete_function"):
            return
        else:
            inner = unwrap(value)
            self._waiting += [(path, part) for part in inner]
            if not inner or kind.__module__ not in _WITHOUT_ATTRIBUTES:
                self._instance(path, value)

    # Functions

    def _function(self, path: str, function: types.FunctionType) -> None:
        name = function.__name__
        self._waiting += read_closure(function).items()  # a library may wrap the user's function
        self._add_wrapped(name, function)
        if not is_users_code(function.__code__):
            return
        self._guard(
            function,
            read_closure,
            lambda read: f"`{read}`, which `{name}` closes over,",
            function.__code__.co_freevars,
        )
        self._guard(
            function,
            _function_parts,
            lambda part: f"`{path}`" if part == "__code__" else f"a default of `{path}`",
            _FUNCTION,
        )
        mentioned = mentions(function.__code__)
        self.attributes |= mentioned.attributes
        self.any_name |= mentioned.any_attribute
        namespace = function.__globals__
        self._globals(f"`{name}`", find_globals(mentioned, namespace), namespace)
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self._waiting += [(f"{path}()", default) for default in defaults]
        self._add_imports(mentioned, namespace)

    def _globals(self, reader: str, names: tuple[str, ...], namespace: dict[str, Any]) -> None:
        self._guard(
            namespace, lambda it: it, lambda name: f"`{name}`, which {reader} reads,", names
        )
        self._waiting += [(name, namespace[name]) for name in names if name in namespace]

    def _add_wrapped(self, path: str, value: Any) -> None:
        """Visit the function that a decorator keeps; TensorFlow's decorators are objects."""
        if (inner := attributes_of(value).get("__wrapped__")) is not None:
            self._waiting.append((path, inner))

    def _add_imports(self, mentioned: Mentions, namespace: Mapping[str, Any]) -> None:
        """Visit the modules that code imports, and guard the environment if the code reads it."""
        self._waiting += find_imports(mentioned, namespace)
        if mentioned.any_module and not self._has_all_modules:
            self._has_all_modules = True
            loaded = [(n, m) for n, m in sys.modules.items() if isinstance(m, types.ModuleType)]
            self._waiting += [(name, module) for name, module in loaded if is_users_module(module)]
        if {"environ", "getenv"} & {*mentioned.attributes, *mentioned.globals}:
            self._guard(
                os.environ,
                os._Environ.copy,
                lambda name: f"`os.environ[{name!r}]`",
                tuple(os.environ),
                wanted=mentioned.attributes,
            )

    # Objects

    def _attributes(self, path: str, owner: Any, more: Collection[str] = ()) -> None:
        """Guard attributes that an object, a class or a module has itself."""
        has = attributes_of(owner)
        wanted = self._wanted.union(more) if more else self._wanted
        any_name = self._wants_any and self._may_be_any(owner)
        found = has.keys() & wanted | (open_names(has) if any_name else set())
        names = tuple(sorted(found))
        self._guard(owner, attributes_of, lambda name: f"`{path}.{name}`", names,
                    wanted=wanted, any_name=any_name)  # fmt: skip
        self._waiting += [(f"{path}.{name}", has[name]) for name in names]

    def _may_be_any(self, owner: Any) -> bool:
        """Return whether all attributes count if the code computes names.

        Attributes of a notebook and of a library's objects do not count, because almost every
        action changes them.
        """
        if isinstance(owner, (type, types.ModuleType)):
            return attributes_of(owner) is not self._namespace
        kind = type(owner)
        own = is_users_class(kind) or kind.__module__ in sys.stdlib_module_names
        return own and not hasattr(kind, "_flatten_layers")

    def _instance(self, path: str, value: Any) -> None:
        kind = type(value)
        if is_users_class(kind):
            self._guard(
                value,
                lambda it: {"class": type(it)},
                lambda _: f"the class of `{path}`",
                ("class",),
            )
            self._waiting.append((kind.__name__, kind))
        slots = {
            name
            for each in filter(is_users_class, kind.__mro__)
            for name, member in vars(each).items()
            if isinstance(member, types.MemberDescriptorType)
        }
        if names := tuple(sorted(slots if self._wants_any else slots & self._wanted)):

            def read(it: Any) -> Mapping[str, Any]:
                return {name: attribute(it, name) for name in names if has_attributes(it, name)}

            self._guard(value, read, lambda name: f"`{path}.{name}`", names)
            self._waiting += [(f"{path}.{n}", each) for n, each in read(value).items()]
        self._attributes(path, value, read_by_library(value))
        self._add_wrapped(path, value)
        for number, layer in enumerate(layers_of(value)):
            self._waiting.append((f"{path}.layers[{number}]", layer))

    # Containers

    def _add_items(self, path: str, value: Any) -> None:
        if len(value) > _LARGE:
            return
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        self._waiting += [(f"{path}[{key!r}]", item) for key, item in pairs if not is_plain(item)]

    def _add(self, guard: ItemsGuard | ArrayGuard) -> None:
        if items_entry(guard.owner) not in self._ignored:
            self.guards.append(guard)

    def _guard(
        self,
        owner: Any,
        read: Callable[[Any], Mapping[str, Any]],
        describe: Callable[[str], str],
        names: tuple[str, ...],
        *,
        wanted: frozenset[str] | None = None,
        any_name: bool = False,
    ) -> None:
        names = tuple(name for name in names if (id(owner), name) not in self._ignored)
        if names or wanted is not None:
            self.guards.append(NamesGuard(owner, read, describe, names, wanted, any_name=any_name))


def _function_parts(function: types.FunctionType) -> Mapping[str, Any]:
    defaults = function.__kwdefaults__
    return {
        "__code__": function.__code__,
        "__defaults__": function.__defaults__,
        "__kwdefaults__": tuple(defaults.items()) if defaults else None,
    }


def _called_by_others(kind: type) -> set[str]:
    """Return the methods of a class that Python or a library calls without naming them in code."""
    library = {name for base in kind.__mro__ if not is_users_class(base) for name in vars(base)}
    return {
        name
        for name, value in vars(kind).items()
        if callable(value) and (name in library or name.startswith("__"))
    }


def read_by_library(value: Any) -> set[str]:
    """Return the attributes of an object that its library's own code reads: settings of layers."""
    kind, has = type(value), attributes_of(value)
    if hasattr(kind, "_flatten_layers"):
        if hasattr(kind, "fit"):  # its other attributes hold the progress of `fit`
            return {"_trainable"}
        settings = {
            name
            for name, held in has.items()
            if name[0] != "_" and (is_plain(held) or isinstance(held, types.FunctionType))
        }
        return (settings | {"_trainable"}) - {"built", "name"}
    if hasattr(kind, "__getattr__") and hasattr(kind, "keys") and not hasattr(kind, "__array__"):
        return set(has)  # a configuration that is read as attributes, such as a ConfigDict
    return set()


Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_LAST_FIRST_LINE = 20
"""The last line on which a function that is compiled by itself may begin, after its decorators."""


def realign(function: FunctionType) -> bool:
    """Correct the first line of a function's code; return whether it was wrong and is now right."""
    code = function.__code__
    if code.co_firstlineno > _LAST_FIRST_LINE:
        return False
    if "<" in function.__qualname__ or code.co_filename.startswith("<"):
        return False  # a lambda, an inner function or a notebook's: never patched this way
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    there = _definitions(text).get(function.__qualname__, ())
    if any(_first_line(node) == code.co_firstlineno for node in there):
        return False
    # Compare with the file's text, because the file may have been edited but not reloaded.
    same = [node for node in there if _does_the_same(_compiled_alone(node), code)]
    if len(same) != 1:
        return False
    function.__code__ = _moved(code, _first_line(same[0]) - code.co_firstlineno)
    return True


@functools.lru_cache(maxsize=32)
def _definitions(text: str) -> dict[str, list[Definition]]:
    """Return the functions and methods that a file defines, by their qualified names."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    definitions: dict[str, list[Definition]] = {}
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        prefix, node = waiting.pop()
        if isinstance(node, Definition):
            definitions.setdefault(prefix + node.name, []).append(node)
            continue
        inner = f"{prefix}{node.name}." if isinstance(node, ast.ClassDef) else prefix
        waiting += [(inner, child) for child in ast.iter_child_nodes(node)]
    return definitions


def _first_line(node: Definition) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _compiled_alone(node: Definition) -> CodeType:
    """Return a function's code as IPython compiles it, which differs a little from the file's."""
    inside = textwrap.indent(ast.unparse(node), " ")
    module = compile(f"class _:\n{inside}", "<file>", "exec", dont_inherit=True)
    outer = next(const for const in module.co_consts if isinstance(const, CodeType))
    codes = [const for const in outer.co_consts if isinstance(const, CodeType)]
    return next(code for code in codes if code.co_name == node.name)


def _does_the_same(one: CodeType, other: CodeType) -> bool:
    names = ("co_code", "co_names", "co_varnames", "co_freevars")
    if any(getattr(one, name) != getattr(other, name) for name in names):
        return False
    consts, others = (
        [repr(const) for const in code.co_consts if not isinstance(const, CodeType)]
        for code in (one, other)
    )
    return consts == others


def _moved(code: CodeType, lines: int) -> CodeType:
    """Return code, with nested code, moved down by a number of lines."""
    consts = tuple(
        _moved(const, lines) if isinstance(const, CodeType) else const for const in code.co_consts
    )
    return code.replace(co_firstlineno=max(1, code.co_firstlineno + lines), co_consts=consts)
