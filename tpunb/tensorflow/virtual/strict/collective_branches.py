"""Collectives in a branch or a loop that replicas may leave on different ways.

A collective ends when every replica has called it. If a condition around it is true on one replica
and false on another, the replicas wait for each other forever. XLA compiles such a program.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tpunb.errors.code_problems import Problem
from tpunb.tensorflow.virtual.graph.collectives import groups
from tpunb.tensorflow.virtual.graph.function_def import (
    COLLECTIVES,
    CONTROL_FLOW,
    LOOPS,
    Library,
    Reference,
    called_functions,
    data_inputs,
    has_collectives,
    has_node,
    reference,
)
from tpunb.tensorflow.virtual.graph.replica_constants import Known, ReplicaConstants, Values
from tpunb.tensorflow.virtual.graph.tensorflow_graphs import body_sizes, known_sizes
from tpunb.tensorflow.virtual.graph.traced_function import TracedFunction
from tpunb.tensorflow.virtual.private_names import FunctionDef, NodeDef
from tpunb.tensorflow.virtual.replicate.passes import ReplicaFunction
from tpunb.tensorflow.virtual.replicate.variance import (
    Analysis,
    Argument,
    Passing,
    Role,
    Variance,
    analyze,
    body_arguments,
)

RULE = "collective-branch"
ADVICE = "collective-condition"

_HANGS = (
    "Call the collective on every replica, outside of the branch, and choose between values: "
    "`total = ctx.all_reduce('SUM', tf.where(replica_id == 0, x, tf.zeros_like(x)))`."
)
_MAY_HANG = (
    "Make the condition the same on every replica, such as "
    "`ctx.all_reduce('SUM', tf.cast(condition, tf.int32)) > 0`, or call the collective outside of "
    "the branch."
)
_MOST_TURNS = 64
"""The largest number of turns of a loop whose conditions are computed to look for a hang."""

_NAMES = {
    "CrossReplicaSum": "all-reduce",
    "AllToAll": "all-to-all",
    "CollectivePermute": "permutation",
}


def hanging_branches(traced: TracedFunction) -> list[Problem]:
    """Return a problem for each condition around a collective that replicas disagree about."""
    return [problem for problem in _all_problems(traced) if problem.code == RULE]


def uncertain_branches(traced: TracedFunction) -> list[Problem]:
    """Return a problem for each condition around a collective that replicas may disagree about.

    Such a condition depends on a replica's values that are only known when the function runs.
    """
    return [problem for problem in _all_problems(traced) if problem.code == ADVICE]


def _all_problems(traced: TracedFunction) -> list[Problem]:
    if (traced.replicas or 1) < 2:
        return []
    if not has_node(
        traced.definition, traced.library, functools.partial(_is_around, traced.library)
    ):
        return []
    function = ReplicaFunction(
        traced.definition,
        traced.library,
        [[traced.device]] * (traced.replicas or 1),
        sizes=known_sizes(traced.graph, traced.definition),
        body_sizes=body_sizes(traced.graph, traced.library),
    )
    flat, library = function.computed, function.inlined_library
    analysis = analyze(flat, _arguments(traced), library)
    search = _Search(library, traced.replicas or 1)
    return list(search.problems(flat, analysis, _known(traced)))


def _is_around(library: Library, node: NodeDef) -> bool:
    """Return whether a node is a branch or a loop with a collective inside."""
    return node.op in CONTROL_FLOW and any(
        has_collectives(library(name), library) for name in called_functions(node)
    )


def _arguments(traced: TracedFunction) -> Mapping[str, Argument]:
    """Return the way in which each argument of a traced function reaches the replicas."""
    names = [argument.name for argument in traced.definition.signature.input_arg]
    arguments: dict[str, Argument] = {}
    for index, (name, tensor) in enumerate(zip(names, traced.graph.inputs, strict=True)):
        variable = traced.graph.tracing.variables.get(id(tensor))
        passing = Passing.SHARED
        if index < len(traced.columns):
            column = traced.columns[index]
            is_same = all(value is column[0] for value in column) and not traced.has_stand_ins
            passing = Passing.SHARED if is_same else Passing.VARYING
        elif variable is not None:
            passing = Passing.MIRRORED if variable.mirrored else Passing.LOCAL
        arguments[name] = Argument(passing)
    return arguments


def _known(traced: TracedFunction) -> Known:
    """Return the arguments of a traced function that are constants."""
    names = [argument.name for argument in traced.definition.signature.input_arg]
    return {
        name: functools.partial(_constants, column)
        for name, column in zip(names, traced.columns, strict=False)
    }


def _constants(column: Sequence[tf.Tensor]) -> Values | None:
    values = [tf.get_static_value(value) for value in column]
    return None if any(value is None for value in values) else values


@dataclasses.dataclass(frozen=True)
class _Search:
    """The search through a replica function, and through its branches and loops.

    Attributes:
        library: Finds the functions of branches and loops.
        replicas: The number of replicas.
    """

    library: Library
    replicas: int

    def problems(
        self,
        function: FunctionDef,
        analysis: Analysis,
        known: Known,
        path: str = "",
        *,
        certain: bool = True,
    ) -> Iterator[Problem]:
        """Yield the problems of a function.

        Args:
            function: The function.
            analysis: The analysis of the function.
            known: The values of its arguments.
            path: The names of the nodes around the function.
            certain: Whether every replica runs the function in every step.
        """
        constants = ReplicaConstants(function, known, self.replicas)
        for node in analysis.order:
            if analysis.roles[node.name] is not Role.LIFTED:
                continue
            branch = _Branch(node, analysis, constants, self)
            problem = branch.problem(path, certain=certain)
            if problem is not None:
                yield problem
                continue  # the first decision on the way to a collective is the one to mend
            for body, is_certain in branch.bodies():
                yield from self.problems(
                    body,
                    *branch.inside(body),
                    f"{path}{node.name}/",
                    certain=certain and is_certain,
                )


class _Branch:
    """A branch or a loop with a collective, as the replicas meet it.

    Args:
        node: The node.
        analysis: The analysis of the function around it.
        constants: The known tensors of the function around it.
        search: The search that has found the node.
    """

    def __init__(
        self, node: NodeDef, analysis: Analysis, constants: ReplicaConstants, search: _Search
    ) -> None:
        self._node = node
        self._analysis = analysis
        self._constants = constants
        self._library = search.library
        self._replicas = search.replicas
        self._is_loop = node.op in LOOPS
        inputs = data_inputs(node)
        self._sources = inputs if self._is_loop else inputs[1:]
        self._variances = (
            analysis.output_variances[node.name]
            if self._is_loop
            else [*map(analysis.variance, self._sources)]
        )

    def inside(self, body: FunctionDef) -> tuple[Analysis, Known]:
        """Return the analysis of a function of the node, and the known values of its arguments."""
        names = [argument.name for argument in body.signature.input_arg]
        arguments = body_arguments(names, self._sources, self._variances, self._analysis.arguments)
        stays = self._passed_on() if self._is_loop else range(len(names))
        values = {
            names[index]: functools.partial(self._constants.of, self._sources[index])
            for index in stays
        }
        return analyze(body, arguments, self._library), values

    def bodies(self) -> Iterator[tuple[FunctionDef, bool]]:
        """Yield the functions that replicas may run, and whether they run them for certain."""
        if self._values is not None:
            yield from ((body, True) for body in self._taken(self._values))
            return
        skipped = self._node.attr["cond"].func.name if self._is_loop else ""
        for name in dict.fromkeys(called_functions(self._node)):
            if name != skipped:
                yield self._library(name), False

    def _ways(self, values: Values) -> list[str]:
        """Return the name of the function that each replica runs; empty for the end of a loop."""
        attributes = self._node.attr
        if self._is_loop:
            return [attributes["body"].func.name if value else "" for value in values]
        if "branches" in attributes:
            branches = attributes["branches"].list.func
            last = len(branches) - 1  # it also serves every number outside of the list
            indices = [int(value) if 0 <= value <= last else last for value in values]
            return [branches[index].name for index in indices]
        taken = ["then_branch" if value else "else_branch" for value in values]
        return [attributes[branch].func.name for branch in taken]

    def _taken(self, values: Values) -> list[FunctionDef]:
        """Return the functions that replicas run, given the condition on each replica."""
        return [self._library(name) for name in dict.fromkeys(self._ways(values)) if name]

    def problem(self, path: str, *, certain: bool) -> Problem | None:
        """Return the problem if the replicas disagree about the condition, or may disagree.

        Args:
            path: The names of the nodes around the function that contains the node.
            certain: Whether every replica meets the node in every step.
        """
        if not self._varies:
            return None
        called = self._collective()
        for turn, values in enumerate(self._decisions()):
            if values is None or turn == _MOST_TURNS:
                break
            ways = self._ways(values)
            other = next((k for k, way in enumerate(ways) if way != ways[0]), None)
            if other is not None:
                return self._disagreement(called, values, other, path, certain=certain)
            if not any(ways):  # the end of the loop
                return None
        else:
            return None
        return self._uncertain(called, path)

    def _disagreement(
        self, called: str, values: Values, other: int, path: str, *, certain: bool
    ) -> Problem:
        """Return the problem that another replica takes another way than replica 0."""
        disagreement = (
            f"A condition around a collective ({called}) is {_shown(values[0])} on replica 0 and "
            f"{_shown(values[other])} on replica {other}"
        )
        if certain and any(map(_waits_for_all, self._taken(values))):
            reason = f"{disagreement}: a TPU hangs, because the replicas wait for each other."
            return self._described(RULE, reason, _HANGS, path)
        reason = f"{disagreement}. A step that reaches the collective may hang on a TPU."
        return self._described(ADVICE, reason, _HANGS, path)

    def _uncertain(self, called: str, path: str) -> Problem:
        reason = (
            f"A condition around a collective ({called}) depends on a replica's own values. If "
            "one replica takes another way than the others, a TPU hangs."
        )
        return self._described(ADVICE, reason, _MAY_HANG, path)

    @functools.cached_property
    def _condition(self) -> tuple[FunctionDef, Reference] | None:
        """A loop's condition and its result; None for a branch."""
        if not self._is_loop:
            return None
        function = self._library(self._node.attr["cond"].func.name)
        return function, reference(function.ret[function.signature.output_arg[0].name])

    @functools.cached_property
    def _varies(self) -> bool:
        """True if the condition may differ between replicas."""
        if self._condition is None:
            variance = self._analysis.variance(data_inputs(self._node)[0])
        else:
            function, result = self._condition
            variance = self.inside(function)[0].variance(result)
        return variance is Variance.VARYING

    @functools.cached_property
    def _values(self) -> Values | None:
        """The condition on each replica, before a loop's first turn; None if it is not known."""
        if self._condition is None:
            return self._constants.of(data_inputs(self._node)[0])
        function, result = self._condition
        return self._constants_of(function).given(self._state).of(result)

    @property
    def _state(self) -> list[Callable[[], Values | None]]:
        """The values that a loop starts with."""
        return [functools.partial(self._constants.of, source) for source in self._sources]

    def _decisions(self) -> Iterator[Values | None]:
        """Yield the condition on each replica, before each turn of a loop; None if not known."""
        yield self._values
        if self._condition is None:
            return
        function, result = self._condition
        body = self._library(self._node.attr["body"].func.name)
        ends, turn, state = self._constants_of(function), self._constants_of(body), self._state
        while True:
            turn = turn.given(state)
            state = [
                functools.cache(functools.partial(turn.of, reference(body.ret[output.name])))
                for output in body.signature.output_arg
            ]
            yield ends.given(state).of(result)

    def _constants_of(self, function: FunctionDef) -> ReplicaConstants:
        """Return the constants of a function of a loop whose arguments are not known yet."""
        return ReplicaConstants(function, {}, self._replicas)

    def _passed_on(self) -> list[int]:
        """Return the indices of the values that a loop passes on unchanged."""
        body = self._library(self._node.attr["body"].func.name)
        pairs = zip(body.signature.input_arg, body.signature.output_arg, strict=True)
        return [
            index
            for index, (argument, output) in enumerate(pairs)
            if body.ret[output.name] == argument.name
        ]

    def _collective(self) -> str:
        """Return the name of the first collective inside, for a reader."""
        return next(
            _collectives(map(self._library, called_functions(self._node)), self._library), ""
        )

    def _described(self, code: str, reason: str, fix: str, path: str) -> Problem:
        message = (
            "The replicas disagree about a condition around a cross-replica operation. On a TPU "
            "this hangs."
        )
        name = path + self._node.name
        return Problem(code, reason, fix, message=message, node=name, op=self._node.op)


def _collectives(functions: Iterable[FunctionDef], library: Library) -> Iterator[str]:
    """Yield the names of the collectives in functions, for a reader."""
    for function in functions:
        for node in function.node_def:
            if node.op in COLLECTIVES:
                yield _NAMES[node.op]
            yield from _collectives(map(library, called_functions(node)), library)


def _waits_for_all(function: FunctionDef) -> bool:
    """Return whether a function calls a collective for which each replica waits for all others."""
    nodes = {node.name: node for node in function.node_def}
    return any(
        node.op == "CrossReplicaSum" and len(groups(node, nodes)) == 1 for node in function.node_def
    )


def _shown(value: np.ndarray) -> str:
    return str(bool(value)).lower() if value.dtype == bool else str(value)
