"""A function for all replicas, registered with TensorFlow, and rewritten when copies diverge.

It reads a mirrored variable once for all replicas, until some traced function assigns a copy its
own value. From then on the function would give wrong results, and so would all its callers: loops,
nested functions, concrete functions that a user holds. All of them call it by its name, so it is
enough to redefine it under that name in TensorFlow's runtime.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.tensorflow.virtual.copies.variable_copies import Copies
from tpunb.tensorflow.virtual.graph.tensorflow_graphs import add_function, renew_function
from tpunb.tensorflow.virtual.graph.traced_function import gathered_origins, nearest_trace
from tpunb.tensorflow.virtual.private_names import (
    FuncGraph,
    FunctionDef,
    GraphDebugInfo,
    atomic_function,
    c_api_util,
    context,
    in_save_context,
    pywrap_tf_session,
)
from tpunb.tensorflow.virtual.replicate.expansion import Expansion, expand
from tpunb.tensorflow.virtual.replicate.passes import ReplicaFunction
from tpunb.tensorflow.virtual.replicate.variance import Argument, Arguments, mark_diverged


class RegisteredFunction(atomic_function.AtomicFunction):  # type: ignore[misc]
    """A function for all replicas, or a function that it calls."""

    __slots__ = ["_family", "_graph", "_traced"]

    def __init__(
        self,
        definition: FunctionDef,
        traced: atomic_function.AtomicFunction | None = None,
        family: RewritableFunction | None = None,
    ) -> None:
        runtime = context.context()
        runtime.add_function_def(definition)
        super().__init__(definition.signature.name, runtime, function_type=None)
        self._traced = traced
        self._family = family
        self._graph: FuncGraph | None = None

    def add_to(self, graph: Any) -> None:
        """Add the function to a graph that contains calls of it, and note all graphs around it."""
        holder = graph
        while holder is not None and self._family is not None:
            # Noted first, because another thread may redefine the function at any time.
            self._family.graphs.add(holder)
            holder = getattr(holder, "outer_graph", None)
        add_function(graph, self)

    @property
    def definition(self) -> FunctionDef:
        """The function in its present form, or the part of it that goes into a saved model."""
        return self._saved() or super().definition

    @property
    def cached_definition(self) -> FunctionDef:
        """The definition, which is never cached: it changes when variables diverge."""
        return self.definition

    @property
    def _c_func(self) -> Any:
        """The function as graphs copy it, including the graph of a model that is being saved."""
        saved = self._saved()
        if saved is None:
            return super()._c_func
        function = pywrap_tf_session.TF_FunctionImportFunctionDef(saved.SerializeToString())
        return c_api_util.ScopedTFFunction(function, self.name)

    def _saved(self) -> FunctionDef | None:
        if self._family is None or not in_save_context() or _renewing.graphs:
            return None
        return self._family.saved.get(tf.compat.as_str(self.name))

    @property
    def graph(self) -> FuncGraph:
        """An empty graph, because a real graph would take seconds to build in Python.

        Saving a model looks for custom gradients here. Gradients are taken inside a replica
        function, never through a function for all replicas.
        """
        if self._graph is None:
            self._graph = FuncGraph(self.definition.signature.name)
        return self._graph

    @property
    def graph_debug_info(self) -> GraphDebugInfo:
        """The stack traces of the nodes, which are gathered only when an error needs them."""
        if self._traced is None:
            return GraphDebugInfo()
        gathered, known = gathered_origins(self._traced)
        for definition in (self.definition, *(self._family.bodies if self._family else ())):
            for node in definition.node_def:
                # A node of a body is signed with its name in the whole function.
                name = next(iter(node.experimental_debug_info.original_node_names), node.name)
                trace = nearest_trace(name, known)
                if trace is not None:
                    gathered.name_to_trace_id[name] = trace
        for name in known.keys() - gathered.name_to_trace_id.keys():
            gathered.name_to_trace_id[name] = known[name]
        return gathered


Separate = Mapping[str, Copies]
"""The copies of variables that were together, by the variables' keys."""


class RewritableFunction:
    """A function for all replicas, and all that is needed to write it again.

    Attributes:
        name: The name of the function for all replicas, in TensorFlow's runtime.
        equal: The keys of variables whose copies it assumes to be equal.
        together: The keys of variables whose copies it assumes to share one resource.
        bodies: The functions that were made for it, at first and later.
        graphs: The graphs that contain the function for all replicas. Another thread may still be
            building some of them.
    """

    def __init__(
        self, function: ReplicaFunction, arguments: Arguments, expansion: Expansion
    ) -> None:
        self._function = function
        self._arguments = arguments
        self.name = str(expansion.definition.signature.name)
        self.bodies: Sequence[FunctionDef] = expansion.bodies
        self._renewed: list[RegisteredFunction] = []
        self.equal: frozenset[str] = frozenset()
        self.graphs = weakref.WeakSet[Any]()
        self.together = frozenset(
            argument.key for argument in arguments.values() if argument.is_together
        )
        self._used: list[Copies] = []

    @property
    def variables(self) -> frozenset[str]:
        """The keys of the mirrored variables that it uses."""
        return frozenset(
            argument.key for argument in self._arguments.values() if argument.is_mirrored
        )

    @property
    def keys(self) -> frozenset[str]:
        """The keys of all variables that it uses and whose copies are watched."""
        return frozenset(argument.key for argument in self._arguments.values() if argument.key)

    @functools.cached_property
    def saved(self) -> Mapping[str, FunctionDef]:
        """The functions for a saved model, by name; empty if they equal the registered functions.

        In a saved model a single variable represents all copies, so an update that is the same on
        every replica must not be made by each replica. And the model computes with the arithmetic
        of the machine that loads it.

        Raises:
            ValueError: Replicas give copies values of their own.
        """
        if self.equal == self.variables and not self._used and self._function.unit is None:
            return {}
        function = dataclasses.replace(self._function, unit=None)
        expansion = expand(function, self._arguments, name=self.name)
        if expansion.diverged:
            keys = keys_of(self._arguments, expansion.diverged)
            names = ", ".join(sorted(key.rpartition("_")[0] for key in keys))
            raise ValueError(
                f"In a function to be saved, replicas give copies different values ({names}). A "
                "saved model holds one value for all copies. Aggregate the update, as "
                "tf.Variable(..., aggregation=...) does, or leave the function out of the model."
            )
        return {body.signature.name: body for body in (*expansion.bodies, expansion.definition)}

    def renew(self, diverged: Collection[str], separate: Separate) -> tuple[set[str], set[str]]:
        """Redefine the function after more copies diverged or became separate.

        Returns:
            The keys of variables to whose copies the redefined function may give different values,
            and the keys of variables whose copies must become separate before it can be redefined.
        """
        equal, together = self.equal.difference(diverged), self.together.difference(separate)
        # The function keeps copies alive that nothing else uses any more.
        self._used += [separate[key] for key in self.together.intersection(separate)]
        self.__dict__.pop("saved", None)
        known = as_known(self._arguments, diverged, separate)
        prefix = f"{self.name}_with_{len(equal)}_equal_{len(together)}_together"
        expansion = expand(self._function, known, name=self.name, prefix=prefix)
        if expansion.must_separate:
            return set(), keys_of(self._arguments, expansion.must_separate)
        # The old bodies stay: a function that is running or being prepared may need them.
        self.bodies = (*self.bodies, *expansion.bodies)
        self._renewed += [RegisteredFunction(body) for body in expansion.bodies]
        _redefine(expansion.definition, list(self.graphs))
        self.equal, self.together = equal, together
        return keys_of(self._arguments, expansion.diverged), set()


def keys_of(arguments: Arguments, names: Collection[str]) -> set[str]:
    """Return the keys of the variables that some arguments are."""
    return {arguments[name].key for name in names}


def as_known(
    arguments: Arguments, diverged: Collection[str], separate: Separate
) -> Mapping[str, Argument]:
    """Return arguments updated with the present knowledge of their variables."""
    known = dict(arguments)
    for name, argument in arguments.items():
        if argument.traced_together and argument.key in separate:
            resources = separate[argument.key].resources
            known[name] = dataclasses.replace(argument, resources=resources)
        if argument.is_mirrored and argument.key in diverged:
            known[name] = mark_diverged(known[name])
    return known


class _Renewing(threading.local):
    """A switch for each thread: graphs take new definitions, but not while a model is saved."""

    graphs = False


_renewing = _Renewing()


def _redefine(definition: FunctionDef, graphs: Iterable[Any]) -> None:
    """Replace a function in the runtime and in graphs with another of the same signature."""
    runtime, name = context.context(), definition.signature.name
    references = 0
    while runtime.has_function(name):
        runtime.remove_function(name)
        references += 1
    for _ in range(references):
        runtime.add_function_def(definition)
    _renewing.graphs = True
    try:
        for graph in graphs:
            renew_function(graph, name)
    finally:
        _renewing.graphs = False
