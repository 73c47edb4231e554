"""A function for all replicas, as TensorFlow's runtime holds it."""

from __future__ import annotations

from collections.abc import Mapping, MutableSet, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tpunb.virtual._tensorflow import (
    FuncGraph,
    FunctionDef,
    GraphDebugInfo,
    atomic_function,
    c_api_util,
    context,
    in_save_context,
    pywrap_tf_session,
)
from tpunb.virtual.graph.traced_function import gathered_origins, nearest_trace


class Family(Protocol):
    """The functions that were written for one replica function, at first and since."""

    @property
    def bodies(self) -> Sequence[FunctionDef]:
        """Those that the function for all replicas calls."""

    @property
    def graphs(self) -> MutableSet[Any]:
        """The graphs that the function for all replicas stands in."""

    @property
    def saved(self) -> Mapping[str, FunctionDef]:
        """What goes into a saved model, by name; nothing if it is what is registered."""


class ReplicatedFunction(atomic_function.AtomicFunction):  # type: ignore[misc]
    """A function for all replicas, or one that it calls.

    Args:
        definition: The function; it is registered in the runtime.
        traced: The function of one replica from which it was written.
        family: The functions that were written with it.
    """

    __slots__ = ["_family", "_graph", "_traced"]

    def __init__(
        self,
        definition: FunctionDef,
        traced: atomic_function.AtomicFunction | None = None,
        family: Family | None = None,
    ) -> None:
        runtime = context.context()
        runtime.add_function_def(definition)
        super().__init__(definition.signature.name, runtime, function_type=None)
        self._traced = traced
        self._family = family
        self._graph: FuncGraph | None = None

    def add_to(self, graph: Any) -> None:
        """Adds the function to a graph that calls it, or that holds what does."""
        holder = graph
        while holder is not None and self._family is not None:
            # Noted before: another thread may redefine the function at any time.
            self._family.graphs.add(holder)
            holder = getattr(holder, "outer_graph", None)
        graph._add_function(self)

    @property
    def definition(self) -> FunctionDef:
        """What the function is at present, or what of it goes into a saved model."""
        return self._saved() or super().definition

    @property
    def cached_definition(self) -> FunctionDef:
        """The definition, which is never kept: it changes when variables diverge."""
        return self.definition

    @property
    def _c_func(self) -> Any:
        """The function as graphs copy it, that of a model being saved among them."""
        saved = self._saved()
        if saved is None:
            return super()._c_func
        function = pywrap_tf_session.TF_FunctionImportFunctionDef(saved.SerializeToString())
        return c_api_util.ScopedTFFunction(function, self.name)

    def _saved(self) -> FunctionDef | None:
        if self._family is None or not in_save_context():
            return None
        return self._family.saved.get(tf.compat.as_str(self.name))

    @property
    def graph(self) -> FuncGraph:
        """An empty graph in place of one that would take seconds to build in Python.

        Saving a model looks for custom gradients here. Gradients are taken inside a
        replica function, never through a function for all replicas.
        """
        if self._graph is None:
            self._graph = FuncGraph(self.definition.signature.name)
        return self._graph

    @property
    def graph_debug_info(self) -> GraphDebugInfo:
        """The stack traces of the nodes; gathered only when an error needs them."""
        if self._traced is None:
            return GraphDebugInfo()
        gathered, known = gathered_origins(self._traced)
        bodies = self._family.bodies if self._family else ()
        for definition in (self.definition, *bodies):
            for node in definition.node_def:
                # A node of a body has signed with its name in the whole.
                name = next(iter(node.experimental_debug_info.original_node_names), node.name)
                trace = nearest_trace(name, known)
                if trace is not None:
                    gathered.name_to_trace_id[name] = trace
        for name, trace in known.items():
            if name not in gathered.name_to_trace_id:
                gathered.name_to_trace_id[name] = trace
        return gathered
