"""Globals, attributes and modules that a piece of code may read."""

from __future__ import annotations

import ast
import dis
import importlib.util
import itertools
import re
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from tpunb._util.functions import nested_codes

_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
# Only names that are read count. If stored names counted, the code would retrace in every run.
_ATTRIBUTES = frozenset(
    {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD", "IMPORT_FROM"}
)
_EVALUATED = frozenset({"eval", "exec"})
_BY_STRING = _EVALUATED | {"globals", "locals", "vars"}  # they read globals by strings
_ASKED = frozenset({"getattr", "hasattr"})
_ALL_OF = frozenset({"__dict__", "__getattribute__", "asdict", "astuple", "attrgetter",
                     "_asdict", "getmembers", "getmembers_static"})  # fmt: skip
_ALL = _ALL_OF | {"dir", "vars"}
_MODULES = frozenset({"__import__", "import_module", "modules"})  # `sys.modules["cfg"]`

_CALLS = frozenset({"CALL", "CALL_FUNCTION", "PRECALL"})
_BEFORE_A_NAME = _CALLS | {"CACHE", "CALL_METHOD", "LOAD_ATTR", "LOAD_METHOD", "PUSH_NULL"}
_USES = _CALLS | {"BINARY_SUBSCR", "CALL_METHOD", "LOAD_CONST"}

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_WORD = re.compile(r"[^\W\d]\w*")
_LONGEST = 200  # characters: longer strings are text


@dataclass(frozen=True)
class Mentions:
    """The names that a code object, and the code objects inside it, may read.

    Attributes:
        globals: Names of globals, in the order of their first use.
        by_string: Further globals that only a string names, if the code calls `globals()`, `eval`
            or the like. Globals that the code also assigns are left out.
        attributes: Names of attributes, and strings that might name some (`getattr(x, "rate")`).
        imports: Names of modules that the code imports.
        stored: The globals that the code assigns.
        written: The globals that functions in the code assign or delete.
        any_attribute: Whether the code reads attributes by computed names.
        any_global: Whether the code reads globals by computed names.
        any_module: Whether the code reads modules in other ways than by `import`.
    """

    globals: tuple[str, ...]
    by_string: tuple[str, ...]
    attributes: frozenset[str]
    imports: tuple[str, ...]
    stored: frozenset[str]
    written: frozenset[str]
    any_attribute: bool
    any_global: bool
    any_module: bool


_mentions: weakref.WeakKeyDictionary[CodeType, Mentions] = weakref.WeakKeyDictionary()


def mentions(code: CodeType) -> Mentions:
    """Return the names that a code object mentions, cached for as long as the code lives."""
    known = _mentions.get(code)
    if known is None:
        known = _mentions[code] = _read_mentions(code)
    return known


def _read_mentions(code: CodeType) -> Mentions:
    names: dict[str, None] = {}
    imports: dict[str, None] = {}
    attributes: set[str] = set()
    stored: set[str] = set()
    written: set[str] = set()
    strings: list[str] = []
    any_attribute = any_global = any_module = False
    for inner in nested_codes(code):
        for const in inner.co_consts:
            # Keyword patterns (`case Config(rate=r)`) name their attributes in a tuple.
            for text in const if isinstance(const, tuple) else (const,):
                if isinstance(text, str) and len(text) <= _LONGEST:
                    strings.append(text)
        any_module |= not _MODULES.isdisjoint(inner.co_names)
        instructions = list(dis.get_instructions(inner))
        for number, instruction in enumerate(instructions, start=1):
            kind, name = instruction.opname, instruction.argval
            if kind in _READS:
                names[name] = None
                following = instructions[number:]
                any_global |= name in _BY_STRING and _name_is_computed(name, following)
                any_attribute |= name in _ALL
                any_attribute |= name in _ASKED and not _second_is_constant(following)
            elif kind in _ATTRIBUTES:
                attributes.add(name)
                any_attribute |= name in _ALL_OF and kind in {"LOAD_ATTR", "LOAD_METHOD"}
            elif kind == "IMPORT_NAME":
                imports[name] = None
            elif kind == "STORE_NAME":
                stored.add(name)
            elif kind in {"STORE_GLOBAL", "DELETE_GLOBAL"}:
                written.add(name)
    evaluated = not _EVALUATED.isdisjoint(names)
    words = {
        word
        for text in strings
        if evaluated or _DOTTED.fullmatch(text)  # also for `operator.attrgetter("a.b")`
        for word in _WORD.findall(text)
    }
    by_string = () if _BY_STRING.isdisjoint(names) else sorted(words - stored - names.keys())
    return Mentions(
        globals=tuple(names),
        by_string=tuple(by_string),
        attributes=frozenset(attributes | words),
        imports=tuple(imports),
        stored=frozenset(stored),
        written=frozenset(written),
        any_attribute=any_attribute or any_global,
        any_global=any_global,
        any_module=any_module,
    )


def _name_is_computed(reader: str, following: Sequence[dis.Instruction]) -> bool:
    """Return whether a reader of globals (`globals()[name]`) gets a computed name."""
    if (
        reader == "vars"
        and next(each for each in following if each.opname not in {"CACHE", "PUSH_NULL"}).opname
        not in _CALLS
    ):
        return False  # `vars(x)` reads an object, not globals
    loads = itertools.dropwhile(lambda each: each.opname in _BEFORE_A_NAME, following)
    names = [each.opname for each in loads if each.opname not in {"CACHE", "PUSH_NULL"}][:2]
    return names[0] != "LOAD_CONST" or names[1] not in _USES


def _second_is_constant(following: Sequence[dis.Instruction]) -> bool:
    """Return whether the second argument of a call (`getattr(x, "rate")`) is a constant."""
    constant: list[bool] = []  # for each value on the stack above the function
    for instruction in following:
        if instruction.opname == "PUSH_NULL" and not constant:
            continue
        if instruction.opname in _CALLS and instruction.arg == len(constant):
            return len(constant) > 1 and constant[1]
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            return len(constant) > 2 and constant[1]  # with a part of the third argument above it
        effect = dis.stack_effect(instruction.opcode, instruction.arg)
        if effect > 0:
            constant += [instruction.opname == "LOAD_CONST"] * effect
            continue
        del constant[len(constant) + effect :]
        if constant and instruction.opname not in {"CACHE", "RESUME", "EXTENDED_ARG"}:
            constant[-1] = False
    return False


def find_globals(mentioned: Mentions, namespace: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the globals that code may read; for computed names, all but IPython's."""
    names = mentioned.globals + mentioned.by_string
    if not mentioned.any_global:
        return names
    every = {name for name in namespace if not name.startswith("_")}
    return names + tuple(sorted(every - {"In", "Out"} - mentioned.stored))


def find_imports(
    mentioned: Mentions, namespace: Mapping[str, Any]
) -> Iterator[tuple[str, ModuleType]]:
    """Yield the loaded modules that code imports when it runs, among the globals `namespace`."""
    package = namespace.get("__package__")
    for name in mentioned.imports:
        names = [name, *(name[: at.start()] for at in re.finditer(r"\.", name))]
        if isinstance(package, str) and package:
            parents = [package.rsplit(".", up)[0] for up in range(package.count(".") + 1)]
            names += [
                importlib.util.resolve_name(f".{name}", parent) if name else parent
                for parent in parents
            ]
        for module_name in names:
            module = sys.modules.get(module_name)
            if isinstance(module, ModuleType):
                yield module_name, module


def value_of(
    node: ast.expr, namespace: Mapping[str, Any], owners: type | tuple[type, ...] = object
) -> Any:
    """Return the value of a dotted name, or None for any other expression.

    Args:
        node: The expression.
        namespace: The notebook's names.
        owners: The types whose attributes are read.
    """
    if isinstance(node, ast.Name):
        return namespace.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    owner = value_of(node.value, namespace, owners)
    return getattr(owner, node.attr, None) if isinstance(owner, owners) else None
