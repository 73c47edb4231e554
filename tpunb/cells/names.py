"""Follows a cell's flow of control: the names that it reads, binds and unbinds."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_SUPPRESSING = ("suppress", "raises", "assertRaises")
"""Context managers after whose body not all is bound that it binds."""


@dataclass(frozen=True)
class Flow:
    """The names that are bound at one point of the cell; `dead` where control never comes."""

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
    """Merge the flows that meet at one point; dead flows add no certainty."""
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


def _suppresses(manager: ast.expr) -> bool:
    """Returns whether a context manager is known to let its body end early."""
    function = manager.func if isinstance(manager, ast.Call) else manager
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _SUPPRESSING


class _Walker(ast.NodeVisitor):
    """Follows the flow of control and keeps what is bound in `flow`."""

    def __init__(self, *, in_class: bool = False) -> None:
        self._in_class = in_class
        self.flow = Flow()
        self.reads: dict[str, int] = {}
        self.certain_reads: set[str] = set()
        self.bound: dict[str, int] = {}
        self.plain: set[str] = set()
        self.passing: set[str] = set()
        self._certain = True
        self._hidden: frozenset[str] = frozenset()
        self._jumps: list[tuple[list[Flow], list[Flow]]] = []

    def run(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.visit(statement)

    def _each(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _perhaps(self, visit: Callable[[], None]) -> None:
        """Visits what is not reached in every run."""
        certain, self._certain = self._certain, False
        visit()
        self._certain = certain

    def _aside(self, visit: Callable[[], None]) -> None:
        """Visits a part of an expression that may be skipped."""
        before = self.flow
        self._perhaps(visit)
        self.flow = Flow(before.must, self.flow.may, before.dead)

    def _branch(self, start: Flow, visit: Callable[[], None]) -> Flow:
        """Follow a branch that begins at `start` and return the flow after it."""
        self.flow = start
        self._perhaps(visit)
        return self.flow

    # Names

    def _read(self, name: str, line: int) -> None:
        if name in self._hidden or self.flow.dead or name in self.flow.must:
            return
        self.reads.setdefault(name, line)
        if self._certain and name not in self.flow.may:
            self.certain_reads.add(name)

    def _bind(self, name: str, *, passing: bool = False) -> None:
        (self.passing if passing else self.plain).add(name)
        self.bound[name] = self.bound.get(name, 0) + 1
        self.flow = self.flow.bind(name)

    def _bind_passing(self, target: ast.AST | None) -> None:
        if target is None:
            return
        names = target_names(target)
        plain = self.plain.copy()
        self.visit(target)
        self.passing.update(names)
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
        self._each(node.value, *node.targets)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target.id, node.lineno)
            self._each(node.value, node.target)
        else:
            self._each(node.target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        # In a function, annotations of variables are not evaluated.
        if node.value is not None:
            self._each(node.value, node.target)
        elif not isinstance(node.target, ast.Name):
            self.visit(node.target)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self._bind(import_name(alias))

    visit_ImportFrom = visit_Import

    def visit_Raise(self, node: ast.Raise) -> None:
        self.generic_visit(node)
        self.flow = Flow(may=self.flow.may, dead=True)

    def visit_Break(self, node: ast.Break) -> None:
        self._jumps[-1][0].append(self.flow)
        self.flow = Flow(may=self.flow.may, dead=True)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._jumps[-1][1].append(self.flow)
        self.flow = Flow(may=self.flow.may, dead=True)

    # Definitions

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._each(*node.decorator_list, *node.args.defaults, *node.args.kw_defaults)
        every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        annotations = [arg.annotation for arg in (*every, node.args.vararg, node.args.kwarg) if arg]
        hidden = self._hide_type_parameters(node)
        self._perhaps(lambda: self._each(*annotations, node.returns))
        self._hidden = hidden
        self._bind(node.name)

    def _hide_type_parameters(self, node: ast.FunctionDef | ast.ClassDef) -> frozenset[str]:
        """Hides those of a definition (Python 3.12), which its head may read."""
        hidden = self._hidden
        names = {parameter.name for parameter in getattr(node, "type_params", ())}
        self._hidden = hidden | names
        return hidden

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._each(*node.args.defaults, *node.args.kw_defaults)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._each(*node.decorator_list)
        hidden = self._hide_type_parameters(node)
        self._each(*node.bases, *node.keywords)
        inside = _Walker(in_class=True)
        inside.run(node.body)
        for name, line in inside.reads.items():
            self._perhaps(partial(self._read, name, line))
        self._hidden = hidden
        self._bind(node.name)

    def visit_TypeAlias(self, node: ast.AST) -> None:
        # Python 3.12's `type X = ...`, whose value is evaluated on first use.
        self._bind(node.name.id)  # type: ignore[attr-defined]

    def visit_BinOp(self, node: ast.BinOp) -> None:
        operands: list[ast.expr] = []  # of a long sum, without recursion
        left: ast.expr = node
        while isinstance(left, ast.BinOp):
            operands.append(left.right)
            left = left.left
        self._each(left, *reversed(operands))

    # Expressions that skip some of their parts

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._aside(lambda: self._each(*node.values[1:]))

    def visit_Compare(self, node: ast.Compare) -> None:
        self._each(node.left, node.comparators[0])
        self._aside(lambda: self._each(*node.comparators[1:]))

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        start = self.flow
        then = self._branch(start, lambda: self.visit(node.body))
        other = self._branch(start, lambda: self.visit(node.orelse))
        self.flow = join(then, other)

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ) -> None:
        first, hidden = node.generators[0], self._hidden
        self.visit(first.iter)
        targets = {name for part in node.generators for name in target_names(part.target)}
        self._hidden = hidden | targets
        rest: list[ast.AST] = [*first.ifs]
        for part in node.generators[1:]:
            rest += [part.iter, *part.ifs]
        rest += [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        before = self.flow
        if self._in_class:  # whose names its comprehensions do not see
            self.flow = Flow()
        self._aside(lambda: self._each(*rest))
        self.flow = before if self._in_class else self.flow
        self._hidden = hidden

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    # Compound statements

    def visit_If(self, node: ast.If) -> None:
        certain, ends = self._certain, []
        while True:  # without recursion: an `elif` is nested in the one before it
            self.visit(node.test)
            start = self.flow
            ends.append(self._branch(start, partial(self.run, node.body)))
            self.flow, self._certain = start, False
            if len(node.orelse) != 1 or not isinstance(node.orelse[0], ast.If):
                break
            node = node.orelse[0]
        self.run(node.orelse)
        self._certain = certain
        self.flow = join(*ends, self.flow)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            self._bind_passing(item.optional_vars)
        start = self.flow
        self.run(node.body)
        if any(_suppresses(item.context_expr) for item in node.items):
            # As after `try` with handlers that do nothing.
            left = start.unsure(unbound_in(node.body), bound_in(node.body))
            self.flow = join(self.flow, left)

    def _loop_end(self, node: ast.For | ast.While, done: list[Flow]) -> None:
        """Visits a loop's body and `else`, and joins the ways out.

        `done` are the places from where the loop may end by itself.
        """
        self._jumps.append(([], []))
        end = self._branch(self.flow, lambda: self.run(node.body))
        breaks, continues = self._jumps.pop()
        normal = join(*done, end, *continues) if done else Flow(may=end.may, dead=True)
        other = self._branch(normal, lambda: self.run(node.orelse))
        self.flow = join(other, *breaks)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        before = self.flow
        self.flow = self.flow.unsure(unbound_in(node.body), bound_in(node.body))
        self._perhaps(lambda: self._bind_passing(node.target))
        self._loop_end(node, [before])

    def visit_While(self, node: ast.While) -> None:
        self.flow = self.flow.unsure(unbound_in(node.body), bound_in(node.body))
        self.visit(node.test)
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        self._loop_end(node, [] if endless else [self.flow])

    def visit_Try(self, node: ast.Try) -> None:
        start = self.flow
        certain, self._certain = self._certain, self._certain and not node.handlers
        self.run(node.body)
        body, self._certain = self.flow, certain
        caught = start.unsure(unbound_in(node.body), bound_in(node.body))
        ends = [self._branch(body, lambda: self.run(node.orelse))]
        for handler in node.handlers:
            ends.append(self._branch(caught, partial(self._handler, handler)))
        after = join(*ends)
        if node.finalbody:
            after = self._finally(node, start, after)
        self.flow = after

    def visit_TryStar(self, node: Any) -> None:
        self.visit_Try(node)

    def _handler(self, handler: ast.ExceptHandler) -> None:
        self._each(handler.type)
        if handler.name:
            self._bind(handler.name, passing=True)
        self.run(handler.body)
        if handler.name:
            self.flow = self.flow.unbind(handler.name)

    def _finally(self, node: ast.Try, start: Flow, after: Flow) -> Flow:
        parts = [*node.body, *node.orelse, *(s for h in node.handlers for s in h.body)]
        lost = unbound_in(parts)
        entry = start.unsure(lost, after.may)
        end = self._branch(Flow(entry.must, entry.may), lambda: self.run(node.finalbody))
        gone = unbound_in(node.finalbody)
        must = (after.must - gone) | (end.must - start.must)
        return Flow(must, after.may | end.may, after.dead or end.dead)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        start, ends = self.flow, []
        for case in node.cases:
            ends.append(self._branch(start, partial(self._case, case)))
            start = start.unsure(set(), ends[-1].may)
        last = node.cases[-1]
        irrefutable = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
        if not irrefutable or last.guard:
            ends.append(start)
        self.flow = join(*ends)

    def _case(self, case: ast.match_case) -> None:
        self.visit(case.pattern)
        for name in pattern_names(case.pattern):
            self._bind(name, passing=True)
        self._each(case.guard)
        self.run(case.body)


@dataclass(frozen=True)
class Names:
    """The names that a cell reads, assigns and unbinds.

    Attributes:
        reads: Names that may be read before the cell assigns them, with the
            line of the first such read.
        certain: The reads that happen in every run, of names that are surely
            not assigned at that point.
        assigned: Names that may be bound when the cell ends, in the order of
            their first binding.
        definite: Names that are bound when the cell ends, in every run.
        passing: Names bound only as targets of `for`, `with` and the like.
        bindings: In how many places each name is bound.
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
    """Analyses the statements of a cell.

    The bodies of functions and lambdas are not looked into: they run later,
    when everything is assigned that ever will be. What is asynchronous has
    been refused before.
    """
    walker = _Walker()
    walker.run(body)
    end = walker.flow
    left = tuple(name for name in walker.bound if name in end.may)
    definite = frozenset() if end.dead else end.must & frozenset(left)
    return Names(
        reads=walker.reads,
        certain=frozenset(walker.certain_reads),
        assigned=left,
        definite=definite,
        passing=frozenset(walker.passing) - frozenset(walker.plain),
        bindings=walker.bound,
        unbound=frozenset(unbound_in(body)),
    )
