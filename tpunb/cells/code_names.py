"""What a piece of code mentions: the globals, attributes and modules that it may read."""

from __future__ import annotations

import dis
import functools
import importlib.util
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from tpunb._util.user_code import is_users_module

# Only what is read: to retrace because of what the code itself stores would never end.
_ATTRIBUTES = frozenset(
    {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD", "IMPORT_FROM"}
)
_EVALUATED = frozenset({"eval", "exec"})
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_WORD = re.compile(r"[^\W\d]\w*")
_LONGEST = 200  # characters: longer strings are text


@dataclass(frozen=True)
class Mentions:
    """What a code object, with all that are inside of it, may read by name.

    Attributes:
        globals: Names of globals, in the order of their first use; those too that only
            a string names, where there is `globals()`, `eval` or the like.
        attributes: Names of attributes, and strings that might be (`getattr(x, "rate")`).
        imports: Names of modules that it imports.
        by_string: The globals that only a string names; not what it assigns as well.
        stored: The globals that it assigns.
        any_attribute: Whether it reads attributes by names that are computed.
        any_global: Whether it reads globals by names that are computed.
        any_module: Whether it reads modules otherwise than by `import`.
    """

    globals: tuple[str, ...]
    attributes: frozenset[str]
    imports: tuple[str, ...]
    by_string: tuple[str, ...]
    stored: frozenset[str] = frozenset()
    any_attribute: bool = False
    any_global: bool = False
    any_module: bool = False


@functools.lru_cache(maxsize=2048)
def mentions(code: CodeType) -> Mentions:
    """What a code object mentions."""
    names: dict[str, None] = {}
    attributes: set[str] = set()
    imports: dict[str, None] = {}
    strings: list[str] = []
    stored: set[str] = set()
    for inner in _nested(code):
        for instruction in dis.get_instructions(inner):
            if instruction.opname in READS_OF_NAMES:
                names[instruction.argval] = None
            elif instruction.opname in _ATTRIBUTES:
                attributes.add(instruction.argval)
            elif instruction.opname == "IMPORT_NAME":
                imports[instruction.argval] = None
            elif instruction.opname == "STORE_NAME":
                stored.add(instruction.argval)
        strings += _strings(inner)
    words = set(_words(strings, evaluated=not _EVALUATED.isdisjoint(names)))
    by_string = sorted(words - stored) if not BY_STRING.isdisjoint(names) else ()
    names.update(dict.fromkeys(by_string))
    any_global = any(map(reads_any_global, _nested(code)))
    return Mentions(
        tuple(names),
        frozenset(attributes | words),
        tuple(imports),
        tuple(by_string),
        frozenset(stored),
        any_global or any(map(reads_any_attribute, _nested(code))),
        any_global,
        any(map(reads_any_module, _nested(code))),
    )


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def _strings(code: CodeType) -> Iterator[str]:
    for const in code.co_consts:
        # Keyword patterns (`case Config(rate=r)`) name their attributes in a tuple.
        for text in const if isinstance(const, tuple) else (const,):
            if isinstance(text, str) and len(text) <= _LONGEST:
                yield text


def _words(strings: list[str], *, evaluated: bool) -> Iterator[str]:
    for text in strings:
        if evaluated or _DOTTED.fullmatch(text):  # also for `operator.attrgetter("a.b")`
            yield from _WORD.findall(text)


def users_modules() -> Iterator[tuple[str, ModuleType]]:
    """All modules of the user's that are loaded, by name."""
    loaded = [(n, m) for n, m in sys.modules.items() if isinstance(m, ModuleType)]
    return ((name, module) for name, module in loaded if is_users_module(module))


def imported(found: Mentions, namespace: Mapping[str, Any]) -> Iterator[tuple[str, ModuleType]]:
    """The modules that code imports when it runs, as far as they are loaded.

    Args:
        found: What the code mentions.
        namespace: Its globals: a relative import begins at their package.
    """
    package = namespace.get("__package__")
    for name in found.imports:
        names = [name, *(name[: at.start()] for at in re.finditer(r"\.", name))]
        if isinstance(package, str) and package:
            parents = [package.rsplit(".", up)[0] for up in range(package.count(".") + 1)]
            names += [
                importlib.util.resolve_name(f".{name}", parent) if name else parent
                for parent in parents
            ]
        for each in names:
            module = sys.modules.get(each)
            if isinstance(module, ModuleType):
                yield each, module


READS_OF_NAMES = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
"""The instructions that read a global by its name."""

BY_STRING = frozenset({"eval", "exec", "globals", "locals", "vars"})
"""What reads globals by names that are strings."""

_ASKED = frozenset({"getattr", "hasattr"})
_ALL = frozenset({"dir", "vars"})
_ALL_OF = frozenset({"__dict__", "__getattribute__", "asdict", "astuple", "attrgetter",
                     "_asdict", "getmembers", "getmembers_static"})  # fmt: skip
_CALLS = frozenset({"CALL", "CALL_FUNCTION", "PRECALL"})
_NOTHING = frozenset({"CACHE", "PUSH_NULL"})
_BEFORE_A_NAME = _CALLS | {"CALL_METHOD", "LOAD_ATTR", "LOAD_METHOD"}
_USES = _CALLS | {"BINARY_SUBSCR", "CALL_METHOD", "LOAD_CONST"}
_MODULES = frozenset({"__import__", "import_module", "modules"})


def reads_any_attribute(code: CodeType) -> bool:
    """Whether code may read attributes whose names cannot be seen: `getattr(x, name)`.

    Args:
        code: A code object; those inside it are not looked into.
    """
    instructions = list(dis.get_instructions(code))
    for number, instruction in enumerate(instructions):
        name = instruction.argval
        if instruction.opname in READS_OF_NAMES and name in _ALL | _ALL_OF:
            return True
        if instruction.opname in {"LOAD_ATTR", "LOAD_METHOD"} and name in _ALL_OF:
            return True
        asked = instruction.opname in READS_OF_NAMES and name in _ASKED
        if asked and not _second_is_constant(instructions[number + 1 :]):
            return True
    return False


def reads_any_global(code: CodeType) -> bool:
    """Whether code may read globals whose names cannot be seen: `globals()[name]`, `eval(text)`.

    Args:
        code: A code object; those inside it are not looked into.
    """
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _NOTHING]
    return any(
        instruction.argval in BY_STRING
        and instruction.opname in READS_OF_NAMES
        and _name_is_computed(instruction.argval, instructions[number + 1 :])
        for number, instruction in enumerate(instructions)
    )


def _name_is_computed(reader: str, following: Sequence[dis.Instruction]) -> bool:
    """Whether what reads globals is given a name that is not a constant.

    Args:
        reader: One of `BY_STRING`.
        following: What comes after it.
    """
    if reader == "vars" and following[0].opname not in _CALLS:
        return False  # of an object
    given = itertools.dropwhile(lambda each: each.opname in _BEFORE_A_NAME, following)
    names = [each.opname for each in itertools.islice(given, 2)]
    return names[0] != "LOAD_CONST" or names[1] not in _USES


def reads_any_module(code: CodeType) -> bool:
    """Whether code may read a module without an `import` of it: `sys.modules["cfg"]`."""
    return not _MODULES.isdisjoint(code.co_names)


def _second_is_constant(following: Sequence[dis.Instruction]) -> bool:
    """Whether the second argument of a call is written as a constant.

    Args:
        following: What comes after the name of the function.
    """
    constant: list[bool] = []  # of what lies on the stack, above the function
    for instruction in following:
        if instruction.opname == "PUSH_NULL" and not constant:
            continue
        if instruction.opname in _CALLS and instruction.arg == len(constant):
            return len(constant) > 1 and constant[1]
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            return len(constant) > 2 and constant[1]  # with a part of the third above it
        effect = dis.stack_effect(instruction.opcode, instruction.arg)
        if effect > 0:
            constant += [instruction.opname == "LOAD_CONST"] * effect
            continue
        del constant[len(constant) + effect :]
        if constant and instruction.opname not in {"CACHE", "RESUME", "EXTENDED_ARG"}:
            constant[-1] = False
    return False


_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})


@functools.lru_cache(maxsize=1024)
def read_globals(code: CodeType) -> tuple[str, ...]:
    """The global names that a code object and those inside it read."""
    names = {ins.argval: None for ins in dis.get_instructions(code) if ins.opname in _READS}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names.update(dict.fromkeys(read_globals(const)))
    return tuple(names)


def functions_of(value: Any) -> Iterator[FunctionType]:
    """The plain functions that calling `value` would run, as far as is cheap to find out."""
    if isinstance(value, functools.partial):
        yield from functions_of(value.func)
    elif isinstance(value, MethodType):
        yield from functions_of(value.__func__)
    elif isinstance(value, FunctionType):
        yield value


def globals_read(function: Any, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The notebook's names that a function reads, directly or through others.

    Args:
        function: A function, a method or a `functools.partial`.
        namespace: The notebook's namespace; functions of other modules are
            not looked into.

    Returns:
        The names that are bound, with their values.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    waiting = list(functions_of(function))
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        waiting.extend(_enclosed(current))
        if current.__globals__ is not namespace:
            continue
        for name in read_globals(current.__code__):
            if name in namespace and name not in found:
                found[name] = namespace[name]
                waiting.extend(functions_of(namespace[name]))
    return found


def _enclosed(function: FunctionType) -> Iterator[FunctionType]:
    """The functions in a function's closure: what decorators keep."""
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not bound yet
            continue
        yield from functions_of(value)
