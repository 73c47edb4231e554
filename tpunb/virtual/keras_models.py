"""Keras models: their step as a replica function, and its batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpunb.errors import TpunbError
from tpunb.virtual.keras_internals import build_for, is_model
from tpunb.virtual.tensorflow_state import default_strategy

_STEPS = {"fit": "train_step", "evaluate": "test_step", "predict": "predict_step"}
_OF_A_BATCH = {"train_on_batch": "fit", "test_on_batch": "evaluate", "predict_on_batch": "predict"}


@dataclasses.dataclass(frozen=True)
class ModelStep:
    """A step of a model.

    Attributes:
        replica_function: What each replica runs.
        data: Its batch on a replica: a nest of `tf.TensorSpec`s.
        examples: The global batch; None where its size is not known.
        strategy: The model's.
    """

    replica_function: Callable[..., Any]
    data: Any
    examples: int | None
    strategy: Any


def model_step(
    fn: Any, args: Sequence[Any], strategy: Any, refusal: type[TpunbError], caller: str
) -> ModelStep | None:
    """Return the function to trace for a model or its method; None for anything else.

    Args:
        fn: A compiled model, for its train step; or its `fit`, `evaluate` or `predict`.
        args: A dataset, or the parts of a global batch: tensors, arrays or `tf.TensorSpec`s.
        strategy: Whose replicas share the batch; by default the model's.
        refusal: The error of a model that is not compiled, or without a batch.
        caller: What the user has called, for its message: `tpunb.compile`.
    """
    model, name = fn, "fit"
    if not is_model(fn):
        model, name = getattr(fn, "__self__", None), getattr(fn, "__name__", "")
        name = _OF_A_BATCH.get(name, name)
        if not is_model(model) or name not in _STEPS:
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
    replicas = getattr(strategy, "num_replicas_in_sync", 1)
    data = _batch(args, refusal)
    if name != "predict" and not isinstance(data, tuple) and _wants_targets(model, _STEPS[name]):
        raise refusal(
            f"The model {model.name} was compiled with a loss, and the batch has inputs alone.",
            fix=f"Pass the targets too: {caller}(model, x, y). Without them: "
            f"{caller}(model.predict, x).",
        )
    sizes = [spec.shape[0] for spec in tf.nest.flatten(data) if spec.shape.rank]
    share = tf.nest.map_structure(lambda spec: _part(spec, replicas), data)
    if name != "predict":
        _build(model, share, strategy)
    step = getattr(model, _STEPS[name])
    return ModelStep(
        # A nest alone is the inputs of several, and neither inputs with targets.
        lambda *batch: step(
            batch if len(batch) > 1 or isinstance(batch[0], (list, tuple)) else batch[0]
        ),
        share,
        sizes[0] if sizes else None,
        strategy,
    )


def _wants_targets(model: Any, step: str) -> bool:
    """Return whether a step compares with targets: Keras's own does, where there is a loss."""
    module = getattr(type(model), step).__module__ or ""
    is_kerass = module.partition(".")[0] in {"keras", "tf_keras"}
    return is_kerass and getattr(model, "loss", None) is not None


def strategy_of(model: Any) -> Any:
    """Return the strategy in whose scope a model was made; None outside of any."""
    own = getattr(model, "distribute_strategy", None)
    return None if own is default_strategy() else own


def _batch(args: Sequence[Any], refusal: type[TpunbError]) -> Any:
    """The specs of a global batch, as a step takes it."""
    first = args[0]
    if hasattr(first, "element_spec"):
        spec = first.element_spec
        if isinstance(first, tf.distribute.DistributedDataset):
            raise refusal(
                "A distributed dataset does not tell its global batch.",
                fix="Pass the dataset that it was made from.",
            )
        return spec
    specs = tuple(tf.nest.map_structure(_spec, one) for one in args)
    return specs if len(specs) > 1 else specs[0]


def _spec(value: Any) -> tf.TensorSpec:
    if isinstance(value, tf.TensorSpec):
        return value
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        value = tf.convert_to_tensor(value)
        shape, dtype = value.shape, value.dtype
    return tf.TensorSpec(shape, dtype)


def _part(spec: tf.TensorSpec, replicas: int) -> tf.TensorSpec:
    """A replica's part of a batch."""
    sizes = spec.shape.as_list()
    if sizes and sizes[0] is not None:
        sizes[0] = -(-sizes[0] // replicas)
    return tf.TensorSpec(sizes, spec.dtype)


def _build(model: Any, data: Any, strategy: Any) -> None:
    """Makes the variables, which a step would make when it first runs."""
    scope = strategy.scope() if strategy is not None else tf.init_scope()
    with scope:
        if build_for(model, data):
            return
        if model.optimizer is not None and hasattr(model.optimizer, "build") and model.built:
            model.optimizer.build(model.trainable_variables)
