"""The TensorFlow functions that are running now, in any thread.

Storage that a function uses may change only while that function does not run. TensorFlow does not
report which functions run, so calls are counted in a method that all of them pass:
`Context.call_function` of the eager context, which calls every traced function in TensorFlow 2.18
to 2.21. Single operations do not pass it. The eager context counts from the first strategy to the
end of the last.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Collection, Iterator
from typing import Any

from tpunb.tensorflow.virtual.graph.function_def import called_functions
from tpunb.tensorflow.virtual.private_names import context

_CALL_FUNCTION = "call_function"


class _Call:
    """A call that has begun."""

    __slots__ = ("__weakref__", "name")

    def __init__(self, name: str) -> None:
        self.name = name


_calls: dict[int, weakref.ref[_Call]] = {}
"""The calls that have begun and not ended, by their ids.

The references are weak, because an interrupt may cut off the end of a call, but not the end of its
frame.
"""

_strategies: set[int] = set()
"""The ids of the objects for which calls are counted."""

_lock = threading.RLock()
"""Held while a call begins, and while no call may begin."""


def count_for(strategy: Any) -> None:
    """Count the calls of functions for as long as an object lives.

    Args:
        strategy: The strategy, or a part of it that lives as long.
    """
    runtime: Any = context.context()
    with _lock:
        if _CALL_FUNCTION not in vars(runtime):
            setattr(runtime, _CALL_FUNCTION, _counting(type(runtime).call_function, runtime))
        _strategies.add(id(strategy))
    weakref.finalize(strategy, _stop_counting, id(strategy), runtime).atexit = False


def _stop_counting(strategy: int, runtime: Any) -> None:
    _strategies.discard(strategy)
    if not _strategies:
        vars(runtime).pop(_CALL_FUNCTION, None)


def _counting(call_function: Any, runtime: Any) -> Any:
    """Wrap TensorFlow's method that calls a function."""

    def count(name: bytes, tensor_inputs: Any, num_outputs: int) -> Any:
        with running(name.decode()):
            return call_function(runtime, name, tensor_inputs, num_outputs)

    return count


@contextlib.contextmanager
def running(name: str) -> Iterator[None]:
    """Count a function as running; wait while another thread is inside `none_begins`."""
    call = _Call(name)
    try:
        with _lock:
            _calls[id(call)] = weakref.ref(call)
        yield
    finally:
        _calls.pop(id(call), None)


@contextlib.contextmanager
def none_begins() -> Iterator[None]:
    """Make the calls of other threads wait until the block has ended."""
    with _lock:
        yield


def any_runs(functions: Collection[str]) -> bool:
    """Return whether any of some functions runs, directly or called by another function.

    Args:
        functions: The functions' names in TensorFlow's runtime.
    """
    known: dict[str, bool] = {}
    calls = [call for reference in list(_calls.values()) if (call := reference()) is not None]
    return any(_reaches(call.name, frozenset(functions), known) for call in calls)


def _reaches(name: str, functions: Collection[str], known: dict[str, bool]) -> bool:
    """Return whether a function is in a set of functions or calls one of them."""
    if name not in known:
        known[name] = name in functions  # the entry ends the recursion if a function calls itself
        known[name] = known[name] or any(
            _reaches(called, functions, known) for called in _called_by(name)
        )
    return known[name]


def _called_by(name: str) -> set[str]:
    runtime = context.context()
    if not runtime.has_function(name):
        return set()  # its strategy or its model is gone, and nothing can call it again
    definition = runtime.get_function_def(name)
    return {called for node in definition.node_def for called in called_functions(node)}
