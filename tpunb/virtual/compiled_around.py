"""Functions that ask for XLA and run replicas: `jit_compile=True` around `strategy.run`."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import (
    FuncGraph,
    atomic_function,
    control_flow_util,
    function_transform,
    ops,
)

_COMPILES = "_XlaMustCompile"

_with_replicas: weakref.WeakSet[Any] = weakref.WeakSet()


def settle_compilation_around() -> None:
    """Does what TensorFlow does on a TPU with a function that is to be compiled as a whole.

    One that is called by itself is not compiled: its part for the TPU is, and the rest runs as
    without. TensorFlow's runtime looks for replicas in the function that is called, and not in
    those that it calls.

    Raises:
        NotFoundError: Another function calls it, as a TPU VM fails there: its XLA has a
            compiler for its cores and none for its host.
    """
    graph = ops.get_default_graph()
    if not control_flow_util.GraphOrParentsInXlaContext(graph):
        return
    if isinstance(getattr(graph, "outer_graph", None), FuncGraph):
        message = "could not find registered transfer manager for platform Host"
        raise tf.errors.NotFoundError(None, None, f"{message} -- check target linkage")
    _with_replicas.add(graph)
    if _leave_uncompiled not in function_transform.CONCRETE_FUNCTION_CALLBACKS:
        function_transform.CONCRETE_FUNCTION_CALLBACKS.append(_leave_uncompiled)


def _leave_uncompiled(concrete: Any) -> None:
    """Takes the request for XLA from a function with replicas, once it is traced."""
    if concrete.graph not in _with_replicas:
        return
    kept = {key: value for key, value in concrete._attrs.items() if key != _COMPILES}
    concrete._attrs.pop(_COMPILES, None)
    name = concrete.inference_fn.name
    atomic_function.from_func_graph(
        name, concrete.graph, kept, concrete.function_type, overwrite=True
    )
