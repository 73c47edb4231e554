"""The replica function's text: the cell's own lines, on their own line numbers.

AutoGraph reads the text of the function that it converts, and reports errors by the text's lines.
Therefore the `def` replaces the magic's line, the body keeps its lines, and additions are at the
end of a line or below the last line.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import tensorflow as tf

from tpunb._util.functions import function_of
from tpunb.cells.reading.names import Names, bound_in
from tpunb.cells.reading.source import DEFINITIONS, CellSource, StepSource, blocks
from tpunb.cells.settings import RunSettings
from tpunb.errors import CellError, did_you_mean

NAME = "tpu_cell"
RECORDER = "__tpu__"
# In Python, a form feed among a line's leading blanks starts the line again.
_RESET = re.compile(r"^[ \t\f]*\f")

_LAST = "__tpu_last__"

_Edit = tuple[int, int, int, str]  # line, columns in UTF-8, text to put between them


def function_text(cell: CellSource, parameters: Iterable[str], direct: Iterable[str]) -> str:
    """Return the source of the replica function, whose line n is the cell's line n.

    Names in `direct` are certainly bound at the end, and are returned there. Others are noted where
    they are assigned. If they were read at the end, AutoGraph would require a value on every path.
    """
    raw = [line.encode("utf-8") for line in cell.lines]
    edits = _notes(cell.body, set(cell.names.assigned) - cell.names.definite)
    if cell.last:
        edits.append(_insertion(cell.last.lineno, cell.last.col_offset, f"{_LAST} = "))
    for node, text in cell.declarations.items():
        edits += _replacement(node, text, cell.lines)
    # From the end, so that positions stay valid.
    for number, start, end, insert in sorted(edits, reverse=True):
        line = raw[number - 1]
        raw[number - 1] = line[:start] + insert.encode("utf-8") + line[end:]
    lines = [line.decode("utf-8") for line in raw]
    verbatim = _inside_strings(cell)
    header = f"def {NAME}(*, {', '.join([*parameters, RECORDER])}):"
    body = [
        line if number in verbatim else f" {_RESET.sub('', line)}"
        for number, line in enumerate(lines[1:], start=2)
    ]
    results = ", ".join(f"{name!r}: {name}" for name in direct)
    last = _LAST if cell.last else "None"
    return "\n".join([header, *body, f" return {RECORDER}.finish({{{results}}}, {last})\n"])


def compile_function(text: str, filename: str) -> CodeType:
    """Compile the text that defines one function."""
    module = compile(text, filename, "exec", dont_inherit=True)
    return next(const for const in module.co_consts if isinstance(const, CodeType))


def _insertion(line: int, column: int, text: str) -> _Edit:
    return line, column, column, text


def _replacement(node: ast.stmt, text: str, lines: Sequence[str]) -> Iterator[_Edit]:
    """Yield a statement's replacement by another; the statement's further lines become blank."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    for number in range(node.lineno, node.end_lineno + 1):
        is_last = number == node.end_lineno
        start = node.col_offset if number == node.lineno else 0
        end = node.end_col_offset if is_last else len(lines[number - 1].encode("utf-8"))
        words = text if number == node.lineno else ""
        yield number, start, end, words if is_last else f"{words} \\"


def _notes(body: list[ast.stmt], unsure: set[str]) -> list[_Edit]:
    """Return insertions that note the values of names that may be unbound at the end."""
    edits = []
    waiting = list(body) if unsure else []
    while waiting:
        statement = waiting.pop()
        for block, names in _entries(statement):
            # Note the names that a suite's head binds before the first simple statement inside.
            first = _first_simple(block) if block else None
            if first is not None:
                for name in unsure.intersection(names):
                    edits.append(_insertion(first.lineno, first.col_offset, f"{_note(name)}; "))
        if isinstance(statement, DEFINITIONS):
            continue
        inside = list(blocks(statement))
        if not inside:
            assert statement.end_lineno is not None
            assert statement.end_col_offset is not None
            for name in unsure.intersection(bound_in([statement])):
                line, column = statement.end_lineno, statement.end_col_offset
                edits.append(_insertion(line, column, f"; {_note(name)}"))
        waiting += [inner for block in inside for inner in block]
    return edits


def _entries(statement: ast.stmt) -> Iterator[tuple[list[ast.stmt], list[str]]]:
    """Yield the suites of a compound statement, with the names that are bound on the way there."""
    if isinstance(statement, (ast.If, ast.While)):
        names = bound_in([statement.test])
        yield statement.body, names
        yield statement.orelse, names
    elif isinstance(statement, ast.For):
        yield statement.body, bound_in([statement.target])
    elif isinstance(statement, ast.With):
        yield statement.body, bound_in(statement.items)
    elif isinstance(statement, ast.Match):
        for case in statement.cases:
            yield case.body, bound_in([case.pattern, *([case.guard] if case.guard else [])])


def _first_simple(body: list[ast.stmt]) -> ast.stmt | None:
    first = body[0]
    while not isinstance(first, DEFINITIONS) and (inside := list(blocks(first))):
        first = inside[0][0]
    return None if isinstance(first, DEFINITIONS) else first


def _note(name: str) -> str:
    return f"{RECORDER}.note({name!r}, {name})"


def _inside_strings(cell: CellSource) -> set[int]:
    """Return the lines that begin inside a string, because indentation would change the string."""
    inside: set[int] = set()
    for node in cell.nodes:
        text = isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
        if text or isinstance(node, ast.JoinedStr) or type(node).__name__ == "TemplateStr":
            assert node.end_lineno is not None  # type: ignore[attr-defined]
            inside.update(range(node.lineno + 1, node.end_lineno + 1))  # type: ignore[attr-defined]
    return inside


FUNCTION = "function()"
"""The name under which a function is captured; not an identifier, so that no result hides it."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NO_GLOBALS: dict[str, Any] = {}  # one for all: traced cells are found by it


@dataclass(frozen=True, eq=False, kw_only=True)
class FunctionSource(StepSource):
    """A call of a function; the function itself is captured like a name.

    Attributes:
        parameters: The names of the function's parameters.
        results: Keys of the dict that the function returns, whose values are plotted or combined.
    """

    parameters: tuple[str, ...]
    results: tuple[str, ...]

    def replica_function(self) -> Callable[..., Any]:
        """Return each replica's function; AutoGraph converts it with the user's function."""

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def arguments(values: Mapping[str, Any]) -> list[Any]:
            return [values[name] for name in self.parameters]

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def finish(values: Mapping[str, Any], result: Any) -> Any:
            return values[RECORDER].finish(self._named(result), result)

        def tpu_function(**values: Any) -> Any:
            function = values[FUNCTION]
            result = function(*arguments(values))
            return finish(values, result)

        return tpu_function

    def _named(self, result: Any) -> dict[str, Any]:
        """Return the results that have names of their own."""
        if not isinstance(result, Mapping) and len(self.results) == 1:
            return {self.results[0]: result}
        returned = result if isinstance(result, Mapping) else {}
        for name in self.results:
            if name not in returned:
                raise CellError(
                    f"The function returns no `{name}`.",
                    fix=did_you_mean(name, returned, "Return a dict that has it."),
                )
        return {name: returned[name] for name in self.results}


def function_source(function: Callable[..., Any], settings: RunSettings) -> FunctionSource:
    """Return the source of steps that call a function; the same object for equal calls.

    Raises:
        CellError: The argument is not a function.
    """
    if not callable(function):
        raise CellError(
            f"An object of type {type(function).__name__} cannot be run on the replicas.",
            fix="Pass the function that makes one step, or the text of a cell.",
        )
    wanted = dict.fromkeys([*settings.plot, *(settings.reduce or {}), *(settings.gather or {})])
    wanted.pop("_", None)  # the whole result
    parameters = _parameters(function) if settings.data is not None else ()
    return _source(parameters, tuple(wanted))


def globals_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the namespace that a function reads."""
    plain = getattr(function, "python_function", function)  # the Python function in a tf.function
    inner = function_of(plain)
    return inner.__globals__ if inner is not None else _NO_GLOBALS


@functools.lru_cache(maxsize=64)
def _source(parameters: tuple[str, ...], results: tuple[str, ...]) -> FunctionSource:
    reads = [FUNCTION, *parameters]
    return FunctionSource(
        text=f"{FUNCTION}: {parameters} -> {results}",
        filename="<function>",
        names=Names(
            reads=dict.fromkeys(reads, 0),
            certain=frozenset(reads),
            assigned=results,
            definite=frozenset(results),
            passing=frozenset(),
            bindings=dict.fromkeys(results, 1),
            unbound=frozenset(),
        ),
        code=(lambda: None).__code__,  # code that reads no names itself
        has_value=True,
        parameters=parameters,
        results=results,
    )


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return names for a function's arguments of a batch: one for all, or one for each part."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin, which has no signature
        return ("batch",)
    needed = [p for p in parameters if p.kind in _POSITIONAL and p.default is p.empty]
    if len(needed) <= 1:
        return ("batch",)
    return tuple(f"part{number}" for number in range(len(needed)))
