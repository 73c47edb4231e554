"""What is bound at one point of a cell, and what its statements bind and unbind."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Flow", "bound_by", "bound_in", "import_name", "join", "target_names", "unbound_in"]

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Flow:
    """What is bound at one point of the cell; `dead` where control never comes."""

    must: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    dead: bool = False

    def bind(self, name: str) -> Flow:
        """The same, after a name was bound."""
        return Flow(self.must | {name}, self.may | {name}, self.dead)

    def unbind(self, name: str) -> Flow:
        """The same, after a name was deleted."""
        return Flow(self.must - {name}, self.may - {name}, self.dead)

    def unsure(self, unbound: set[str], bound: frozenset[str] = frozenset()) -> Flow:
        """The same, where `unbound` may be lost and `bound` may be gained."""
        return Flow(self.must - unbound, self.may | bound, self.dead)


def join(*flows: Flow) -> Flow:
    """Where several flows come together; dead ones add nothing that is sure."""
    may = frozenset().union(*(flow.may for flow in flows))
    alive = [flow.must for flow in flows if not flow.dead]
    if not alive:
        return Flow(frozenset(), may, dead=True)
    return Flow(frozenset.intersection(*alive), may)


def target_names(target: ast.AST) -> list[str]:
    """The names that an assignment to `target` binds."""
    return [
        node.id
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def bound_by(statement: ast.stmt) -> list[str]:
    """The names that a simple statement binds, assignment expressions included."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [import_name(alias) for alias in statement.names]
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return []
    names = [node.target.id for node in _same_scope(statement) if isinstance(node, ast.NamedExpr)]
    if isinstance(statement, ast.Assign):
        return names + [name for target in statement.targets for name in target_names(target)]
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        return names + target_names(statement.target)
    return names


def import_name(alias: ast.alias) -> str:
    """The name that an import binds."""
    return alias.asname or alias.name.partition(".")[0]


def _same_scope(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes under `node`, without the insides of functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _same_scope(child)


def unbound_in(nodes: Iterable[ast.stmt]) -> set[str]:
    """The names that some statement among `nodes` unbinds."""
    names = set()
    for node in (found for root in nodes for found in (root, *_same_scope(root))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


def bound_in(nodes: Iterable[ast.stmt]) -> frozenset[str]:
    """The names that some statement among `nodes` may bind."""
    names: set[str] = set()
    for node in (found for root in nodes for found in (root, *_same_scope(root))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(import_name(alias) for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        else:
            names.update(_own_names(node))
    return frozenset(names)


def _own_names(node: ast.AST) -> list[str]:
    """The names that definitions, `except` and patterns carry as plain strings."""
    carried = (getattr(node, "name", None), getattr(node, "rest", None))
    return [name for name in carried if isinstance(name, str)]
