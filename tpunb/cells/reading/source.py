"""Parsed text of cells, and refusal of code that cannot run on the replicas.

Line numbers are the notebook's: line 1 is the magic's, and the body begins on line 2.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import TypeAlias

from tpunb._util.code_names import mentions
from tpunb.cells.reading.names import Names, analyse, bound_in, in_scope, unbound_in
from tpunb.errors import CellError

PROVIDED = ("ctx", "num_replicas", "replica_id")
"""Names that exist in every cell although the notebook does not define them."""

LAST = ""
"""The name under which the value of a cell's last expression is recorded."""

KERAS_LOOPS = ("fit", "evaluate", "predict")
"""Keras's methods that run on all replicas by themselves."""

_FILENAME = re.compile(r"<tpu_run cell [0-9a-f]+>")
_MAGIC = re.compile(r"\s*(?:\w+\s*=\s*)?[%!]|\s*\?|.*\?\s*$")
_OWN_CELL = "Put it in a cell of its own."
_ASYNC = (ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef, ast.Await)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, eq=False, kw_only=True)
class StepSource:
    """The source of a step: a cell, or a function.

    Attributes:
        text: A cell's body as the user wrote it; an identifying text for any other source.
        filename: The file name in tracebacks.
        names: The names that the source reads and assigns.
        code: The code, compiled as a module.
        has_value: Whether the source ends with a value.
        quiet: Whether this value is hidden, because the source ends with a semicolon.
        later: Names that only the bodies of functions read.
        definitions: Functions and classes to define in the notebook itself,
            by name: the definitions that a cell binds once and in every run.
        lines: The lines; `lines[0]` stands for the magic's line.
        body: The statements.
    """

    text: str
    filename: str
    names: Names
    code: CodeType
    has_value: bool
    quiet: bool = False
    later: frozenset[str] = frozenset()
    definitions: Mapping[str, CodeType] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    body: list[ast.stmt] = field(default_factory=list)

    @functools.cached_property
    def provided(self) -> tuple[str, ...]:
        """The names among `PROVIDED` that the cell reads."""
        return tuple(n for n in PROVIDED if n in self.names.reads or n in self.later)

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """All syntax nodes of the statements."""
        return [node for statement in self.body for node in ast.walk(statement)]

    def first_line(self, number: int) -> int:
        """Return the first line of the statement that a line belongs to."""
        first = number
        for node in self.nodes:
            if not isinstance(node, ast.stmt) or isinstance(node, ast.Match):
                continue
            if hasattr(node, "body"):
                continue
            if node.lineno <= number <= (node.end_lineno or node.lineno):
                first = node.lineno
        return first

    @functools.cached_property
    def unconvertible(self) -> ast.NamedExpr | ast.Match | None:
        """The first `:=` or `match`, because AutoGraph does not convert a function that has one."""
        nodes = [node for node in self.nodes if isinstance(node, (ast.NamedExpr, ast.Match))]
        return min(nodes, key=lambda node: node.lineno, default=None)


@dataclass(frozen=True, eq=False, kw_only=True)
class CellSource(StepSource):
    """A parsed cell.

    Attributes:
        last: The statement whose value is the result, if any.
        declarations: The replacements of its `global` statements on the replicas.
    """

    last: ast.Expr | None
    declarations: Mapping[ast.Global, str]


def parse_cell(text: str, filename: str | None = None) -> CellSource:
    """Parse a cell's body.

    Args:
        text: The source below the magic's line.
        filename: The file name in tracebacks; by default derived from the text.

    Raises:
        SyntaxError: The text is not Python.
        CellError: The text is Python that cannot be a replica function's body.
    """
    text = _lines_ended(text)
    filename = filename or cell_filename(text)
    padded = "\n" + text
    tree = _parse(padded, filename)
    _refuse_unfit(tree)
    try:
        module = compile(tree, filename, "exec", dont_inherit=True)
    except (ValueError, RecursionError) as error:
        raise CellError(f"The cell cannot be compiled: {error}.") from None
    last = tree.body[-1] if tree.body else None
    lines = tuple(padded.split("\n"))
    result = last if isinstance(last, ast.Expr) else None
    quiet = False
    if result is not None:
        end = lines[(result.end_lineno or 0) - 1].encode("utf-8", "surrogatepass")
        quiet = end[result.end_col_offset :].lstrip().startswith(b";")
    try:
        _refuse_hidden_names(tree)
        names = analyse(tree.body)
    except RecursionError:
        raise CellError(
            "An expression of the cell is nested too deeply.",
            fix="Assign its parts to names, one after the other.",
        ) from None
    inner = (const for const in module.co_consts if isinstance(const, CodeType))
    later = frozenset(name for code in inner for name in mentions(code).globals)
    return CellSource(
        text=text,
        filename=filename,
        lines=lines,
        body=tree.body,
        names=names,
        later=later - names.reads.keys() - set(names.assigned),
        last=result,
        has_value=result is not None,
        quiet=quiet,
        definitions=_definitions(tree.body, names, filename),
        code=module,
        declarations=_declarations(tree.body, names.definite, names.bindings),
    )


def above(cell: CellSource, line: int) -> CellSource | None:
    """Return the cell's part above the statement that contains a line; None if it is empty."""
    begins = (s.lineno for s in cell.body if s.lineno <= line <= (s.end_lineno or s.lineno))
    text = "\n".join(cell.lines[1 : next(begins, line) - 1])
    part = parse_cell(text, cell.filename) if text.strip() else None
    return part if part is not None and part.body else None


def keras_loop(name: str) -> tuple[str, str]:
    """Return the cause and the fix for a cell that calls `fit`, `evaluate` or `predict`."""
    return (
        f"Keras's `{name}` runs on all replicas by itself, and the cell runs on each of them.",
        f"Call `{name}` in a cell without a magic. `tpunb.check(model, x, y)` checks its step.",
    )


def blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the suites of a compound statement."""
    handlers, cases = getattr(statement, "handlers", ()), getattr(statement, "cases", ())
    for owner in (statement, *handlers, *cases):
        for field_name in ("body", "orelse", "finalbody"):
            if block := getattr(owner, field_name, None):
                yield block


def cell_filename(text: str) -> str:
    """Return the default name in tracebacks of a cell with this source."""
    digest = hashlib.sha256(_lines_ended(text).encode("utf-8", "surrogatepass")).hexdigest()
    return f"<tpu_run cell {digest[:8]}>"


def is_cell_filename(name: str) -> bool:
    """Return whether a file name is the name of a cell in tracebacks."""
    return _FILENAME.fullmatch(name) is not None


def _lines_ended(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _parse(padded: str, filename: str) -> ast.Module:
    try:
        return ast.parse(padded, filename)
    except SyntaxError as error:
        lines, number = padded.split("\n"), error.lineno or 0
        line = lines[number - 1] if 0 < number <= len(lines) else ""
        if _MAGIC.match(line):
            raise CellError(
                f"Line {number} is IPython's, not Python: {line.strip()}", fix=_OWN_CELL
            ) from None
        raise
    except (ValueError, MemoryError, RecursionError) as error:
        raise CellError(f"The cell cannot be parsed: {error or type(error).__name__}.") from None


def _refuse_unfit(tree: ast.Module) -> None:
    """Refuse Python code that cannot be inside a replica function."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:  # without recursion: an `elif` is nested in the one before it
        node, in_function = waiting.pop()
        if reason := _unfit(node, in_function):
            raise CellError(f"Line {node.lineno}: {reason[0]}", fix=reason[1])  # type: ignore[attr-defined]
        inside = in_function or isinstance(node, _FUNCTIONS)
        waiting += [(child, inside) for child in reversed([*ast.iter_child_nodes(node)])]


def _unfit(node: ast.AST, in_function: bool) -> tuple[str, str] | None:
    if isinstance(node, ast.Return) and not in_function:
        return (
            "`return` outside of a function.",
            "Write the value as the cell's last line, without `return`.",
        )
    if isinstance(node, (ast.Yield, ast.YieldFrom)) and not in_function:
        return "`yield` outside of a function.", "Assign the value to a name."
    is_exec = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "exec"
    if is_exec and len(node.args) == 1 and not in_function:  # type: ignore[attr-defined]
        return (
            "`exec` cannot assign the cell's names, which are local names of a function.",
            "Give it a dict, `exec(text, names)`, and take the names from that.",
        )
    if isinstance(node, _ASYNC) or (isinstance(node, ast.comprehension) and node.is_async):
        return "a replica cannot run asynchronous code.", _OWN_CELL
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return "an import from `__future__` applies to a whole module.", _OWN_CELL
    if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
        return "`import *` cannot be inside a function.", _OWN_CELL
    return None


def _definitions(body: list[ast.stmt], names: Names, filename: str) -> dict[str, CodeType]:
    """Return the code of definitions and lambdas that a cell binds once and in every run."""
    codes: dict[str, CodeType] = {}
    for statement in body:
        name = None
        if isinstance(statement, DEFINITIONS):
            name = statement.name
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Lambda):
            first, *more = statement.targets
            name = None if more else getattr(first, "id", None)
        if name in names.definite and names.bindings[name] == 1:
            module = ast.Module([statement], type_ignores=[])
            codes[name] = compile(module, filename, "exec", dont_inherit=True)
    return codes


_AUTOGRAPH = "ag__"

_WITH_BODIES = (ast.stmt, ast.ExceptHandler, ast.match_case)
Scope: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _declarations(
    body: list[ast.stmt], definite: Collection[str], bound: Collection[str]
) -> Mapping[ast.Global, str]:
    """Return the replacement of each `global` statement of a cell in the replica function.

    Raises:
        CellError: A function assigns a name that the replica function may not have.
    """
    replacements: dict[ast.Global, str] = {}
    waiting: list[tuple[ast.AST, tuple[Scope, ...]]] = [(node, ()) for node in reversed(body)]
    while waiting:
        node, scopes = waiting.pop()
        if isinstance(node, ast.Global):
            replacements[node] = _declaration(node, scopes, definite, bound)
        inner = (*scopes, node) if isinstance(node, Scope) else scopes
        children = [each for each in ast.iter_child_nodes(node) if isinstance(each, _WITH_BODIES)]
        waiting += [(child, inner) for child in reversed(children)]
    return replacements


def _declaration(
    node: ast.Global,
    scopes: tuple[Scope, ...],
    definite: Collection[str],
    bound: Collection[str],
) -> str:
    """Return the replacement of a `global` statement; `scopes` surround it, outermost first."""
    if not scopes:
        return "pass"  # its meaning at the top of a module
    assigned = _assigned(scopes[-1])
    for name in node.names:
        if name in unbound_in(scopes[-1].body):
            raise CellError(
                f"Line {node.lineno}: the function deletes `{name}`, which is the cell's.",
                fix=f"Delete it in the cell itself: `del {name}`.",
            )
        if any(name in _locals(scope) for scope in scopes[:-1]):
            raise CellError(
                f"Line {node.lineno}: `global {name}` inside of a function that has another "
                f"`{name}` of its own, which it would mean on the replicas.",
                fix=f"Give the function's own `{name}` another name.",
            )
        if name not in definite and (name in assigned or name in bound):
            raise CellError(
                f"Line {node.lineno}: `global {name}`, where the cell itself does not assign "
                f"`{name}` in every run: the replicas have no such name.",
                fix=f"Assign it in the cell (`{name} = None`), or return the value instead.",
            )
    names = [name for name in node.names if name in assigned]
    return f"nonlocal {', '.join(names)}" if names else "pass"


def _assigned(scope: Scope) -> set[str]:
    """Return the names that the statements of a scope bind or unbind."""
    return unbound_in(scope.body).union(bound_in(scope.body))


def _locals(scope: Scope) -> set[str]:
    """Return the local names of a function; a class has no names that inner scopes see."""
    if isinstance(scope, ast.ClassDef):
        return set()
    named = {arg.arg for arg in ast.iter_child_nodes(scope.args) if isinstance(arg, ast.arg)}
    outer = {
        name
        for node in ast.walk(scope)
        if isinstance(node, (ast.Global, ast.Nonlocal))
        for name in node.names
    }
    return (_assigned(scope) - outer) | named


def _refuse_hidden_names(tree: ast.Module) -> None:
    """Refuse AutoGraph's own name, and code in a class's body that AutoGraph cannot convert.

    AutoGraph makes functions of the parts of a conditional expression, and functions do not see the
    names of a class.
    """
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Name) and scope.id == _AUTOGRAPH:
            raise CellError(
                f"Line {scope.lineno}: `{_AUTOGRAPH}` is the name under which TensorFlow's "
                "AutoGraph finds its own functions.",
                fix="Choose another name.",
            )
        if not isinstance(scope, ast.ClassDef):
            continue
        own = bound_in(scope.body)
        for node in in_scope(scope.body):
            chained = isinstance(node, ast.Compare) and len(node.ops) > 1
            if not chained and not isinstance(node, ast.BoolOp | ast.IfExp):
                continue
            for name in (each for each in in_scope([node]) if isinstance(each, ast.Name)):
                if name.id in own and isinstance(name.ctx, ast.Load):
                    raise CellError(
                        f"Line {name.lineno}: AutoGraph does not see `{name.id}` of the class "
                        f"`{scope.name}` inside of `and`, `or`, or a conditional expression.",
                        fix="Define the class in a cell of its own.",
                    )
