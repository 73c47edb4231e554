"""A cell's flow of control: the names that the cell reads, binds and unbinds."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_SUPPRESSING = ("suppress", "raises", "assertRaises")
"""Context managers that suppress errors of their body, so that its names may stay unbound."""


def in_scope(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield nodes and the nodes below them, but not nodes in scopes of their own."""
    waiting = [*nodes][::-1]
    while waiting:
        node = waiting.pop()
        yield node
        children = [] if isinstance(node, _SCOPES) else [*ast.iter_child_nodes(node)]
        if isinstance(node, ast.comprehension):
            children = [node.iter, *node.ifs]
        elif isinstance(node, ast.AnnAssign) and node.value is None:
            children = [node.annotation]
        waiting += children[::-1]


def bound_in(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the names that some of the nodes may bind, in the order of their first binding."""
    names: dict[str, None] = {}
    for node in in_scope(nodes):
        if isinstance(node, ast.alias):
            names[node.asname or node.name.partition(".")[0]] = None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
        else:  # definitions, `except` and patterns carry names as plain strings
            carried = (getattr(node, "name", None), getattr(node, "rest", None))
            names |= dict.fromkeys(name for name in carried if isinstance(name, str))
    return list(names)


def unbound_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that some of the nodes may unbind."""
    names = set()
    for node in in_scope(nodes):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


@dataclass(frozen=True)
class Flow:
    """The names that are bound at one point of the cell; `dead` if control never reaches it."""

    must: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    dead: bool = False

    def bind(self, name: str) -> Flow:
        """Return the flow after a name was bound."""
        if name in self.must and name in self.may:
            return self
        return Flow(self.must | {name}, self.may | {name}, self.dead)

    def unbind(self, name: str) -> Flow:
        """Return the flow after a name was deleted."""
        return Flow(self.must - {name}, self.may - {name}, self.dead)

    def end(self) -> Flow:
        """Return the flow after a statement that control does not pass."""
        return Flow(may=self.may, dead=True)

    def unsure(self, nodes: Sequence[ast.AST]) -> Flow:
        """Return the flow if any part of the nodes may have run."""
        return Flow(self.must - unbound_in(nodes), self.may.union(bound_in(nodes)), self.dead)


def join(*flows: Flow) -> Flow:
    """Merge the flows that meet at one point; dead flows add no certainty."""
    may = frozenset().union(*(flow.may for flow in flows))
    alive = [flow.must for flow in flows if not flow.dead]
    if not alive:
        return Flow(frozenset(), may, dead=True)
    return Flow(frozenset.intersection(*alive), may)


class _Walker(ast.NodeVisitor):
    """A visitor that follows the flow of control and keeps the bound names in `flow`."""

    def __init__(self, *, in_class: bool = False) -> None:
        self._in_class = in_class
        self.flow = Flow()
        self.reads: dict[str, int] = {}
        self.certain_reads: set[str] = set()
        self.bound: dict[str, int] = {}
        self.plain: set[str] = set()
        self._certain = True
        self._hidden: frozenset[str] = frozenset()
        self._jumps: list[tuple[list[Flow], list[Flow]]] = []

    def each(self, *nodes: ast.AST | None) -> None:
        """Visit nodes in their order."""
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _perhaps(self, *nodes: ast.AST | None) -> None:
        """Visit nodes that are not reached in every run."""
        certain, self._certain = self._certain, False
        self.each(*nodes)
        self._certain = certain

    def _aside(self, *nodes: ast.AST) -> None:
        """Visit a part of an expression that may be skipped."""
        before = self.flow
        self._perhaps(*nodes)
        self.flow = Flow(before.must, self.flow.may, before.dead)

    def _branch(self, start: Flow, *nodes: ast.AST) -> Flow:
        """Follow a branch that begins at `start` and return the flow after it."""
        self.flow = start
        self._perhaps(*nodes)
        return self.flow

    # Names

    def _read(self, name: str, line: int) -> None:
        if name in self._hidden or self.flow.dead or name in self.flow.must:
            return
        self.reads.setdefault(name, line)
        if self._certain and name not in self.flow.may:
            self.certain_reads.add(name)

    def _bind(self, name: str, *, passing: bool = False) -> None:
        if not passing:
            self.plain.add(name)
        self.bound[name] = self.bound.get(name, 0) + 1
        self.flow = self.flow.bind(name)

    def _bind_passing(self, target: ast.AST | None) -> None:
        plain = self.plain.copy()
        self.each(target)
        self.plain = plain

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(node.id, node.lineno)
        elif isinstance(node.ctx, ast.Del):
            self._read(node.id, node.lineno)
            self.flow = self.flow.unbind(node.id)
        elif node.id not in self._hidden:
            self._bind(node.id)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._bind(node.target.id)

    # Simple statements

    def visit_Assign(self, node: ast.Assign) -> None:
        self.each(node.value, *node.targets)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target.id, node.lineno)
            self.each(node.value, node.target)
        else:
            self.each(node.target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        # In a function, annotations of variables are not evaluated.
        if node.value is not None:
            self.each(node.value, node.target)
        elif not isinstance(node.target, ast.Name):
            self.visit(node.target)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for name in bound_in(node.names):
            self._bind(name)

    visit_ImportFrom = visit_Import

    def visit_Raise(self, node: ast.Raise) -> None:
        self.generic_visit(node)
        self.flow = self.flow.end()

    def visit_Break(self, node: ast.Break) -> None:
        self._jumps[-1][0].append(self.flow)
        self.flow = self.flow.end()

    def visit_Continue(self, node: ast.Continue) -> None:
        self._jumps[-1][1].append(self.flow)
        self.flow = self.flow.end()

    # Definitions

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.each(*node.decorator_list, *node.args.defaults, *node.args.kw_defaults)
        arguments = [each for each in ast.iter_child_nodes(node.args) if isinstance(each, ast.arg)]
        hidden = self._hide_type_parameters(node)
        self._perhaps(*(argument.annotation for argument in arguments), node.returns)
        self._hidden = hidden
        self._bind(node.name)

    def _hide_type_parameters(self, node: ast.FunctionDef | ast.ClassDef) -> frozenset[str]:
        """Hide the type parameters of a definition (Python 3.12), which its head may read."""
        hidden = self._hidden
        names = {parameter.name for parameter in getattr(node, "type_params", ())}
        self._hidden = hidden | names
        return hidden

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.each(*node.args.defaults, *node.args.kw_defaults)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.each(*node.decorator_list)
        hidden = self._hide_type_parameters(node)
        self.each(*node.bases, *node.keywords)
        inside = _Walker(in_class=True)
        inside.each(*node.body)
        certain, before, self._certain = self._certain, self.flow, False
        if self._in_class:  # a class inside another class does not see the outer class's names
            self.flow = Flow()
        for name, line in inside.reads.items():
            self._read(name, line)
        self._hidden, self._certain, self.flow = hidden, certain, before
        self._bind(node.name)

    def visit_TypeAlias(self, node: ast.AST) -> None:
        # Python 3.12 evaluates the value of `type X = ...` on its first use.
        self._bind(node.name.id)  # type: ignore[attr-defined]

    def visit_BinOp(self, node: ast.BinOp) -> None:
        operands: list[ast.expr] = []  # a long sum's operands, collected without recursion
        left: ast.expr = node
        while isinstance(left, ast.BinOp):
            operands.append(left.right)
            left = left.left
        self.each(left, *reversed(operands))

    # Expressions that skip some of their parts

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._aside(*node.values[1:])

    def visit_Compare(self, node: ast.Compare) -> None:
        self.each(node.left, node.comparators[0])
        self._aside(*node.comparators[1:])

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        start = self.flow
        self.flow = join(self._branch(start, node.body), self._branch(start, node.orelse))

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ) -> None:
        first, hidden = node.generators[0], self._hidden
        self.visit(first.iter)
        self._hidden = hidden.union(bound_in(part.target for part in node.generators))
        rest: list[ast.AST] = [*first.ifs]
        for part in node.generators[1:]:
            rest += [part.iter, *part.ifs]
        rest += [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        before = self.flow
        if self._in_class:  # comprehensions in a class do not see the class's names
            self.flow = Flow()
        self._aside(*rest)
        self.flow = before if self._in_class else self.flow
        self._hidden = hidden

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    # Compound statements

    def visit_If(self, node: ast.If) -> None:
        certain, ends = self._certain, []
        while True:  # without recursion: an `elif` is nested in the one before it
            self.visit(node.test)
            start = self.flow
            ends.append(self._branch(start, *node.body))
            self.flow, self._certain = start, False
            if len(node.orelse) != 1 or not isinstance(node.orelse[0], ast.If):
                break
            node = node.orelse[0]
        self.each(*node.orelse)
        self._certain = certain
        self.flow = join(*ends, self.flow)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            self._bind_passing(item.optional_vars)
        start = self.flow
        self.each(*node.body)
        for manager in (item.context_expr for item in node.items):
            function = manager.func if isinstance(manager, ast.Call) else manager
            if getattr(function, "attr", getattr(function, "id", "")) in _SUPPRESSING:
                # The flow is the same as after a `try` whose handlers do nothing.
                self.flow = join(self.flow, start.unsure(node.body))

    def _loop_end(self, node: ast.For | ast.While, done: list[Flow]) -> None:
        """Visit a loop's body and `else`, and join the ways out.

        `done` has the flow at each place where the loop may end by itself.
        """
        self._jumps.append(([], []))
        end = self._branch(self.flow, *node.body)
        breaks, continues = self._jumps.pop()
        normal = join(*done, end, *continues) if done else end.end()
        other = self._branch(normal, *node.orelse)
        self.flow = join(other, *breaks)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        before = self.flow
        self.flow = self.flow.unsure(node.body)
        certain, self._certain = self._certain, False
        self._bind_passing(node.target)
        self._certain = certain
        self._loop_end(node, [before])

    def visit_While(self, node: ast.While) -> None:
        self.flow = self.flow.unsure(node.body)
        self.visit(node.test)
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        self._loop_end(node, [] if endless else [self.flow])

    def visit_Try(self, node: ast.Try) -> None:
        start = self.flow
        certain, self._certain = self._certain, self._certain and not node.handlers
        self.each(*node.body)
        body, self._certain = self.flow, certain
        caught = start.unsure(node.body)
        handled = [self._branch(caught, handler) for handler in node.handlers]
        self.flow = join(self._branch(body, *node.orelse), *handled)
        if node.finalbody:
            after, entry = self.flow, start.unsure([*node.body, *node.handlers, *node.orelse])
            end = self._branch(Flow(entry.must, entry.may), *node.finalbody)
            must = (after.must - unbound_in(node.finalbody)) | (end.must - start.must)
            self.flow = Flow(must, after.may | end.may, after.dead or end.dead)

    def visit_TryStar(self, node: Any) -> None:
        self.visit_Try(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.each(node.type)
        if node.name:
            self._bind(node.name, passing=True)
        self.each(*node.body)
        if node.name:
            self.flow = self.flow.unbind(node.name)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        start, ends = self.flow, []
        for case in node.cases:
            ends.append(self._branch(start, case))
            start = start.unsure([case.pattern, *([case.guard] if case.guard else [])])
        last = node.cases[-1]
        irrefutable = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
        if not irrefutable or last.guard:
            ends.append(start)
        self.flow = join(*ends)

    def visit_match_case(self, node: ast.match_case) -> None:
        self.visit(node.pattern)
        for name in bound_in([node.pattern]):
            self._bind(name, passing=True)
        self.each(node.guard, *node.body)


@dataclass(frozen=True)
class Names:
    """The names that a cell reads, assigns and unbinds.

    Attributes:
        reads: Names that may be read before the cell assigns them, with the
            line of the first such read.
        certain: The reads that happen in every run, of names that are certainly
            not assigned at that point.
        assigned: Names that may be bound when the cell ends, in the order of
            their first binding.
        definite: Names that are bound when the cell ends, in every run.
        passing: Names bound only as targets of `for`, `with` and the like.
        bindings: The number of places where each name is bound.
        unbound: Names that some `del` or `except` clause unbinds.
    """

    reads: Mapping[str, int]
    certain: frozenset[str]
    assigned: tuple[str, ...]
    definite: frozenset[str]
    passing: frozenset[str]
    bindings: Mapping[str, int]
    unbound: frozenset[str]


def analyse(body: list[ast.stmt]) -> Names:
    """Analyse the statements of a cell.

    The bodies of functions and lambdas are not examined. They run later, when all names are
    assigned. Asynchronous code has been refused before.
    """
    walker = _Walker()
    walker.each(*body)
    end = walker.flow
    left = tuple(name for name in walker.bound if name in end.may)
    definite = frozenset() if end.dead else end.must & frozenset(left)
    return Names(
        reads=walker.reads,
        certain=frozenset(walker.certain_reads),
        assigned=left,
        definite=definite,
        passing=frozenset(walker.bound) - walker.plain,
        bindings=walker.bound,
        unbound=frozenset(unbound_in(body)),
    )
