"""A function of TensorFlow as the compiler gets it, and the batch among its arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.fit.any_batch import AnyBatch, Lowerer
from tpunb.compiler.program import CompileError
from tpunb.machine.keras_internals import model_of
from tpunb.tensorflow.checks.dataset_sizes import DatasetBatch, with_batches
from tpunb.tensorflow.checks.keras_models import strategy_for
from tpunb.tensorflow.compiler.prepare import function_for


def lowerer(fn: Any, args: Sequence[Any], strategy: Any, note: str) -> Lowerer:
    """Return how TensorFlow traces a function. See `tpunb.framework.Framework.lowerer`."""
    strategy = strategy_for(fn, strategy)
    lower = functools.partial(function_for, fn, strategy=strategy)
    own = with_batches(args)

    def with_any_batch(kind: Target, settings: Settings) -> AnyBatch:
        # A model takes the global batch, and a replica function takes one replica's batch.
        whole = model_of(fn) is not None
        before, resized = _any_batch(own)
        return AnyBatch(lower, resized, before, kind.replicas if whole else 1, whole=whole)

    return Lowerer(fn, lower, own, strategy, False, note, with_any_batch)


def _any_batch(specs: Sequence[Any]) -> tuple[int | None, Callable[[int], list[Any]]]:
    """Return the arguments' batch, or None if it is open, and a function that changes it.

    Raises:
        CompileError: No argument has a batch.
    """
    arguments = list(specs)
    batch = arguments[0] if arguments and isinstance(arguments[0], DatasetBatch) else None
    elements = arguments if batch is None else batch.largest
    shapes = [getattr(value, "shape", None) for value in tf.nest.flatten(elements)]
    sizes = [shape[0] for shape in shapes if shape is not None and len(shape)]
    if not sizes:
        raise CompileError("No argument has a batch.", fix="Pass a tf.TensorSpec([None, …]).")

    if batch is not None:
        return sizes[0], lambda size: [batch.with_batch(size)]

    def with_batch(size: int) -> list[Any]:
        def resized(value: Any) -> Any:
            shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
            if shape is None or dtype is None or not len(shape) or shape[0] != sizes[0]:
                return value
            return tf.TensorSpec([size, *shape[1:]], dtype)

        return list(tf.nest.map_structure(resized, arguments))

    return sizes[0], with_batch
