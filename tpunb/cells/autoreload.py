"""Functions that `%autoreload` has patched, put back on the lines that they have in their file.

IPython compiles an edited function by itself, as if it began on the first line. AutoGraph
reads a function's text at the line its code records, and would find another's.
"""

from __future__ import annotations

import ast
import functools
import linecache
import textwrap
from types import CodeType, FunctionType
from typing import TypeAlias

__all__ = ["realign"]

Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_LAST_FIRST_LINE = 20
"""Where a function that is compiled by itself may begin: after its decorators, at most."""


def realign(function: FunctionType) -> bool:
    """Corrects the first line of a function's code; whether it was wrong and now is right."""
    code = function.__code__
    if code.co_firstlineno > _LAST_FIRST_LINE:
        return False
    if "<" in function.__qualname__ or code.co_filename.startswith("<"):
        return False  # a lambda, a function's inner one, or a notebook's: never patched so
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    there = _definitions(text).get(function.__qualname__, ())
    if any(_first_line(node) == code.co_firstlineno for node in there):
        return False
    # Only if the file has the function's text: it may have been edited, not loaded.
    same = [node for node in there if _does_the_same(_compiled_alone(node), code)]
    if len(same) != 1:
        return False
    function.__code__ = _moved(code, _first_line(same[0]) - code.co_firstlineno)
    return True


@functools.lru_cache(maxsize=32)
def _definitions(text: str) -> dict[str, list[Definition]]:
    """The functions and methods that a file defines, by their qualified names."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[str, list[Definition]] = {}
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        prefix, node = waiting.pop()
        if isinstance(node, Definition):
            found.setdefault(prefix + node.name, []).append(node)
            continue
        inner = f"{prefix}{node.name}." if isinstance(node, ast.ClassDef) else prefix
        waiting += [(inner, child) for child in ast.iter_child_nodes(node)]
    return found


def _first_line(node: Definition) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _compiled_alone(node: Definition) -> CodeType:
    """A function's code as IPython compiles it: that of the whole file may differ a little."""
    inside = textwrap.indent(ast.unparse(node), " ")
    module = compile(f"class _:\n{inside}", "<file>", "exec", dont_inherit=True)
    outer = next(const for const in module.co_consts if isinstance(const, CodeType))
    codes = [const for const in outer.co_consts if isinstance(const, CodeType)]
    return next(code for code in codes if code.co_name == node.name)


def _does_the_same(one: CodeType, other: CodeType) -> bool:
    names = ("co_code", "co_names", "co_varnames", "co_freevars")
    if any(getattr(one, name) != getattr(other, name) for name in names):
        return False
    return _plain_consts(one) == _plain_consts(other)


def _plain_consts(code: CodeType) -> list[str]:
    return [repr(const) for const in code.co_consts if not isinstance(const, CodeType)]


def _moved(code: CodeType, lines: int) -> CodeType:
    """Code, with nested code, moved down by a number of lines."""
    consts = tuple(
        _moved(const, lines) if isinstance(const, CodeType) else const for const in code.co_consts
    )
    return code.replace(co_firstlineno=max(1, code.co_firstlineno + lines), co_consts=consts)
