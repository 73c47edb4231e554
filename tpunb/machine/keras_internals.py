"""Keras models of any backend: which values are models, and the parts without a public API.

Only this module uses Keras's private attributes. `tests/virtual/test_tensorflow_adapters.py` lists
them and reports if a release of Keras no longer has them. This module does not import TensorFlow.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

from tpunb._util.functions import read_closure
from tpunb.errors.code_problems import Choose, definition, innermost, plain_function

STEPS = {"fit": "train_step", "evaluate": "test_step", "predict": "predict_step"}
"""The step that each method of a model runs."""

OF_ONE_BATCH = {"train_on_batch": "fit", "test_on_batch": "evaluate", "predict_on_batch": "predict"}
"""The methods that run a step once, with the method that runs it for many batches."""


def is_model(value: object) -> bool:
    """Return whether a value is a Keras model, of Keras 3 or tf_keras."""
    return all(hasattr(value, name) for name in ("train_step", "predict_step", "layers"))


class ModelCall(NamedTuple):
    """A call of a model's method that passes data to a strategy.

    Attributes:
        model: The model.
        method: The method: `fit`, `evaluate` or `predict`.
        trains: Whether the data is training data. False for the validation data of `fit`, and if
            this release of Keras does not show the difference.
        adapter: Keras's object that makes batches of arrays; None if unknown.
        file: The file of the user's call.
        line: Its line.
    """

    model: Any
    method: str
    trains: bool
    adapter: Any
    file: str
    line: int


_METHODS = frozenset({"fit", "evaluate", "predict"})
_LIBRARIES = frozenset({"keras", "tf_keras"})
_TRAINING_DATA = frozenset({"data_handler", "epoch_iterator"})
"""The local variables of `fit` with the training data: of tf_keras 2.18 to 2.21, and of Keras 3.10
to 3.15. Keras has no public way to tell which data it passes to a strategy."""


def model_call(frame: FrameType | None) -> ModelCall | None:
    """Return the innermost call of a model's method; None if other code passes the data.

    Args:
        frame: The frame that Keras may have called.
    """
    model, method, trains, adapter = None, "", False, None
    while frame is not None:
        owner = frame.f_locals.get("self")
        if model is None:
            adapter = adapter or getattr(owner, "data_adapter", getattr(owner, "_adapter", None))
            if frame.f_code.co_name in _METHODS and is_model(owner):
                model, method = owner, frame.f_code.co_name
                # `fit` passes on its validation data once it has the training data.
                known = _TRAINING_DATA.intersection(frame.f_code.co_varnames)
                trains = method == "fit" and bool(known) and known.isdisjoint(frame.f_locals)
        elif str(frame.f_globals.get("__name__")).partition(".")[0] not in _LIBRARIES:
            return ModelCall(
                model, method, trains, adapter, frame.f_code.co_filename, frame.f_lineno
            )
        frame = frame.f_back
    return None


def layer_with(node: str, layers: Container[str]) -> str:
    """Return the innermost layer in a node's name; an empty string if there is none.

    Args:
        node: The node's name, with the scopes around it.
        layers: The names of the layers.
    """
    for part in reversed(node.split("/")):
        # In a layer's second call, TensorFlow adds a number to the scope.
        for name in (part, re.sub(r"_\d+$", "", part)):
            if name in layers:
                return name
    return ""


def model_of(fn: Any) -> Any:
    """Return a Keras model, given the model or its method, such as `evaluate`; None otherwise."""
    return next(filter(is_model, (fn, getattr(fn, "__self__", None))), None)


def layers_of(value: Any, *, recursive: bool = True) -> list[Any]:
    """Return the layers inside a Keras layer or model.

    Args:
        value: The layer or model; other values have no layers.
        recursive: Whether to include layers inside these layers.
    """
    if not hasattr(type(value), "_flatten_layers"):
        return []
    try:
        return list(value._flatten_layers(recursive=recursive, include_self=False))
    except AttributeError:  # the user's `__init__` did not call Keras's
        return []


def blocks_of(model: Any) -> list[Any]:
    """Return the blocks of a model, such as a transformer's: layers that contain layers.

    If a single block contains all others, the search goes on inside it, because recomputing a whole
    model saves nothing.
    """
    layers = [model]
    while len(layers) == 1:
        inside = layers_of(layers[0], recursive=False)
        layers = [layer for layer in inside if layers_of(layer, recursive=False)]
    return layers


def _all_layers(model: Any) -> Sequence[Any]:
    if not hasattr(model, "_flatten_layers"):
        return model.layers  # type: ignore[no-any-return]
    return list(model._flatten_layers())


def build_for(model: Any, batch: Any) -> bool:
    """Build a compiled Keras 3 model, its optimizer and metrics, for batches of a type.

    Args:
        model: The model.
        batch: A nest of specs, as a step takes it.

    Returns:
        Whether the model is a Keras 3 model.
    """
    if not hasattr(model, "_symbolic_build"):
        return False
    if model.optimizer is not None:
        model._symbolic_build(data_batch=batch)
    return True


def build_for_inputs(model: Any, inputs: Any) -> None:
    """Build the layers of a Keras 3 model for inputs of a type, as `predict` does.

    Args:
        model: The model.
        inputs: A nest of specs.
    """
    if all(layer.built for layer in _all_layers(model)):
        return
    keras: Any = sys.modules["keras"]
    model(keras.tree.map_structure(lambda spec: keras.KerasTensor(spec.shape, spec.dtype), inputs))


def metrics_of(model: Any) -> list[Any]:
    """Return a model's metrics, with those that Keras 3 adds only when the first batch comes."""
    compiled = getattr(getattr(model, "_compile_metrics", None), "_user_metrics", None)
    waiting, found = [compiled, list(getattr(model, "metrics", ()))], []
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list | tuple):
            waiting += value.values() if isinstance(value, dict) else value
        elif hasattr(value, "update_state") and value not in found:
            found.append(value)
    return found


def learning_rate_of(optimizer: Any) -> Any:
    """Return an optimizer's learning rate or schedule; the public attribute calls a schedule."""
    return optimizer._learning_rate


def ignored_by_keras(hook: Callable[..., None]) -> Callable[..., None]:
    """Mark a callback's hook as doing nothing, so that Keras does not call it."""
    hook._is_default = True  # type: ignore[attr-defined]
    return hook


def is_of_jax(model: Any) -> bool:
    """Return whether a model is a Keras model with the JAX backend."""
    return hasattr(model, "_get_jax_state")


def backend_of(fn: Any) -> str:
    """Return the backend of a Keras 3 model, given the model or its method; `""` otherwise."""
    keras = sys.modules.get("keras")
    for value in (fn, getattr(fn, "__self__", None)):
        packages = {base.__module__.partition(".")[0] for base in type(value).__mro__}
        if "keras" in packages and hasattr(value, "predict_step") and hasattr(keras, "backend"):
            return str(keras.backend.backend())  # type: ignore[union-attr]
    return ""


def jax_state(model: Any, names: Sequence[str]) -> Any:
    """Return the arrays of a model's variables, as its step takes them.

    Args:
        model: A model with the JAX backend.
        names: The kinds of variables, such as `"trainable_variables"`.
    """
    return model._get_jax_state(**dict.fromkeys(names, True))


def layout_map() -> Any:
    """Return the `LayoutMap` of the present `keras.distribution`; None if there is none."""
    keras: Any = sys.modules.get("keras")
    if not hasattr(keras, "distribution"):
        return None
    return getattr(keras.distribution.distribution(), "_layout_map", None)


def scans_over_batches() -> bool:
    """Return whether this Keras, on JAX, runs the steps of an execution as one program."""
    name = "keras.src.trainers.data_adapters.data_adapter_utils"
    return hasattr(sys.modules.get(name), "super_batch_iterator")


def jax_value_of(variable: Any, model: Any) -> Any:
    """Return the present array of a variable of a model's optimizer or metrics.

    Within an epoch the variable itself holds nothing, and the model has the arrays of its last
    step (Keras 3.15: `JAXTrainer._jax_state`). The next step consumes them, so copy an array to
    keep it.
    """
    if model._jax_state_synced:
        return variable.value
    pairs = (
        *zip(model.metrics_variables, model._jax_state["metrics_variables"], strict=True),
        *zip(model.optimizer.variables, model._jax_state["optimizer_variables"], strict=True),
    )
    return next(value for owner, value in pairs if owner is variable)


def layer_names(fn: Any) -> frozenset[str]:
    """Return the names of the layers in the models that `models_in` finds."""
    return frozenset(layer.name for model in models_in(fn) for layer in _all_layers(model))


def models_in(fn: Any) -> list[Any]:
    """Return the models that a function is, is a method of, or uses, without repetition."""
    return list({id(model): model for model in _models(fn)}.values())


def _models(fn: Any) -> Iterator[Any]:
    if (model := model_of(fn)) is not None:
        yield model
        return
    try:
        used = inspect.getclosurevars(plain_function(fn))
    except (TypeError, ValueError):
        return
    for value in (*used.nonlocals.values(), *used.globals.values()):
        if is_model(value):
            yield value
        elif callable(value) and getattr(value, "__closure__", None):
            yield from filter(is_model, read_closure(value).values())


def chooser(fn: Any) -> Choose:
    """Return a chooser of a function's innermost line, or else of the line of its definition."""
    if model_of(fn) is not None:
        return innermost  # a library's model has no lines of the user's
    defined = definition(fn)
    return lambda lines: innermost(lines) or defined
