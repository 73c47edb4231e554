"""What a piece of code mentions: the globals, attributes and modules that it may read."""

from __future__ import annotations

import dis
import functools
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from tpunb._util.user_code import is_users_module

from .computed_names import (
    BY_STRING,
    READS_OF_NAMES,
    reads_any_attribute,
    reads_any_global,
    reads_any_module,
)

__all__ = ["Mentions", "imported", "mentions", "users_modules"]

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
