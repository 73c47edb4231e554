"""What is bound at one point of a cell, and what its statements bind and unbind."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = [
    "Flow",
    "assignment_expressions",
    "bound_by",
    "bound_in",
    "import_name",
    "join",
    "pattern_names",
    "suppresses",
    "target_names",
    "type_parameters",
    "unbound_in",
]

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_SUPPRESSING = ("suppress", "raises", "assertRaises")
"""Context managers after whose body not all is bound that it binds."""


@dataclass(frozen=True)
class Flow:
    """What is bound at one point of the cell; `dead` where control never comes."""

    must: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    dead: bool = False

    def bind(self, name: str) -> Flow:
        """The same, after a name was bound."""
        if name in self.must and name in self.may:
            return self
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
    names = assignment_expressions(statement)
    if isinstance(statement, ast.Assign):
        return names + [name for target in statement.targets for name in target_names(target)]
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        return names + target_names(statement.target)
    return names


def assignment_expressions(node: ast.AST) -> list[str]:
    """The names that assignment expressions in a node bind."""
    nodes = (node, *_same_scope(node))
    return [each.target.id for each in nodes if isinstance(each, ast.NamedExpr)]


def pattern_names(pattern: ast.pattern) -> list[str]:
    """The names that a pattern of `match` binds."""
    return list(dict.fromkeys(name for node in ast.walk(pattern) for name in _own_names(node)))


def import_name(alias: ast.alias) -> str:
    """The name that an import binds."""
    return alias.asname or alias.name.partition(".")[0]


def _same_scope(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes under `node`, without the insides of functions and classes."""
    waiting = [*ast.iter_child_nodes(node)][::-1]
    while waiting:
        found = waiting.pop()
        yield found
        if not isinstance(found, _SCOPES):
            waiting += [*ast.iter_child_nodes(found)][::-1]


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


def type_parameters(node: ast.FunctionDef | ast.ClassDef) -> frozenset[str]:
    """The type parameters of a definition (Python 3.12), which its head may read."""
    return frozenset(parameter.name for parameter in getattr(node, "type_params", ()))


def suppresses(manager: ast.expr) -> bool:
    """Whether a context manager is known to let its body end early."""
    function = manager.func if isinstance(manager, ast.Call) else manager
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _SUPPRESSING
