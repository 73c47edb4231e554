"""From a traced replica function to a module for libtpu, or to what forbids it before."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.compiler import fingerprint
from tpunb.compiler.libtpu import Bounded, Parameters, Prepared
from tpunb.compiler.program import CompileError
from tpunb.compiler.verdict import DEPENDS_ON_DATA, LOWERING, TRACING, Function, Lowering, Settings
from tpunb.errors.code_problems import Choose, Problem, SourceLine
from tpunb.virtual.check import (
    at_largest,
    parts_of_batch,
    refuse_other_strategies,
    traced_functions,
)
from tpunb.virtual.graph.function_def import called_functions, data_inputs
from tpunb.virtual.graph.traced_function import SourceLines, TracedFunction
from tpunb.virtual.keras_internals import layer_names, model_of
from tpunb.virtual.keras_models import model_step
from tpunb.virtual.strict import xla
from tpunb.virtual.strict.examination import once_a_line
from tpunb.virtual.strict.lint import statically_found
from tpunb.virtual.strict.lowering import Lowered, Refused, lower_for_tpu
from tpunb.virtual.strict.open_sizes import (
    how_to_fix,
    libtpu_refusal,
    lowering_refusal,
    no_size,
    of_bounds,
)
from tpunb.virtual.strict.stand_ins import Unknown, on_host, size_argument
from tpunb.virtual.variable_copies import handle_of

# What TensorFlow refuses before its compiler is asked. Of memory, sizes that depend on data
# and 64-bit types libtpu says more.
_BEFORE = frozenset({"unsupported-op", "unsupported-type", "list-size", "scope"})

# TensorFlow lowers them by the type of the device, and TPUs differ from what is compiled here.
# Sources: approx_topk_op.cc and where_op.cc in TensorFlow's compiler/tf2xla/kernels.
_LOWERED_AS_ON_A_CPU: Mapping[str, str] = {
    "ApproxTopK": "An approximate top-k was compiled as an exact one: a TPU takes less time.",
    "Where": "Where a condition holds was compiled as sums and a scatter: a TPU sorts for it.",
}


def prepare(
    traced: TracedFunction,
    settings: Settings,
    layers: Collection[str] = (),
    *,
    bounded: bool = False,
) -> Prepared:
    """Lowers a replica function.

    Args:
        traced: The function.
        settings: How.
        layers: The names of Keras layers.
        bounded: Whether sizes of its arguments that are not fixed are bounded in the program: so
            they are on several replicas. On one they are those that come.
    """
    bounded = bounded and bool(traced.open_axes)
    origins = GraphOrigins(traced, settings.choose, layers)
    found = statically_found(traced)
    if refused := [one for one in found if one.code in _BEFORE]:
        return _refused(refused, origins, settings)
    try:
        host = on_host(traced, found)
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
            return Prepared(origins, unknown=lowered.reason)
        return _refused([lowered], origins, settings)
    notes = [of_bounds(traced)] if bounded and lowered.sized else []
    notes += (
        [DEPENDS_ON_DATA] if bounded and any(one.code == "dynamic-shape" for one in found) else []
    )
    if host:
        notes.append("What runs on the host (soft device placement) is not part of the program.")
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


def _bounded(
    traced: TracedFunction, settings: Settings, layers: Collection[str], origins: GraphOrigins
) -> Bounded:
    def problem(message: str, node: str) -> Problem:
        found = libtpu_refusal(traced, message, node)
        return found.at(origins.places(found.node)).shown(settings.choose) if found.node else found

    fixed = traced.fixed or traced
    return Bounded(lambda: prepare(fixed, settings, layers), problem, how_to_fix(traced))


def function_for(fn: Any, args: Sequence[Any], strategy: Any, settings: Settings) -> Function:
    """Traces and lowers a function; see `compile` for the arguments and errors."""
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
        found = traced_functions(step.replica_function, data, largest, step.strategy)
        return found, step.examples

    notes = [_FIRST_BATCH] if any(getattr(one, "was_read", False) for one in args) else []
    if model_of(fn) is None:  # each replica's arguments are the same on any number of them
        traced, _ = traced_for(1)
        each = _examples(traced)
        return traced_function(traced, settings, layers=layers, each=each, notes=notes)

    @functools.cache
    def lowered_for(replicas: int) -> Lowering:
        traced, examples = traced_for(replicas)
        settings.progress(LOWERING)
        bounded = replicas > 1
        prepared = [prepare(one, settings, layers, bounded=bounded) for one in traced]
        return Lowering([_noted(one, notes) for one in prepared], examples)

    return Function(lowered_for)


def traced_function(
    traced: Sequence[TracedFunction],
    settings: Settings,
    *,
    layers: Collection[str] = (),
    each: int | None = None,
    notes: Sequence[str] = (),
) -> Function:
    """Lower replica functions that were traced elsewhere, as those of a cell.

    Args:
        traced: What `examination.observing` was passed, in one trace.
        settings: How.
        layers: The names of Keras layers.
        each: The batch of a replica.
        notes: What a reader has to know of its arguments.
    """

    @functools.cache
    def lowered(bounded: bool) -> list[Prepared]:
        settings.progress(LOWERING)
        prepared = (prepare(one, settings, layers, bounded=bounded) for one in traced)
        return [_noted(one, notes) for one in prepared]

    is_open = any(one.open_axes for one in traced)

    def lowered_for(replicas: int) -> Lowering:
        examples = None if each is None else each * replicas
        return Lowering(lowered(is_open and replicas > 1), examples)

    return Function(lowered_for)


_FIRST_BATCH = (
    "The dataset does not name all sizes: they are those of its first batch, which another batch "
    "may exceed."
)


def _noted(prepared: Prepared, notes: Sequence[str]) -> Prepared:
    return dataclasses.replace(prepared, notes=(*prepared.notes, *notes))


def _examples(traced: Sequence[TracedFunction]) -> int | None:
    """The batch of a replica: the first size of the first tensor that is passed in."""
    for one in traced:
        first = 1 if hasattr(one.graph, "tracing") else 0
        for tensor, shape in zip(one.graph.inputs[first:], one.shapes[first:], strict=True):
            numeric = tensor.dtype.is_floating or tensor.dtype.is_integer
            if numeric and shape.rank and shape[0]:
                return int(shape[0])
    return None


def _refused(found: Sequence[Problem], origins: GraphOrigins, settings: Settings) -> Prepared:
    located = [one.at(origins.places(one.node)) if one.node else one for one in found]
    shown = dict.fromkeys(one.shown(settings.choose) for one in once_a_line(located))
    return Prepared(origins, tuple(shown))


def _named(traced: TracedFunction, lowered: Lowered) -> Parameters:
    """The module's arguments by the names that a reader knows."""
    tracing = getattr(traced.graph, "tracing", None)
    variables = [one for one in traced.graph.variables if hasattr(type(one), "handle")]
    known = {handle_of(variable).ref(): variable.name for variable in variables}
    names = [argument.name for argument in traced.definition.signature.input_arg]
    outer = {id(inner): value for value, inner in traced.graph.captures}
    found: dict[str, tuple[str, bool]] = {}
    for name, placeholder in zip(names, traced.graph.inputs, strict=True):
        if placeholder.dtype != tf.resource:
            found[name] = (placeholder.name.partition(":")[0], False)
            continue
        variable = tracing.variables.get(id(placeholder)) if tracing else None
        handle = outer.get(id(placeholder))
        own = known.get(handle.ref(), "") if handle is not None else ""
        found[name] = ((variable.name if variable else own) or name, True)
    for place, axes in traced.open_axes.items():
        for axis in axes:
            found[size_argument(names[place], axis)] = (size_of(found[names[place]][0]), False)
    return [found.get(name, (name, False)) for name in lowered.arguments]


def size_of(name: str) -> str:
    """Return what a reader calls the size of an argument that is not fixed."""
    return f"size of {name}"


_TAPES = frozenset({"gradient_tape", "gradients"})
_KERNEL = re.compile(r"Grad(?=V\d|$)|Backprop\w*")
"""What an operation's gradient has in its name, beside the operation's own."""


def _around(node: str) -> Iterator[str]:
    """The name of a node, and those of the scopes around it, the innermost first."""
    while node:
        yield node
        node = node.rpartition("/")[0]


class GraphOrigins:
    """The places that the instructions of a traced function's program come from.

    Args:
        traced: The function.
        choose: Which of the lines that led to a node is shown.
        layers: The names of the Keras layers, as they stand in the names of nodes.
    """

    def __init__(
        self, traced: TracedFunction, choose: Choose, layers: Collection[str] = ()
    ) -> None:
        self._traced, self._choose, self._layers = traced, choose, frozenset(layers)
        self._places = SourceLines(traced.atomic)
        self.line = functools.cache(self._line)
        self.layer = functools.cache(self._layer)

    def places(self, node: str) -> tuple[SourceLine, ...]:
        """The lines of the user's code that led to a node, innermost first."""
        # Of a gradient first those of what it is the gradient of.
        candidates = [self._forward.get(node, "")]
        parts = node.split("/")
        for place, part in enumerate(parts):
            if part in _TAPES:
                forward = [re.sub(r"_grad$", "", one) for one in parts[place + 1 :]]
                candidates.append("/".join([*parts[:place], *forward]))
        for candidate in [*candidates, node]:
            for name in _around(candidate):
                if self._places.knows(name) and (found := self._places.own(name)):
                    return tuple(found)
        return tuple(self._places.own(node))

    def _line(self, node: str) -> SourceLine | None:
        chosen = self._choose(self.places(node)) if node else None
        return SourceLine(*chosen) if chosen else None

    def _layer(self, node: str) -> str:
        """The innermost layer in a node's name; a gradient's is that of what it is one of."""
        for part in reversed(node.split("/")):
            # Of a layer's second call TensorFlow numbers the scope.
            for name in (part, re.sub(r"_\d+$", "", part)):
                if name in self._layers:
                    return name
        return ""

    def operation(self, node: str) -> str:
        """TensorFlow's operation of a node; empty where it is not known."""
        known = (self.operations[name] for name in _around(node) if name in self.operations)
        return next(known, "")

    @functools.cached_property
    def _forward(self) -> Mapping[str, str]:
        """Of a gradient's kernel the node that it is the gradient of: they share tensors.

        The names of those that TensorFlow's functions make themselves, as `tf.nn.conv2d` does, do
        not tell: `gradient_tape/Conv2DBackpropFilter_1`.
        """
        nodes = {node.name: node for node in self._traced.definition.node_def}
        takers: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
        for node in nodes.values():
            for one in data_inputs(node):
                takers[node.op, one.source].append(node.name)
        found: dict[str, str] = {}
        taken: set[tuple[str, str]] = set()
        for node in nodes.values():
            if (op := _KERNEL.sub("", node.op)) == node.op:
                continue
            sources = [one.source for one in data_inputs(node)]
            shared = collections.Counter(name for one in sources for name in takers[op, one])
            if not shared:  # it takes what the other gives
                shared.update(one for one in sources if one in nodes and nodes[one].op == op)
            most = max(shared.values(), default=0)
            # Gradients are made from the last to the first.
            order = [name for name in reversed(shared) if shared[name] == most]
            free = [name for name in order if (node.op, name) not in taken]
            if order:
                found[node.name] = (free or order)[0]
                taken.add((node.op, found[node.name]))
        return found

    @functools.cached_property
    def operations(self) -> Mapping[str, str]:
        """TensorFlow's operations by the names of their nodes, in called functions too."""
        found: dict[str, str] = {}

        def add(function: Any, path: str, around: frozenset[str]) -> None:
            for node in function.node_def:
                found[path + node.name] = node.op
                for callee in called_functions(node):
                    if callee not in around:
                        inner = self._traced.library(callee)
                        add(inner, f"{path}{node.name}/", around | {callee})

        add(self._traced.definition, "", frozenset())
        return found
