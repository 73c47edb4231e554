"""Whether code reads attributes, or modules, by names that are not written in it."""

from __future__ import annotations

import dis
import itertools
from collections.abc import Sequence
from types import CodeType

__all__ = [
    "BY_STRING",
    "READS_OF_NAMES",
    "reads_any_attribute",
    "reads_any_global",
    "reads_any_module",
]

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
