"""Functions traced before a variable's copies came to differ, and traced anew after.

A function that is written for all replicas takes a mirrored variable for the same
on every core until some traced function assigns a value of its own to a copy. From
then on the functions that came before it would give wrong results.
"""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any

from tpunb.virtual._tensorflow import FunctionCache, ops


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a function for all replicas, in the graph that is built around it.

    Attributes:
        function: The name of the function.
        variables: The variables that it takes for the same on every core.
        renew: Writes the function anew and points the call to it.
        traced: The graph from which the function was written. TPU functions are
            traced anew in each tracing context, which TensorFlow tells apart by
            `id()`: the context has to live as long as what was traced in it.
    """

    function: str
    variables: frozenset[str]
    renew: Callable[[], None]
    traced: Any


class Calls:
    """The calls of one strategy, for as long as their graphs live."""

    def __init__(self) -> None:
        # A call refers to its graph: only the graph itself may hold on to it.
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, graph: Any, call: Call) -> None:
        """Notes a call in a graph that is being built."""
        graph._tpunb_calls = [*_calls_in(graph), call]
        self._graphs.add(graph)

    def renew(self, variables: Collection[str]) -> None:
        """Sees to the calls that take variables for the same which are so no longer."""
        if not variables:
            return
        building = list(_graphs_being_built())
        stale: set[str] = set()
        for graph in list(self._graphs):
            calls = [call for call in _calls_in(graph) if call.variables & set(variables)]
            if any(graph is one for one in building):
                for call in calls:
                    call.renew()
            else:
                stale.update(call.function for call in calls)
        if stale:
            _forget(stale)


def _calls_in(graph: Any) -> list[Call]:
    return list(getattr(graph, "_tpunb_calls", ()))


def _graphs_being_built() -> Iterator[Any]:
    graph = ops.get_default_graph()
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


def _forget(functions: set[str]) -> None:
    """Makes each `tf.function` that calls one of these trace anew when next called."""
    # There is no way from a graph to the tf.function that keeps it.
    for cache in gc.get_objects():
        if type(cache) is FunctionCache and any(
            not functions.isdisjoint(concrete.graph._functions) for concrete in cache.values()
        ):
            cache.clear()
