"""What scopes mean in a cell, whose names become those of a function on the replicas.

There the cell's names are local, and its functions reach them by `nonlocal`.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

from ..errors import CellError
from .bindings import bound_in, unbound_in

__all__ = ["declarations", "refuse_hidden_names"]

_AUTOGRAPH = "ag__"

_WITH_BODIES = (ast.stmt, ast.ExceptHandler, ast.match_case)
Scope: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def declarations(
    body: list[ast.stmt], definite: Collection[str], bound: Collection[str]
) -> Mapping[ast.Global, str]:
    """What replaces each `global` statement of a cell in the replica function.

    Args:
        body: The cell's statements.
        definite: Names that the cell itself binds in every run.
        bound: Names that it may bind.

    Raises:
        CellError: A function assigns a name that the replica function may not have.
    """
    return {node: _declaration(node, scopes, definite, bound) for node, scopes in _globals(body)}


def _globals(body: list[ast.stmt]) -> Iterator[tuple[ast.Global, tuple[Scope, ...]]]:
    """The `global` statements with the functions and classes around them, outermost first."""
    waiting: list[tuple[ast.AST, tuple[Scope, ...]]] = [(node, ()) for node in reversed(body)]
    while waiting:
        node, scopes = waiting.pop()
        if isinstance(node, ast.Global):
            yield node, scopes
        inner = (*scopes, node) if isinstance(node, Scope) else scopes
        children = [each for each in ast.iter_child_nodes(node) if isinstance(each, _WITH_BODIES)]
        waiting += [(child, inner) for child in reversed(children)]


def _declaration(
    node: ast.Global,
    scopes: tuple[Scope, ...],
    definite: Collection[str],
    bound: Collection[str],
) -> str:
    if not scopes:
        return "pass"  # which is what it means at the top of a module
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


def _assigned(scope: Scope) -> frozenset[str]:
    """The names that the statements of a scope bind or unbind."""
    return bound_in(scope.body) | unbound_in(scope.body)


def _locals(scope: Scope) -> frozenset[str]:
    """The names of a function that are its own; a class has none that others see."""
    if isinstance(scope, ast.ClassDef):
        return frozenset()
    arguments = scope.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    named = {arg.arg for arg in (*every, arguments.vararg, arguments.kwarg) if arg is not None}
    outer = {
        name
        for node in ast.walk(scope)
        if isinstance(node, (ast.Global, ast.Nonlocal))
        for name in node.names
    }
    return (_assigned(scope) - outer) | named


def refuse_hidden_names(tree: ast.Module) -> None:
    """Refuses the name that AutoGraph's own code has, and what it cannot do in a class's body.

    It makes functions of the parts of a conditional expression, and functions do not
    see the names of a class.

    Raises:
        CellError: A part reads such a name.
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
        for node in (inner for statement in scope.body for inner in _directly_in(statement)):
            if not _is_conditional(node):
                continue
            for name in (each for each in _directly_in(node) if isinstance(each, ast.Name)):
                if name.id in own and isinstance(name.ctx, ast.Load):
                    raise CellError(
                        f"Line {name.lineno}: AutoGraph does not see `{name.id}` of the class "
                        f"`{scope.name}` inside of `and`, `or`, or a conditional expression.",
                        fix="Define the class in a cell of its own.",
                    )


def _is_conditional(node: ast.AST) -> bool:
    chained = isinstance(node, ast.Compare) and len(node.ops) > 1
    return chained or isinstance(node, (ast.BoolOp, ast.IfExp))


def _directly_in(node: ast.AST) -> Iterator[ast.AST]:
    """A node with those under it, without functions and classes."""
    if isinstance(node, (*Scope.__args__, ast.Lambda)):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _directly_in(child)
