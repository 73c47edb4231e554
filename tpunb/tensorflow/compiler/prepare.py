"""From a traced replica function to a module for libtpu, or to an earlier refusal."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.units import grouped, percent
from tpunb.compiler.ask import fingerprint
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.libtpu import Bounded, Parameters, Prepared
from tpunb.compiler.ask.verdict import (
    DEPENDS_ON_DATA,
    LOWERING,
    TRACING,
    Function,
    Lowering,
    about_the_limit,
)
from tpunb.compiler.program import CompileError
from tpunb.errors.code_problems import Choose, Problem, SourceLine
from tpunb.machine.keras_internals import layer_names, layer_with, model_of
from tpunb.tensorflow.checks.keras_models import model_step
from tpunb.tensorflow.checks.rule_check import (
    at_largest,
    parts_of_batch,
    refuse_other_strategies,
    traced_functions,
)
from tpunb.tensorflow.virtual.copies.variable_copies import handle_of
from tpunb.tensorflow.virtual.graph.function_def import called_functions, data_inputs
from tpunb.tensorflow.virtual.graph.traced_function import SourceLines, TracedFunction
from tpunb.tensorflow.virtual.strict import xla
from tpunb.tensorflow.virtual.strict.examination import once_a_line
from tpunb.tensorflow.virtual.strict.lowering import Lowered, Refused, lower_for_tpu
from tpunb.tensorflow.virtual.strict.open_sizes import (
    how_to_fix,
    libtpu_refusal,
    lowering_refusal,
    no_size,
    of_bounds,
)
from tpunb.tensorflow.virtual.strict.refused_ops import statically_found
from tpunb.tensorflow.virtual.strict.stand_ins import Unknown, on_host, size_argument

# TensorFlow refuses these before its compiler is asked. libtpu's messages about memory, sizes
# that depend on data and 64-bit types are better.
_BEFORE = frozenset({"unsupported-op", "unsupported-type", "list-size", "scope"})

_MUCH, _MANY = 0.3, 100
"""The share and number of a function's operations from which a layer or a line is named."""

# TensorFlow lowers these by the type of the device, so a TPU's program differs from this one.
# Sources: approx_topk_op.cc and where_op.cc in TensorFlow's compiler/tf2xla/kernels.
_LOWERED_AS_ON_A_CPU: Mapping[str, str] = {
    "ApproxTopK": "An approximate top-k was compiled as an exact top-k: a TPU takes less time.",
    "Where": "tf.where(condition) was compiled as sums and a scatter, but a TPU sorts.",
}


def prepare(
    traced: TracedFunction,
    settings: Settings,
    layers: Collection[str] = (),
    *,
    bounded: bool = False,
) -> Prepared:
    """Lower a replica function.

    Args:
        traced: The function.
        settings: The settings of the compilation.
        layers: The names of Keras layers.
        bounded: Whether open sizes of its arguments are bounded in the program, as on several
            replicas. On one replica, the program has the actual sizes.
    """
    bounded = bounded and bool(traced.open_axes)
    origins = GraphOrigins(traced, settings.choose_user or settings.choose, layers)
    problems = statically_found(traced)
    if refused := [problem for problem in problems if problem.code in _BEFORE]:
        return _refused(refused, origins, settings)
    given = settings.deadline.left
    try:
        host = on_host(traced, problems)
        lowered = lower_for_tpu(traced, host, settings.deadline, bounded=bounded)
    except Unknown as error:
        return Prepared(origins, unknown=str(error))
    if isinstance(lowered, Refused):
        fixed = prepare(traced.fixed or traced, settings, layers)
        compiles = bool(fixed.module)
        problem = lowering_refusal(traced, lowered)
        return _refused([problem], origins, settings) if compiles else fixed
    if isinstance(lowered, Problem):
        if lowered.code == "unchecked":
            reason = lowered.reason
            if time.monotonic() >= settings.deadline.end:
                reason += _most_operations(origins)
                reason += about_the_limit(settings.deadline.seconds, given)
            return Prepared(origins, unknown=reason)
        return _refused([lowered], origins, settings)
    notes = [of_bounds(traced)] if bounded and lowered.sized else []
    if bounded and any(problem.code == "dynamic-shape" for problem in problems):
        notes.append(DEPENDS_ON_DATA)
    if host:
        notes.append("Operations on the host (soft device placement) are not in the program.")
    operations = set(origins.operations.values())
    notes += [note for op, note in _LOWERED_AS_ON_A_CPU.items() if op in operations]
    return Prepared(
        origins,
        module=lowered.module,
        parameters=_named(traced, lowered),
        held_bytes=lowered.held_bytes,
        notes=tuple(notes),
        fingerprint=fingerprint.of_hlo(lowered.module),
        unsized="" if lowered.sized else no_size(traced),
        bounded=_bounded(traced, settings, layers, origins) if bounded else None,
    )


def _most_operations(origins: GraphOrigins) -> str:
    """Return a sentence about the layer with most of the operations, or else about the line."""
    total = len(origins.operations)
    for what, place_of in (("Layer `{}`", origins.layer), ("Line {.line}", origins.line)):
        counts = collections.Counter(filter(None, map(place_of, origins.operations)))
        for place, count in counts.most_common(1):
            if count >= max(_MUCH * total, _MANY):
                share = f"{percent(count / total)} of the function's {grouped(total)} operations"
                return f" {what.format(place)} has {share}."
    return ""


def _bounded(
    traced: TracedFunction, settings: Settings, layers: Collection[str], origins: GraphOrigins
) -> Bounded:
    def problem(message: str, node: str) -> Problem:
        refused = libtpu_refusal(traced, message, node)
        if not refused.node:
            return refused
        return refused.at(origins.places(refused.node)).shown(settings.choose)

    fixed = traced.fixed or traced
    return Bounded(lambda: prepare(fixed, settings, layers), problem, how_to_fix(traced))


def function_for(fn: Any, args: Sequence[Any], settings: Settings, strategy: Any) -> Function:
    """Trace and lower a function. See `compile` for the arguments and errors."""
    xla.start()
    layers = layer_names(fn)
    if strategy is not None:
        refuse_other_strategies(strategy)

    def traced_for(replicas: int) -> tuple[list[TracedFunction], int | None]:
        settings.progress(TRACING)
        step = model_step(fn, args, strategy, CompileError, "tpunb.compile", replicas)
        if step is None:
            return traced_functions(fn, args, at_largest(args), strategy), None
        if step.strategy is not None:
            refuse_other_strategies(step.strategy)
        data, largest = parts_of_batch(step.data), parts_of_batch(step.largest)
        function = step.replica_function
        return traced_functions(function, data, largest, step.strategy), step.examples

    notes = [_FIRST_BATCH] if any(getattr(arg, "was_read", False) for arg in args) else []
    if model_of(fn) is None:  # a replica's arguments do not depend on the number of replicas
        traced, _ = traced_for(1)
        each = _examples(traced)
        return traced_function(traced, settings, layers=layers, each=each, notes=notes)

    @functools.cache
    def lowered_for(replicas: int) -> Lowering:
        traced, examples = traced_for(replicas)
        settings.progress(LOWERING)
        bounded = replicas > 1
        prepared = [prepare(function, settings, layers, bounded=bounded) for function in traced]
        return Lowering([_noted(function, notes) for function in prepared], examples)

    return Function(lowered_for)


def traced_function(
    traced: Sequence[TracedFunction],
    settings: Settings,
    *,
    layers: Collection[str] = (),
    each: int | None = None,
    notes: Sequence[str] = (),
) -> Function:
    """Return a function from traced replica functions, for example a cell's.

    Args:
        traced: The functions that `examination.observing` received in one trace.
        settings: The settings of the compilation.
        layers: The names of Keras layers.
        each: The batch of a replica.
        notes: Remarks on its arguments for a reader.
    """

    @functools.cache
    def lowered(bounded: bool) -> list[Prepared]:
        settings.progress(LOWERING)
        prepared = (prepare(function, settings, layers, bounded=bounded) for function in traced)
        return [_noted(function, notes) for function in prepared]

    is_open = any(function.open_axes for function in traced)

    def lowered_for(replicas: int) -> Lowering:
        examples = None if each is None else each * replicas
        return Lowering(lowered(is_open and replicas > 1), examples)

    return Function(lowered_for)


_FIRST_BATCH = (
    "The dataset does not declare all sizes. The missing sizes are from its first batch, and "
    "another batch may exceed them."
)


def _noted(prepared: Prepared, notes: Sequence[str]) -> Prepared:
    return dataclasses.replace(prepared, notes=(*prepared.notes, *notes))


def _examples(traced: Sequence[TracedFunction]) -> int | None:
    """Return the batch of a replica: the first size of the first tensor among the arguments."""
    for function in traced:
        graph = function.graph
        first = 1 if hasattr(graph, "tracing") else 0
        for tensor, shape in zip(graph.inputs[first:], function.shapes[first:], strict=True):
            numeric = tensor.dtype.is_floating or tensor.dtype.is_integer
            if numeric and shape.rank and shape[0]:
                return int(shape[0])
    return None


def _refused(problems: Sequence[Problem], origins: GraphOrigins, settings: Settings) -> Prepared:
    located = [
        problem.at(origins.places(problem.node)) if problem.node else problem
        for problem in problems
    ]
    shown = dict.fromkeys(problem.shown(settings.choose) for problem in once_a_line(located))
    return Prepared(origins, tuple(shown))


def _named(traced: TracedFunction, lowered: Lowered) -> Parameters:
    """Return the module's arguments with names for a reader."""
    tracing = getattr(traced.graph, "tracing", None)
    variables = [v for v in traced.graph.variables if hasattr(type(v), "handle")]
    known = {handle_of(variable).ref(): variable.name for variable in variables}
    names = [argument.name for argument in traced.definition.signature.input_arg]
    outer = {id(inner): value for value, inner in traced.graph.captures}
    parameters: dict[str, tuple[str, bool]] = {}
    for name, placeholder in zip(names, traced.graph.inputs, strict=True):
        if placeholder.dtype != tf.resource:
            parameters[name] = (placeholder.name.partition(":")[0], False)
            continue
        variable = tracing.variables.get(id(placeholder)) if tracing else None
        handle = outer.get(id(placeholder))
        own = known.get(handle.ref(), "") if handle is not None else ""
        parameters[name] = ((variable.name if variable else own) or name, True)
    for place, axes in traced.open_axes.items():
        for axis in axes:
            size = size_of(parameters[names[place]][0])
            parameters[size_argument(names[place], axis)] = (size, False)
    return [parameters.get(name, (name, False)) for name in lowered.arguments]


def size_of(name: str) -> str:
    """Return a reader's name for the open size of an argument."""
    return f"size of {name}"


_TAPES = frozenset({"gradient_tape", "gradients"})
_KERNEL = re.compile(r"Grad(?=V\d|$)|Backprop\w*")
"""The part of a gradient operation's name beside the name of the operation itself."""


def _around(node: str) -> Iterator[str]:
    """Yield a node's name and the names of the scopes around it, the innermost first."""
    while node:
        yield node
        node = node.rpartition("/")[0]


class GraphOrigins:
    """The places that the instructions of a traced function's program come from.

    Args:
        traced: The function.
        choose: Chooses the line to show, from the lines that led to a node.
        layers: The names of the Keras layers, as in the names of nodes.
    """

    def __init__(
        self, traced: TracedFunction, choose: Choose, layers: Collection[str] = ()
    ) -> None:
        self._traced, self._choose, self._layers = traced, choose, frozenset(layers)
        self._places = SourceLines(traced.atomic)
        self.line = functools.cache(self._line)
        self.layer = functools.cache(self._layer)

    def places(self, node: str) -> tuple[SourceLine, ...]:
        """Return the lines of the user's code that led to a node, innermost first."""
        # For a gradient, try the node of the forward pass first.
        candidates = [self._forward.get(node, "")]
        parts = node.split("/")
        for place, part in enumerate(parts):
            if part in _TAPES:
                forward = [re.sub(r"_grad$", "", scope) for scope in parts[place + 1 :]]
                candidates.append("/".join([*parts[:place], *forward]))
        for candidate in [*candidates, node]:
            for name in _around(candidate):
                if self._places.knows(name) and (lines := self._places.own(name)):
                    return tuple(lines)
        return tuple(self._places.own(node))

    def _line(self, node: str) -> SourceLine | None:
        chosen = self._choose(self.places(node)) if node else None
        return SourceLine(*chosen) if chosen else None

    def _layer(self, node: str) -> str:
        """Return the innermost layer in a node's name. A gradient has its forward pass's layer."""
        return layer_with(node, self._layers)

    def operation(self, node: str) -> str:
        """Return TensorFlow's operation of a node, or an empty string if unknown."""
        known = (self.operations[name] for name in _around(node) if name in self.operations)
        return next(known, "")

    @functools.cached_property
    def _forward(self) -> Mapping[str, str]:
        """The forward node of each gradient kernel, found by the tensors that they share.

        Their names do not tell if a function of TensorFlow, such as `tf.nn.conv2d`, makes the
        gradient: `gradient_tape/Conv2DBackpropFilter_1`.
        """
        nodes = {node.name: node for node in self._traced.definition.node_def}
        takers: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
        for node in nodes.values():
            for data_input in data_inputs(node):
                takers[node.op, data_input.source].append(node.name)
        forward: dict[str, str] = {}
        assigned: set[tuple[str, str]] = set()
        for node in nodes.values():
            if (op := _KERNEL.sub("", node.op)) == node.op:
                continue
            sources = [data_input.source for data_input in data_inputs(node)]
            shared = collections.Counter(name for source in sources for name in takers[op, source])
            if not shared:  # it takes the forward node's result
                shared.update(name for name in sources if name in nodes and nodes[name].op == op)
            most = max(shared.values(), default=0)
            # Gradients are made in reverse order.
            order = [name for name in reversed(shared) if shared[name] == most]
            free = [name for name in order if (node.op, name) not in assigned]
            if order:
                forward[node.name] = (free or order)[0]
                assigned.add((node.op, forward[node.name]))
        return forward

    @functools.cached_property
    def operations(self) -> Mapping[str, str]:
        """TensorFlow's operation of each node by the node's name, including called functions."""
        operations: dict[str, str] = {}

        def add(function: Any, path: str, around: frozenset[str]) -> None:
            for node in function.node_def:
                operations[path + node.name] = node.op
                for callee in called_functions(node):
                    if callee not in around:
                        inner = self._traced.library(callee)
                        add(inner, f"{path}{node.name}/", around | {callee})

        add(self._traced.definition, "", frozenset())
        return operations
