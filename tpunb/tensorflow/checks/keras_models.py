"""Keras models: their step as a replica function, and its batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpunb.errors import TpunbError
from tpunb.machine.keras_internals import (
    OF_ONE_BATCH,
    STEPS,
    build_for,
    is_model,
    model_of,
)
from tpunb.tensorflow.checks.dataset_sizes import DatasetBatch
from tpunb.tensorflow.virtual.runtime.tensorflow_state import default_strategy
from tpunb.tensorflow.virtual.strategy import current


@dataclasses.dataclass(frozen=True)
class ModelStep:
    """A step of a model.

    Attributes:
        replica_function: The function that each replica runs.
        data: The step's batch on a replica: a nest of `tf.TensorSpec`s. A size is None if it is not
            fixed, or not the same on all replicas.
        largest: The same batch with the largest sizes, as far as they are known.
        examples: The size of the global batch, or of the largest; None if it is not known.
        strategy: The model's strategy.
    """

    replica_function: Callable[..., Any]
    data: Any
    largest: Any
    examples: int | None
    strategy: Any


def model_step(
    fn: Any,
    args: Sequence[Any],
    strategy: Any,
    refusal: type[TpunbError],
    caller: str,
    replicas: int | None = None,
) -> ModelStep | None:
    """Return the step to trace for a model or its method; None for other functions.

    Args:
        fn: A compiled model, for its train step; or its `fit`, `evaluate` or `predict`.
        args: A `DatasetBatch`, or the parts of a global batch: tensors, arrays or `tf.TensorSpec`s.
        strategy: The strategy whose replicas share the batch; by default the model's.
        refusal: The error to raise if the model is not compiled or has no batch.
        caller: The function that the user called, for its message, such as `tpunb.compile`.
        replicas: The number of replicas that share the batch; by default the strategy's.
    """
    model, name = fn, "fit"
    if not is_model(fn):
        model, name = getattr(fn, "__self__", None), getattr(fn, "__name__", "")
        name = OF_ONE_BATCH.get(name, name)
        if not is_model(model) or name not in STEPS:
            return None
    if name != "predict" and getattr(model, "optimizer", None) is None:
        raise refusal(
            f"The model {model.name} is not compiled.", fix="Call model.compile(...) first."
        )
    strategy = strategy or strategy_of(model)
    if not args:
        raise refusal(
            "A model's step takes a batch.",
            fix=f"Pass a dataset, or the batch: {caller}(model, x, y).",
        )
    count = replicas or int(getattr(strategy, "num_replicas_in_sync", 1))
    data, largest = _batch(args, refusal)
    if name == "predict" and _reads_before(model) and getattr(args[0], "is_full", False):
        data = largest
    if name != "predict" and not isinstance(data, tuple) and _wants_targets(model, STEPS[name]):
        raise refusal(
            f"The model {model.name} was compiled with a loss, and the batch has inputs alone.",
            fix=f"Pass the targets too: {caller}(model, x, y). Without them: "
            f"{caller}(model.predict, x).",
        )
    sizes = [spec.shape[0] for spec in tf.nest.flatten(largest) if spec.shape.rank]
    share = tf.nest.map_structure(lambda spec: _part(spec, count), data)
    if name != "predict":
        _build(model, share, strategy)
    step = getattr(model, STEPS[name])
    return ModelStep(
        # A nest by itself is a model's several inputs, not inputs with targets.
        lambda *batch: step(
            batch if len(batch) > 1 or isinstance(batch[0], (list, tuple)) else batch[0]
        ),
        share,
        tf.nest.map_structure(lambda spec: _part(spec, count, largest=True), largest),
        sizes[0] if sizes else None,
        strategy,
    )


def _wants_targets(model: Any, step: str) -> bool:
    """Return whether a step compares with targets, as Keras's own step does if there is a loss."""
    module = getattr(type(model), step).__module__ or ""
    is_kerass = module.partition(".")[0] in {"keras", "tf_keras"}
    return is_kerass and getattr(model, "loss", None) is not None


def _reads_before(model: Any) -> bool:
    """Return whether `predict` reads each batch before its step, which then knows the sizes.

    Keras 3's `predict` does. Keras 3's `fit` and `evaluate` read within their function, and so do
    all three in tf_keras.
    """
    return any(base.__module__.partition(".")[0] == "keras" for base in type(model).__mro__)


def strategy_of(model: Any) -> Any:
    """Return the strategy in whose scope a model was made; None outside any scope."""
    own = getattr(model, "distribute_strategy", None)
    return None if own is default_strategy() else own


def strategy_for(fn: Any, strategy: Any) -> Any:
    """Return a strategy, by default the strategy in use, or else the strategy of a model."""
    strategy = strategy or current()
    if strategy is None and (model := model_of(fn)) is not None:
        return strategy_of(model)
    return strategy


def _batch(args: Sequence[Any], refusal: type[TpunbError]) -> tuple[Any, Any]:
    """Return the specs of a global batch, as a step takes it, and of the largest batch."""
    first = args[0]
    if isinstance(first, tf.distribute.DistributedDataset):
        raise refusal(
            "A distributed dataset does not tell its global batch.",
            fix="Pass the dataset that it was made from.",
        )
    if isinstance(first, DatasetBatch):
        return first.element_spec, first.largest
    if _is_read_by_python(first):
        raise refusal(
            f"The batches of a {type(first).__name__} are not known before Python reads them, "
            "and nothing is read here.",
            fix="Pass a batch of it, `x, y`, or the `tf.TensorSpec`s of one.",
        )
    specs = tuple(tf.nest.map_structure(_spec, argument) for argument in args)
    data = specs if len(specs) > 1 else specs[0]
    return data, data


def _is_read_by_python(data: Any) -> bool:
    """Return whether data is a generator, another iterator, or a `PyDataset` of Keras."""
    is_sequence = hasattr(data, "__getitem__") and hasattr(data, "on_epoch_end")
    return hasattr(data, "__next__") or is_sequence


def _spec(value: Any) -> tf.TensorSpec:
    if isinstance(value, tf.TensorSpec):
        return value
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        value = tf.convert_to_tensor(value)
        shape, dtype = value.shape, value.dtype
    return tf.TensorSpec(shape, dtype)


def _part(spec: tf.TensorSpec, replicas: int, *, largest: bool = False) -> tf.TensorSpec:
    """Return a replica's part of a batch: the largest, or an open size if the sizes differ."""
    rows = spec.shape[0] if spec.shape.rank else None
    if rows is None:
        return spec
    part = None if rows % replicas and not largest else -(-rows // replicas)
    return tf.TensorSpec([part, *spec.shape[1:]], spec.dtype)


def _build(model: Any, data: Any, strategy: Any) -> None:
    """Make the variables that a step would make when it first runs."""
    scope = strategy.scope() if strategy is not None else tf.init_scope()
    with scope:
        if build_for(model, data):
            return
        if model.optimizer is not None and hasattr(model.optimizer, "build") and model.built:
            model.optimizer.build(model.trainable_variables)
