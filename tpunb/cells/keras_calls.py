"""Calls of a Keras model's `fit`, `evaluate` or `predict`, and the batch that they would run.

Keras cuts arrays into batches of 32, or of the size in the call. Only the shapes of a batch are
made.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any

import numpy as np

from tpunb._util.units import grouped
from tpunb.compiler.program import CompileError
from tpunb.machine.keras_internals import (
    OF_ONE_BATCH,
    STEPS,
    is_model,
    is_of_jax,
    model_of,
)

METHODS = frozenset({*STEPS, *OF_ONE_BATCH})

_BATCH = 32
"""Keras's default, if a call names no batch size."""

_LIBRARIES = frozenset({"keras", "tf_keras"})


@dataclasses.dataclass(frozen=True)
class KerasCall:
    """A call of a model, in the form that `tpunb.compile` takes.

    Attributes:
        method: The model's `fit`, `evaluate` or `predict`.
        batch: The parts of a batch that the call would run, or a dataset.
        notes: The parts of the call that are not in the program.
        on_one_core: Whether Keras would run the call on a single core.
    """

    method: Any
    batch: tuple[Any, ...]
    notes: tuple[str, ...] = ()
    on_one_core: bool = False


def is_keras_method(called: Any) -> bool:
    """Return whether this is a method of a Keras model that runs the model's step."""
    name = getattr(called, "__name__", "")
    return isinstance(called, MethodType) and name in METHODS and model_of(called) is not None


def keras_call(called: Any, args: Sequence[Any], named: Mapping[str, Any]) -> KerasCall | None:
    """Return the parts that a call of a model would run; None if the call is not a model's.

    Args:
        called: The function or model that is called.
        args: The call's positional arguments.
        named: The call's keyword arguments.

    Raises:
        CompileError: The call has no data, or the method is the user's own.
        TypeError: The method does not take the arguments.
    """
    if is_model(called):
        return _forward(called, args, named)
    if not is_keras_method(called):
        model = model_of(called)
        if model is not None and is_of_jax(model):
            raise CompileError(
                f"A model's {getattr(called, '__name__', 'attribute')} runs no step.",
                fix="End the cell with model.fit(x, y), model.evaluate(x, y) or model.predict(x).",
            )
        return None
    model, name = called.__self__, called.__name__
    if called.__func__.__module__.partition(".")[0] not in _LIBRARIES:
        raise CompileError(
            f"{type(model).__name__}.{name} is not Keras's own: its batches are not known.",
            fix="Compile one step: end the cell with model.train_on_batch(x, y).",
        )
    try:
        bound = inspect.signature(called).bind(*args, **named)
    except TypeError as error:
        raise TypeError(f"{type(model).__name__}.{name}() {error}") from None
    bound.apply_defaults()
    return _KerasArguments(model, name, bound.arguments).call()


def _forward(model: Any, args: Sequence[Any], named: Mapping[str, Any]) -> KerasCall:
    """Return the call of a model that is called with its inputs."""
    if len(args) != 1 or any(value for value in named.values()):
        raise CompileError(
            "A call of a model is compiled for inference, with its inputs alone.",
            fix="End the cell with model(x), or with model.train_on_batch(x, y).",
        )
    call = _KerasArguments(model, "predict_on_batch", {"x": args[0]}).call()
    return dataclasses.replace(call, notes=())


class _KerasArguments:
    """The arguments of a call of a Keras model's method.

    Args:
        model: The model.
        name: The method's name.
        arguments: All arguments of the method, by their names.
    """

    def __init__(self, model: Any, name: str, arguments: Mapping[str, Any]) -> None:
        self._model, self._name, self._given = model, name, arguments
        self._x, self._y = arguments["x"], arguments.get("y")
        self._weights = arguments.get("sample_weight")
        self._of_jax = is_of_jax(model)

    def call(self) -> KerasCall:
        """Return the call in the form that `tpunb.compile` takes."""
        if self._x is None:
            raise CompileError(
                f"model.{self._name} is called without data.",
                fix=f"Pass it: model.{self._name}(x, y), or a dataset.",
            )
        method = getattr(self._model, OF_ONE_BATCH.get(self._name, self._name))
        if hasattr(self._x, "element_spec"):
            return self._of_batch(method, (self._dataset(),), None)
        if not all(hasattr(array, "shape") for array in _leaves(self._parts)):
            return self._first_batch().call()
        examples = self._examples()
        size = examples if self._name in OF_ONE_BATCH else self._size(examples)
        y, weights = self._y, self._sample_weights()
        parts = (
            [self._x] if y is None else [self._x, y] if weights is None else [self._x, y, weights]
        )
        batch = tuple(_mapped(lambda array: self._spec(array, size), part) for part in parts)
        if self._is_open(examples):
            return self._of_batch(method, (_open_batches(batch, size),), size)
        if len(batch) == 1 and isinstance(batch[0], (list, tuple)):
            batch = (batch,)  # several inputs, and not inputs with targets
        return self._of_batch(method, batch, size)

    def _of_batch(self, method: Any, batch: tuple[Any, ...], size: int | None) -> KerasCall:
        undistributed = self._of_jax and self._keras.distribution.distribution() is None
        return KerasCall(method, batch, tuple(self._notes(size)), undistributed)

    def _is_open(self, examples: int | None) -> bool:
        """Return whether the last batch is smaller, so that TensorFlow leaves the size open."""
        if self._of_jax or self._name in OF_ONE_BATCH or not examples:
            return False
        return examples % self._asked(examples) != 0

    @property
    def _parts(self) -> list[Any]:
        return [self._x, self._y, self._weights]

    def _examples(self) -> int | None:
        """Return the number of rows of the arrays; None if it is open."""
        rows = {array.shape[0] if len(array.shape) else None for array in _leaves(self._parts)}
        if len(rows) > 1:
            shapes = ", ".join(str(tuple(array.shape)) for array in _leaves(self._parts))
            raise CompileError(
                f"The arrays have different numbers of examples: {shapes}.",
                fix="Give as many targets as inputs.",
            )
        (examples,) = rows
        if examples is None or not (split := self._given.get("validation_split")):
            return examples
        return (
            examples if self._given["validation_data"] is not None else int(examples * (1 - split))
        )

    def _asked(self, examples: int | None) -> int:
        """Return the batch size that the call asks for."""
        steps = self._given.get("steps_per_epoch") or self._given.get("steps")
        if size := self._given["batch_size"]:
            return int(size)
        return math.ceil(examples / steps) if steps and examples else _BATCH

    def _size(self, examples: int | None) -> int:
        """Return the size of a batch, which is at most the number of examples."""
        asked = self._asked(examples)
        return asked if examples is None else min(asked, examples)

    def _sample_weights(self) -> Any:
        """Return the weights of the examples, for each output of the model."""
        weights = self._weights
        if self._given.get("class_weight") is not None:  # Keras looks these up by example
            weights = np.broadcast_to(np.float32(1), next(_leaves(self._y)).shape[:1])
        if isinstance(self._y, (list, tuple, dict)) and hasattr(weights, "shape"):
            return _mapped(lambda _: weights, self._y)
        return weights

    def _spec(self, array: Any, size: int | None) -> Any:
        """Return the shape of a batch of an array, with the type that Keras gives it."""
        if not hasattr(array, "dtype"):  # a pandas table
            array = np.asarray(array)
        dtype = np.dtype(getattr(array.dtype, "as_numpy_dtype", array.dtype))  # a TensorFlow type
        name = dtype.name
        # Keras 3 takes a single batch as it is.
        if "float" in name and (self._name not in OF_ONE_BATCH or self._keras_name == "tf_keras"):
            name = self._keras.backend.floatx()
        shape = (size, *array.shape[1:]) if len(array.shape) else ()
        if self._of_jax:
            jax = sys.modules["jax"]
            return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(name))
        import tensorflow as tf

        return tf.TensorSpec(shape, tf.string if dtype.kind in "OSU" else name)

    @property
    def _keras_name(self) -> str:
        """The package of Keras that made the model."""
        kinds = (kind.__module__.partition(".")[0] for kind in type(self._model).__mro__)
        return next(kind for kind in kinds if kind in _LIBRARIES)

    @property
    def _keras(self) -> Any:
        return sys.modules[self._keras_name]

    def _dataset(self) -> Any:
        """Return the dataset with the class weights."""
        if self._given.get("class_weight") is None:
            return self._x
        import tensorflow as tf

        kind = self._keras.backend.floatx()
        return self._x.map(lambda x, y: (x, y, tf.ones(tf.shape(tf.nest.flatten(y)[0])[:1], kind)))

    def _first_batch(self) -> _KerasArguments:
        """Return the arguments of a call with the first batch of an object that gives batches.

        Raises:
            CompileError: The object gives no batches, or gives the first batch only once.
        """
        of_one_batch = next(own for own, name in OF_ONE_BATCH.items() if name == self._name)
        if hasattr(self._x, "__getitem__") and not isinstance(self._x, (list, tuple, dict, str)):
            first = self._x[0]  # a `keras.utils.PyDataset`
        elif isinstance(self._x, Iterator):
            raise CompileError(
                "A generator gives its first batch once: compiling would take it.",
                fix=f"Take it yourself: end the cell with model.{of_one_batch}(*next(batches)).",
            )
        elif isinstance(self._x, Iterable) and not isinstance(self._x, (list, tuple, dict, str)):
            first = next(iter(self._x))  # for example a PyTorch loader
        else:
            raise CompileError(
                f"model.{self._name} takes arrays, and not {_outline(self._x)}.",
                fix=f"Make them arrays: model.{self._name}(np.array(x), np.array(y)).",
            )
        parts = first if isinstance(first, (list, tuple)) else (first,)
        arguments = dict(zip(("x", "y", "sample_weight"), parts, strict=False))
        if self._name == "predict":
            arguments = {"x": parts[0]}
        arguments["class_weight"] = self._given.get("class_weight")
        return _KerasArguments(self._model, of_one_batch, arguments)

    def _notes(self, size: int | None) -> Iterator[str]:
        validation = self._given.get("validation_batch_size") or 0
        validates = self._given.get("validation_data") is not None
        if size and validation > size and (validates or self._given.get("validation_split")):
            yield (
                f"fit also evaluates, with batches of {grouped(validation)}, which is another "
                f"program: model.evaluate(x, y, batch_size={validation}) in a cell compiles it."
            )
        eager = getattr(self._model, "run_eagerly", False)
        if eager or (self._of_jax and not getattr(self._model, "jit_compile", True)):
            why = "run_eagerly=True" if eager else "jit_compile=False"
            yield f"{why}: Keras runs each operation by itself, and not this program."


def _open_batches(batch: tuple[Any, ...], size: int | None) -> Any:
    """Return a dataset of such batches, with a smaller last batch; nothing reads the dataset."""
    import tensorflow as tf

    alone = len(batch) == 1 and not isinstance(batch[0], (list, tuple))

    def example(_: Any) -> Any:
        zeros = _mapped(lambda spec: tf.zeros(spec.shape[1:], spec.dtype), _in_tuples(batch))
        return zeros[0] if alone else zeros

    return tf.data.Dataset.range((size or 0) + 1).map(example).batch(size or 1)


def _in_tuples(nest: Any) -> Any:
    """Return a nest with tuples instead of lists, which a dataset would convert to tensors."""
    if isinstance(nest, dict):
        return {name: _in_tuples(part) for name, part in nest.items()}
    return tuple(map(_in_tuples, nest)) if isinstance(nest, (list, tuple)) else nest


def _outline(value: Any) -> str:
    kind = type(value).__name__
    return f"{kind}s of numbers" if isinstance(value, (list, tuple)) else f"a {kind}"


def _leaves(nest: Any) -> Iterator[Any]:
    """Yield the arrays in a nest of lists, tuples and dicts."""
    if isinstance(nest, dict):
        nest = list(nest.values())
    if isinstance(nest, (list, tuple)):
        for part in nest:
            yield from _leaves(part)
    elif nest is not None:
        yield nest


def _mapped(fn: Callable[[Any], Any], nest: Any) -> Any:
    """Return a nest of the same structure, with a function's result for each array."""
    if isinstance(nest, dict):
        return {name: _mapped(fn, part) for name, part in nest.items()}
    if isinstance(nest, (list, tuple)):
        parts = [_mapped(fn, part) for part in nest]
        return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)
    return None if nest is None else fn(nest)
